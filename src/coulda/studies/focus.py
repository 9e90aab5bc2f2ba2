"""Does it help a policy to focus on the agent's cell? Imitation with and without, all else equal.

python -m coulda.studies.focus   # writes results/ablation/focus.json
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coulda.evaluation.intervals import mean_interval
from coulda.recipes.networks import HeldOut, PolicyRecipe, Running, level_key, train_policy
from coulda.recipes.sokoban import draw_levels, find_size
from coulda.storage import replace_json

WORLD, SEEDS = "7x7", 3
RECIPE = PolicyRecipe(updates=400, batch=32, learning_rate=8e-3, levels=30_000)


def run(out: Path) -> None:
    """Train policies of both kinds, and write how many levels each solves."""
    size = find_size(WORLD)
    levels = draw_levels(level_key(0), size, "policy", RECIPE.levels)
    held_out = HeldOut.drawn(1, size, 2000)
    found: dict[str, Any] = {"world": WORLD, "recipe": asdict(RECIPE), "held-out levels": held_out.episodes}
    for name, focus in (("focus", True), ("every cell", False)):
        start, solved = time.perf_counter(), []
        for seed in range(SEEDS):
            recipe = replace(RECIPE, focus=focus)
            policy, _ = train_policy(seed, size, levels, recipe, Running(progress=False, evaluation_levels=0))
            solved.append(float(held_out.solve_rate(jax.random.key(9), policy)["held_out/solved"]))
        seconds = time.perf_counter() - start
        found[name] = {"solved": solved, **asdict(mean_interval(np.array(solved))), "seconds": round(seconds, 1)}
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_json(out, found)


if __name__ == "__main__":
    run(Path("results/ablation/focus.json"))
