"""How good the generated levels are, and how good the solver is, against real Boxoban levels.

    python -m benchmarks.sokoban_levels tests/fixtures/boxoban_unfiltered_test.txt --out results/sokoban

Prints JSON, and writes it and a figure into `--out`. Four-box levels are compared with the real ones; three-box levels,
those of the paper, are checked one by one; every solution is replayed through the environment.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from scipy import optimize, stats

from coulda.environments.sokoban import Sokoban, UniformLevels, count_defects, generate, read_levels, solve, tiles
from coulda.environments.sokoban.solver import NODE_LIMIT, SOLVED, STATUS_NAMES
from coulda.pomdp import GumbelMaxChoice

FEATURES = {
    "floor_cells": "floor cells",
    "assignment_distance": "box–target assignment distance",
    "walls_next_to_boxes": "walls next to boxes",
    "player_box_distance": "player to nearest box",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boxoban", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/sokoban"))
    parser.add_argument("--levels", type=int, default=100_000)
    arguments = parser.parse_args()
    start = time.time()
    real = read_levels(arguments.boxoban, num_boxes=4)
    real_solutions, solver_report = check_solver(real)
    fake = generate(jax.random.key(1), 20_000, num_boxes=4)
    fidelity = compare(real, fake)
    three, three_lengths = check_generated(arguments.levels)
    report = {
        "command": f"python -m benchmarks.sokoban_levels BOXOBAN --levels {arguments.levels}",
        "boxoban_solver": solver_report,
        "fidelity_four_boxes": fidelity,
        "generated_three_boxes": three,
        "seconds": round(time.time() - start, 1),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    (arguments.out / "levels.json").write_text(text + "\n")
    print(text)
    draw(arguments.out / "levels.png", real, fake, real_solutions, three_lengths)


def check_solver(levels: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Solve real levels within the default limit and replay each solution."""
    start = time.time()
    solutions = solve(levels, num_boxes=4)
    seconds = time.time() - start
    solved = solutions.status == SOLVED
    report = {
        "levels": len(levels),
        "solved": int(solved.sum()),
        "share_solved": float(solved.mean()),
        "solutions_replayed_to_a_solved_state": int(replays(levels[solved], solutions.actions[solved], 4).sum()),
        "node_limit": NODE_LIMIT,
        "most_nodes": int(solutions.nodes.max()),
        "median_nodes": float(np.median(solutions.nodes)),
        "mean_moves": float(solutions.length[solved].mean()),
        "seconds": round(seconds, 2),
    }
    return solutions.length[solved], report


def replays(levels: np.ndarray, actions: np.ndarray, num_boxes: int) -> np.ndarray:
    """Whether each action sequence solves its level, by the environment itself."""
    environment = Sokoban(
        levels=UniformLevels(levels), action_mechanism=GumbelMaxChoice(tiles.NUM_ACTIONS), num_boxes=num_boxes
    )

    def play(level, sequence):
        step = lambda state, action: (environment.transition(state, action, ()), None)
        return environment.solved(jax.lax.scan(step, environment.initial(level), sequence)[0])

    return np.asarray(jax.jit(jax.vmap(play))(jnp.asarray(levels), jnp.asarray(actions)))


def check_generated(n: int) -> tuple[dict[str, Any], np.ndarray]:
    """The paper's levels: all well-formed, all solvable, how many within 50 moves, how many twice."""
    generate(jax.random.key(0), 10)  # compile
    start = time.time()
    levels = generate(jax.random.key(2), n)
    seconds = time.time() - start
    defects = {name: int((count > 0).sum()) for name, count in count_defects(levels, 3).items()}
    start = time.time()
    solutions = solve(levels, 3)
    solve_seconds = time.time() - start
    solved = solutions.status == SOLVED
    report = {
        "key": 2,
        "levels": n,
        "levels_per_second": round(n / seconds),
        "levels_with_defect": defects,
        "status": {name: int((solutions.status == i).sum()) for i, name in enumerate(STATUS_NAMES)},
        "solutions_replayed_to_a_solved_state": int(replays(levels[solved], solutions.actions[solved], 3).sum()),
        "share_solvable_within_50_moves": float(((solutions.length >= 0) & (solutions.length <= 50)).mean()),
        "mean_moves": float(solutions.length[solved].mean()),
        "duplicates": int(n - len(np.unique(levels.reshape(n, -1), axis=0))),
        "solver_levels_per_second": round(n / solve_seconds),
    }
    return report, solutions.length[solved]


