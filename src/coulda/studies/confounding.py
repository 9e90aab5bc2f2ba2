"""Is a table told when whoever acted knew more than was logged, and is it left alone when they did not?

Right logs are those of the ward of `coulda.studies.fitting`, and of sepsis without diabetes, which then has nothing
that is not logged. Wrong ones are of sepsis without glucose, and, less so, with glucose but without diabetes.

`python -m coulda.studies.confounding` writes `results/fitting/confounding.json`.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from coulda.episodes import EpisodeLog, collect
from coulda.fitting.confounding import confounding
from coulda.fitting.folds import deal
from coulda.fitting.lasting import lasting
from coulda.planners.dynamic_programming import TabularPlanner
from coulda.storage import replace_json
from coulda.studies import sepsis
from coulda.studies.fitting import Knowing, ward

FOLDS = 5
LEVELS = (0.01, 0.05, 0.25, 0.5)
"""At which shares of right logs are told, to be as large."""


@dataclass(frozen=True)
class Confounding:
    """How often a log is told that something hidden drives both what was done and what followed."""

    first: int = 4000
    """The seed of the first log of each case."""
    out: Path = Path("results/fitting/confounding.json")
    """Where the numbers go."""

    def run(self) -> None:
        """Measure, one case after the other, writing after each log; what is there already is kept."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = json.loads(self.out.read_text()) if self.out.exists() else {}
        for name, (made, logs) in CASES.items():
            rows = found.get(name, {}).get("rows", {})
            start = time.process_time() - found.get(name, {}).get("processor seconds", 0.0)
            for seed in range(self.first, self.first + logs):
                if str(seed) in rows:
                    continue
                rows[str(seed)] = _row(seed, made(seed))
                spent = {"processor seconds": round(time.process_time() - start, 1)}
                found[name] = _counted(list(rows.values())) | spent | {"rows": rows}
                replace_json(self.out, found)


def _row(seed: int, log: EpisodeLog) -> dict[str, Any]:
    """The verdict; and of what follows alone: the chance in all its tests, and the largest share."""
    rng = np.random.default_rng(seed)
    follows = lasting(rng, log)
    (told,) = confounding(rng, log, deal(log, FOLDS)[1])
    chance = min(1.0, len(follows) * min(found.chance for found in follows))
    return {"verdict": told.verdict, "chance": chance, "share": max(found.share for found in follows)}


def _counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    verdicts, chances = [row["verdict"] for row in rows], np.array([row["chance"] for row in rows])
    return {
        "logs": len(rows),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in ("trust", "caution", "do not trust")},
        "chance below": {str(level): float((chances < level).mean()) for level in LEVELS},
        "median share": float(np.median([row["share"] for row in rows])),
    }


_physician: Callable[[], TabularPlanner] = cache(sepsis.behavior_planner)


def _ward(seed: int) -> EpisodeLog:
    return collect(jax.random.key(seed), ward(0.0), Knowing(False), 300)


def _septic(patients: int, diabetes: float = 0.2, hide: bool = False) -> Callable[[int], EpisodeLog]:
    def made(seed: int) -> EpisodeLog:
        world = sepsis.Sepsis(reparameterization="gumbel_max", diabetes=diabetes)
        log = collect(jax.random.key(seed), world, _physician(), patients)
        return sepsis.projected(log) if hide else log

    return made


CASES: dict[str, tuple[Callable[[int], EpisodeLog], int]] = {
    "ward, right": (_ward, 200),
    "sepsis, right, 400": (_septic(400, diabetes=0.0), 200),
    "sepsis, right, 2000": (_septic(2000, diabetes=0.0), 100),
    "glucose hidden, 400": (_septic(400, hide=True), 50),
    "glucose hidden, 2000": (_septic(2000, hide=True), 20),
    "glucose hidden, 8000": (_septic(8000, hide=True), 20),
    "diabetes hidden, 400": (_septic(400), 50),
    "diabetes hidden, 2000": (_septic(2000), 20),
    "diabetes hidden, 8000": (_septic(8000), 10),
}
"""By name: how a log is made of a seed, and how many are."""


if __name__ == "__main__":
    tyro.cli(Confounding).run()
