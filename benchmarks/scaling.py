"""What 64 and 1,000 actors would give, and where the learner saturates: a simulation from costs measured here.

    python -m benchmarks.scaling     # writes results/scaling; Ray runs in a network of its own

Costs are core seconds of IMPALA on PO-Sokoban: of an actor's episode, of the learner's gradient on it, and of the
learner's process for a batch that comes in through Ray. The simulation is the protocol itself: update v takes one
batch from each actor, which was asked for when the learner reached version v - staleness.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import ROOT, isolated

RESULTS = ROOT / "results" / "scaling"
ACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
LEARNERS = (1, 16, 128)
"""Cores of the learner, whose gradients are assumed to split over them without loss."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one core."""

    actor: float
    """To make one episode."""
    learner: float
    """Of the gradient on one episode."""
    message: float
    """Of the learner's process to ask for a batch, to take it in and to decode it; not split over its cores."""
    steps: int
    """Of an episode."""
    variation: float = 0.1
    """Of the time that an actor needs, as a share of it; assumed."""


def simulate(costs: Costs, actors: int, episodes: int, learner_cores: int = 1, staleness: int = 1, updates: int = 200):
    """Environment steps a second, and the shares of time that the learner and the actors work.

    Each of `actors` makes one batch of `episodes` an update. Batches of update v are asked for once the learner has
    version v - staleness; an actor works on one batch at a time; an update begins when all its batches are there.
    """
    rng = np.random.default_rng(0)
    deviation = np.sqrt(np.log1p(costs.variation**2))  # of a lognormal variable, whose mean is kept
    needed = costs.actor * episodes * rng.lognormal(-(deviation**2) / 2, deviation, (updates, actors))
    update_seconds = actors * (costs.message + episodes * costs.learner / learner_cores)
    reached, free = np.zeros(updates + 1), np.zeros(actors)
    for update in range(updates):
        free = np.maximum(free, reached[max(update - staleness, 0)]) + needed[update]
        reached[update + 1] = max(reached[update], free.max()) + update_seconds
    return {
        "steps a second": actors * episodes * costs.steps * updates / reached[-1],
        "learner busy": update_seconds * updates / reached[-1],
        "actors busy": float(needed.mean() * updates / reached[-1]),
    }


def measure(world: str, preset: str, episodes: int, request: float, levels: int = 64) -> Costs:
    """The costs of acting and learning with IMPALA's network of a preset; `request` is that of a message."""
    import jax

    from coulda.executors import InProcess
    from coulda.learners import Impala
    from coulda.recipes.impala import actors, impala_recipe
    from coulda.storage import load_tree, save_tree

    recipe = replace(impala_recipe(world, preset), batch=episodes, levels=levels)
    executor = InProcess(actors(asdict(recipe)))
    impala, policy = Impala(executor, recipe.optimizer, recipe.loss), recipe.first_policy()
    executor.publish(0, policy)

    def act() -> Any:
        executor.request(0)
        return jax.block_until_ready(executor.next().value)

    batch = act()
    data, state, template = save_tree(batch), impala.init(policy), executor.work.value
    acting = core_seconds(act)
    both = core_seconds(lambda: jax.block_until_ready(impala.step(jax.random.key(0), state)))
    decoding = core_seconds(lambda: load_tree(data, template))
    learning = max(both - acting, 0.0)
    steps = int(np.asarray(batch.live).shape[1])
    return Costs(acting / episodes, learning / episodes, decoding + request, steps)


def core_seconds(function, repeats: int = 3) -> float:
    """Processor time, all threads together: what other programs do meanwhile counts for little."""
    function()
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def request_cost() -> float:
    """Core seconds of the asking process for a small request to Ray and its answer."""
    command = isolated("-m", "benchmarks.scaling", "requests")
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=600)
    return float(done.stdout.strip().splitlines()[-1])


def requests(count: int = 500) -> float:
    from coulda.executors import WorkSpec, gather
    from coulda.executors.ray_cluster import Ray

    with Ray(WorkSpec("tests.programs.recipes:counted"), num_workers=2, capacity=16) as executor:
        executor.publish(0, np.float32(1))
        list(gather(executor, range(20)))
        start = time.process_time()
        list(gather(executor, range(count)))
        return (time.process_time() - start) / count


def draw(curves: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(5.5 * len(curves), 3.8), squeeze=False)
    for axis, (world, told) in zip(axes[0], curves.items(), strict=True):
        for cores in LEARNERS:
            rates = [told["simulated"][f"learner of {cores} cores"][str(n)]["steps a second"] for n in ACTORS]
            axis.loglog(ACTORS, rates, "o-", markersize=3, label=f"learner of {cores} core{'s' * (cores > 1)}")
        alone = told["costs"]["steps"] / told["costs"]["actor"]
        axis.loglog(ACTORS, [alone * n for n in ACTORS], "k:", label="actors alone")
        axis.set(title=f"PO-Sokoban {world}", xlabel="actors, one core each", ylabel="environment steps a second")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> dict[str, Any]:
    told, request = {}, request_cost()
    for world, preset, episodes in (("7x7", "desktop", 32), ("10x10", "paper", 4)):
        costs = measure(world, preset, episodes, request)
        simulated = {
            f"learner of {cores} cores": {str(n): simulate(costs, n, episodes, cores) for n in ACTORS}
            for cores in LEARNERS
        }
        saturation = {str(cores): saturated_by(costs, episodes, cores) for cores in LEARNERS}
        told[world] = {"episodes a batch": episodes, "costs": asdict(costs)}
        told[world] |= {"actors that saturate a learner, by its cores": saturation, "simulated": simulated}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "scaling.json").write_text(json.dumps(told, indent=1) + "\n")
    draw(told, RESULTS / "scaling.png")
    return told


def saturated_by(costs: Costs, episodes: int, cores: int) -> float:
    """How many actors the learner keeps up with: it works as long on their batches as they do.

    Each actor adds `message + episodes · learner / cores` to an update that takes the actors `episodes · actor`.
    """
    return costs.actor * episodes / (costs.message + episodes * costs.learner / cores)


if __name__ == "__main__":
    print(requests() if sys.argv[1:] == ["requests"] else json.dumps(main(), indent=1))