def features(levels: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics that are compared, `[n]` each."""
    n, _, width = levels.shape
    flat = levels.reshape(n, -1)
    boxes, targets, agent = (
        np.nonzero(f(flat))[1].reshape(n, -1) for f in (tiles.has_box, tiles.has_target, tiles.has_agent)
    )
    between = distance(boxes[:, :, None], targets[:, None, :], width)
    orders = itertools.permutations(range(boxes.shape[1]))
    wall = flat == tiles.WALL
    around = sum(wall[np.arange(n)[:, None], boxes + step].sum(1) for step in (-width, width, -1, 1))
    return {
        "floor_cells": (~wall).sum(1),
        "assignment_distance": np.min([between[:, range(len(o)), o].sum(1) for o in orders], axis=0),
        "walls_next_to_boxes": np.asarray(around),
        "player_box_distance": distance(agent, boxes, width).min(1),
    }


def distance(a: np.ndarray, b: np.ndarray, width: int) -> np.ndarray:
    return abs(a // width - b // width) + abs(a % width - b % width)


def compare(real: np.ndarray, fake: np.ndarray) -> dict[str, Any]:
    """Kolmogorov–Smirnov distances and a classifier two-sample test."""
    real_features, fake_features = features(real), features(fake)
    distances = {
        name: round(float(np.asarray(stats.ks_2samp(real_features[name], fake_features[name]))[0]), 4)
        for name in FEATURES
    }
    adjacent = [float((f["player_box_distance"] == 1).mean()) for f in (real_features, fake_features)]
    return {
        "key": 1,
        "real_levels": len(real),
        "generated_levels": len(fake),
        "kolmogorov_smirnov": distances,
        # What two samples of one distribution exceed once in twenty times.
        "kolmogorov_smirnov_5_percent_point": round(1.36 * np.sqrt(1 / len(real) + 1 / len(fake)), 4),
        "mean_real": {name: round(float(value.mean()), 3) for name, value in real_features.items()},
        "mean_generated": {name: round(float(value.mean()), 3) for name, value in fake_features.items()},
        "player_next_to_box": {"real": adjacent[0], "generated": adjacent[1]},
        "classifier_two_sample_test": classify(real, fake[: len(real)]),
    }


def classify(real: np.ndarray, fake: np.ndarray) -> dict[str, float]:
    """Held-out accuracy of a logistic regression that tells real from generated; .5 when it cannot.

    Its inputs are the features above, their squares and products, and the count of each tile in each row and column.
    """
    levels = np.concatenate([real, fake])
    label = np.repeat([1.0, 0.0], [len(real), len(fake)])
    basic = np.stack([value.astype(float) for value in features(levels).values()], axis=1)
    products = [basic[:, i] * basic[:, j] for i, j in itertools.combinations_with_replacement(range(basic.shape[1]), 2)]
    one_hot = levels[..., None] == np.array([tiles.EMPTY, tiles.BOX, tiles.TARGET, tiles.AGENT])
    lines = [one_hot.sum(axis).reshape(len(levels), -1) for axis in (1, 2)]
    inputs = np.concatenate([basic, np.stack(products, axis=1), *lines], axis=1)
    inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-9)
    order = np.random.default_rng(0).permutation(len(levels))
    train, test = np.array_split(order, 2)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        score, y = inputs[train] @ weights[1:] + weights[0], label[train]
        residual = 1 / (1 + np.exp(-score)) - y
        penalty = 0.02 * weights * np.r_[0, np.ones(len(weights) - 1)]
        value = np.mean(np.logaddexp(0, score) - y * score) + 0.5 * penalty @ weights
        return value, np.r_[residual.mean(), inputs[train].T @ residual / len(train)] + penalty

    weights = optimize.minimize(loss, np.zeros(inputs.shape[1] + 1), jac=True, method="L-BFGS-B").x
    correct = ((inputs[test] @ weights[1:] + weights[0]) > 0) == label[test]
    return {
        "held_out_accuracy": float(correct.mean()),
        "standard_error": float(np.sqrt(0.25 / len(test))),
        "p_value": float(stats.binomtest(int(correct.sum()), len(test), 0.5, alternative="greater").pvalue),
    }


def draw(path: Path, real: np.ndarray, fake: np.ndarray, four: np.ndarray, three: np.ndarray) -> None:
    """Real against generated, one panel a statistic, and how long shortest solutions are."""
    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 5, figsize=(15, 2.9), layout="constrained")
    real_features, fake_features = features(real), features(fake)
    for axis, (name, title) in zip(axes, FEATURES.items(), strict=False):
        edges = (
            np.arange(min(real_features[name].min(), fake_features[name].min()), real_features[name].max() + 2) - 0.5
        )
        axis.hist(fake_features[name], edges, density=True, color="#9db8d9", label="generated")
        axis.hist(real_features[name], edges, density=True, histtype="step", color="#b3261e", label="Boxoban")
        axis.set_title(title, fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    for lengths, color, label in ((three, "#4c78a8", "3 boxes, generated"), (four, "#b3261e", "4 boxes, Boxoban")):
        x = np.sort(lengths)
        axes[4].plot(x, np.arange(1, len(x) + 1) / len(x), color=color, label=label)
    axes[4].axvline(50, color="gray", lw=0.8, ls=":")
    axes[4].set_title("share solvable within so many moves", fontsize=10)
    axes[4].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
