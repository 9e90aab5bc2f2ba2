"""The sepsis world with nothing hidden: counterfactuals are right there, are trusted, and make comparisons cheap.

All policies run on the same scenarios, so that their difference needs fewer episodes than two separate estimates.
How many times fewer depends on how alike the policies are, and on how many scenarios are drawn for each episode: what
the policies share is the patient, and what they do not share, such as the noise of their own actions, is averaged out.

`python -m coulda.studies.sepsis_control` writes `results/evaluation/sepsis_control.json` and its figure.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import tyro
from jax import Array

from coulda.drawing import as_png, new_figure
from coulda.environments.sepsis import Sepsis, SepsisState
from coulda.episodes import collect
from coulda.evaluation import Comparison, OnPolicy, OnScenarios, Precision, compare
from coulda.evaluation.estimate import plain
from coulda.hindsight import Exact
from coulda.planners.dynamic_programming import TabularPlanner
from coulda.policies import TabularPolicy
from coulda.storage import replace_file, replace_json
from coulda.studies.sepsis import ACTIONS, OBSERVED, SOFTNESS, best_planner

SOFTER = (0.02, 0.05, 0.1, 0.2)
"""Probabilities of any but the best action in the policies that are compared with the best one; 0.05 is the log's."""
SCENARIOS = (1, 4, 16)
"""Drawn for each episode."""


class FullyObserved(Sepsis):
    """The same simulator with nothing hidden: the observation is the state, diabetes included."""

    def __init__(self, *, reparameterization: str):
        super().__init__(reparameterization=reparameterization)

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(1440)."""
        return gymnasium.spaces.Discrete(self.num_states)

    def observe(self, state: SepsisState, u: object) -> Array:  # noqa: ARG002
        """Everything."""
        return state.index

    def states(self, previous_action: Array, observation: Array) -> SepsisState:  # noqa: ARG002
        """The one state."""
        return SepsisState((observation // OBSERVED)[None], (observation % OBSERVED)[None])


@dataclass(frozen=True)
class SepsisControl:
    """The positive control: the full state is observed, and the probabilities are the simulator's own."""

    episodes: int = 1000
    """In the log."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/evaluation")
    """Where the numbers and the figure go."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers; draw how much pairing is worth."""
        tables = {count: self.table(count) for count in SCENARIOS}
        pairing = [_pair(table, count, f"{epsilon:g}-soft") for count, table in tables.items() for epsilon in SOFTER]
        result = {
            "estimates": {
                name: {m: plain(e) for m, e in methods.items()} for name, methods in tables[1].estimates.items()
            },
            "pairing": pairing,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        replace_json(self.out / "sepsis_control.json", result)
        draw_pairing(pairing, self.out / "sepsis_pairing.png")
        return result

    def table(self, num_scenarios: int) -> Comparison:
        """A log of the 0.05-soft policy, and on it the best policy and its soft versions."""
        world, best = FullyObserved(reparameterization="gumbel_max_vitals"), best_planner()
        key_log, key_table = jax.random.split(jax.random.key(self.seed))
        soft = {f"{epsilon:g}-soft": best.noisy(epsilon * ACTIONS / (ACTIONS - 1)) for epsilon in SOFTER}
        policies = {name: _policy(planner) for name, planner in ({"best": best} | soft).items()}
        log = collect(key_log, world, policies[f"{SOFTNESS:g}-soft"], self.episodes)
        methods = [OnScenarios(world, Exact(world)), OnPolicy(world, 10 * self.episodes)]
        return compare(key_table, log, policies, methods, precision=Precision(scenarios=num_scenarios))


def draw_pairing(pairing: list[dict[str, Any]], path: Path) -> None:
    """Width of the interval of each difference against the number of episodes, paired and unpaired."""
    episodes = np.geomspace(50, 20_000, 50)
    figure = new_figure(4 * len(SCENARIOS), 3.8)
    panels = figure.subplots(1, len(SCENARIOS), sharey=True)
    for axis, count in zip(panels, SCENARIOS, strict=True):
        for number, row in enumerate(row for row in pairing if row["scenarios an episode"] == count):
            paired, unpaired = (3.92 * row[f"{kind} deviation"] / np.sqrt(episodes) for kind in ("paired", "unpaired"))
            label = f"{row['second']}: {row['times fewer episodes']:.1f} times fewer"
            axis.loglog(episodes, paired, f"C{number}", label=label)
            axis.loglog(episodes, unpaired, f"C{number}--")
        axis.set(xlabel="logged episodes", title=f"{count} scenario{'s' if count > 1 else ''} an episode")
        axis.legend(fontsize="small", title="best minus", loc="lower left")
    panels[0].set(ylabel="width of the 95 % interval\npaired (solid), unpaired (dashed)")
    replace_file(path, as_png(figure))


def _pair(table: Comparison, num_scenarios: int, second: str) -> dict[str, Any]:
    """The best policy minus another, and what pairing them is worth; deviations are of one episode's difference."""
    found = table.difference("CF-PE", "best", second)
    a, b = (table.estimates[name]["CF-PE"].terms for name in ("best", second))
    return {
        "scenarios an episode": num_scenarios,
        "second": second,
        "difference": [found.value, found.interval.low, found.interval.high],
        "correlation": float(np.corrcoef(a, b)[0, 1]),
        "paired deviation": float((a - b).std(ddof=1)),
        "unpaired deviation": float(np.sqrt(a.var(ddof=1) + b.var(ddof=1))),
        "times fewer episodes": found.variance_ratio,
    }


def _policy(planner: TabularPlanner) -> TabularPolicy:
    return TabularPolicy(np.exp(np.asarray(planner.logits)))


if __name__ == "__main__":
    print(json.dumps(tyro.cli(SepsisControl).run(), indent=1))  # noqa: T201
