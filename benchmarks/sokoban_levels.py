"""How close the generated levels are to real Boxoban levels, and how good the solver is on both.

    python -m benchmarks.sokoban_levels unfiltered/train/01[0-4].txt --out results/sokoban

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
    "solution_length": "moves of the shortest solution",
    "spread": "distances between boxes, in sum",
    "reachable_cells": "cells within reach",
    "assignment_distance": "box–target assignment distance",
    "floor_cells": "floor cells",
    "open_squares": "open 2×2 squares",
    "boxes_at_the_edge": "boxes at the edge",
    "walls_next_to_boxes": "walls next to boxes",
    "player_box_distance": "player to nearest box",
}
DRAWN = ("spread", "reachable_cells", "assignment_distance", "floor_cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boxoban", type=Path, nargs="+", help="level files that no setting was chosen by")
    parser.add_argument("--out", type=Path, default=Path("results/sokoban"))
    parser.add_argument("--solve", type=int, default=2_000, help="real levels to solve; twice as many generated ones")
    parser.add_argument("--levels", type=int, default=100_000, help="three-box levels to check one by one")
    arguments = parser.parse_args()
    start = time.process_time()
    real = np.concatenate([read_levels(path, num_boxes=4) for path in arguments.boxoban])
    fake = generate(jax.random.key(1), 20_000, num_boxes=4)
    real_lengths, real_report = check_solver(real[: arguments.solve])
    fake_lengths, fake_report = check_solver(fake[: 2 * arguments.solve])
    real_features = {"solution_length": real_lengths, **features(real)}
    fake_features = {"solution_length": fake_lengths, **features(fake)}
    three, three_lengths = check_generated(arguments.levels)
    report = {
        "command": "python -m benchmarks.sokoban_levels "
        f"{' '.join(path.name for path in arguments.boxoban)} --solve {arguments.solve} --levels {arguments.levels}",
        "boxoban_solver": real_report,
        "generated_solver": fake_report,
        "fidelity_four_boxes": {
            "key": 1,
            "real_levels": len(real),
            "generated_levels": len(fake),
            "features": compare(real_features, fake_features),
            "classifier_two_sample_test": classify(real, fake[: len(real)]),
        },
        "generated_three_boxes": three,
        "processor_seconds": round(time.process_time() - start, 1),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    (arguments.out / "levels.json").write_text(text + "\n")
    print(text)
    draw(arguments.out / "levels.png", real_features, fake_features, three_lengths)


def check_solver(levels: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Solve four-box levels within the default limit and replay each solution."""
    start = time.process_time()
    solutions = solve(levels, num_boxes=4)
    seconds = time.process_time() - start
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
        "share_solvable_within_50_moves": float(((solutions.length >= 0) & (solutions.length <= 50)).mean()),
        "processor_seconds": round(seconds, 2),
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
    start = time.process_time()
    levels = generate(jax.random.key(2), n)
    seconds = time.process_time() - start
    defects = {name: int((count > 0).sum()) for name, count in count_defects(levels, 3).items()}
    start = time.process_time()
    solutions = solve(levels, 3)
    solve_seconds = time.process_time() - start
    solved = solutions.status == SOLVED
    report = {
        "key": 2,
        "levels": n,
        "levels_per_processor_second": round(n / seconds),
        "levels_with_defect": defects,
        "status": {name: int((solutions.status == i).sum()) for i, name in enumerate(STATUS_NAMES)},
        "solutions_replayed_to_a_solved_state": int(replays(levels[solved], solutions.actions[solved], 3).sum()),
        "share_solvable_within_50_moves": float(((solutions.length >= 0) & (solutions.length <= 50)).mean()),
        "mean_moves": float(solutions.length[solved].mean()),
        "duplicates": int(n - len(np.unique(levels.reshape(n, -1), axis=0))),
        "solver_levels_per_processor_second": round(n / solve_seconds),
    }
    return report, solutions.length[solved]


def features(levels: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics that are compared, but for the length of the shortest solution; `[n]` each."""
    n, height, width = levels.shape
    flat = levels.reshape(n, -1)
    boxes, targets, agent = (
        np.nonzero(f(flat))[1].reshape(n, -1) for f in (tiles.has_box, tiles.has_target, tiles.has_agent)
    )
    between = distance(boxes[:, :, None], targets[:, None, :], width)
    orders = itertools.permutations(range(boxes.shape[1]))
    wall = flat == tiles.WALL
    floor = levels != tiles.WALL
    row, column = boxes // width, boxes % width
    around = sum(wall[np.arange(n)[:, None], boxes + step].sum(1) for step in (-width, width, -1, 1))
    return {
        "spread": distance(boxes[:, :, None], boxes[:, None, :], width).sum((1, 2)) // 2,
        "reachable_cells": reachable(levels).sum((1, 2)),
        "assignment_distance": np.min([between[:, range(len(o)), o].sum(1) for o in orders], axis=0),
        "floor_cells": floor.sum((1, 2)),
        "open_squares": (floor[:, 1:, 1:] & floor[:, 1:, :-1] & floor[:, :-1, 1:] & floor[:, :-1, :-1]).sum((1, 2)),
        "boxes_at_the_edge": ((row == 1) | (row == height - 2) | (column == 1) | (column == width - 2)).sum(1),
        "walls_next_to_boxes": np.asarray(around),
        "player_box_distance": distance(agent, boxes, width).min(1),
    }


def distance(a: np.ndarray, b: np.ndarray, width: int) -> np.ndarray:
    return abs(a // width - b // width) + abs(a % width - b % width)


def reachable(levels: np.ndarray) -> np.ndarray:
    """The cells that the agent can walk to before it pushes anything, `bool[n, height, width]`."""
    free = (levels != tiles.WALL) & ~tiles.has_box(levels)
    reached = tiles.has_agent(levels)
    while True:
        grown = reached.copy()
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown[:, :, 1:] |= reached[:, :, :-1]
        grown[:, :, :-1] |= reached[:, :, 1:]
        grown &= free
        if (grown == reached).all():
            return reached
        reached = grown


def compare(real: dict[str, np.ndarray], fake: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means, and Kolmogorov–Smirnov distances with what two samples of one distribution exceed once in twenty times."""
    return {
        name: {
            "kolmogorov_smirnov": round(float(np.asarray(stats.ks_2samp(real[name], fake[name]))[0]), 4),
            "five_percent_point": round(1.36 * np.sqrt(1 / len(real[name]) + 1 / len(fake[name])), 4),
            "mean_real": round(float(real[name].mean()), 3),
            "mean_generated": round(float(fake[name].mean()), 3),
        }
        for name in FEATURES
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


def draw(path: Path, real: dict[str, np.ndarray], fake: dict[str, np.ndarray], three: np.ndarray) -> None:
    """Real against generated, one panel a statistic, and how long shortest solutions are."""
    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 5, figsize=(15, 2.9), layout="constrained")
    for axis, name in zip(axes, DRAWN, strict=False):
        edges = np.arange(min(real[name].min(), fake[name].min()), real[name].max() + 2) - 0.5
        axis.hist(fake[name], edges, density=True, color="#9db8d9", label="generated")
        axis.hist(real[name], edges, density=True, histtype="step", color="#b3261e", label="Boxoban")
        axis.set_title(FEATURES[name], fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    for lengths, color, label in (
        (three, "#4c78a8", "3 boxes, generated"),
        (fake["solution_length"], "#9db8d9", "4 boxes, generated"),
        (real["solution_length"], "#b3261e", "4 boxes, Boxoban"),
    ):
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
