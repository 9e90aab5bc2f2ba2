"""The queue desk and the inventory with trained hindsight: `python -m coulda.studies.amortized --world queue`.

A network is trained by nothing but simulation, and asked whether it is calibrated; with `--corrected`, whether it is
when its draws are weighed. Then another policy is evaluated on 200 logs: how often the interval of CF-PE holds its true
value, and how wide it is beside those of MB-PE and importance sampling. The network and every part of the answer are
kept, so that it can be stopped and begun again.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from jax import Array

from coulda.episodes import EpisodeLog, collect
from coulda.evaluation import ImportanceSampling, OnScenarios, Precision, compare
from coulda.evaluation.intervals import Interval, Ratios
from coulda.hindsight import Amortized, Corrected, ScenarioSource, calibrate, train_hindsight
from coulda.hindsight.amortized import SOURCE
from coulda.policies import AnyAction
from coulda.pomdp import POMDP
from coulda.storage import replace_json
from coulda.studies.coverage import summary
from coulda.studies.hindsight import CASES, Case, true_value


@dataclass(frozen=True)
class AmortizedStudy:
    """Calibration and coverage of trained hindsight."""

    world: str
    """queue or inventory; pump and glucose are worlds too."""
    simulations: int = 30_000
    """Episodes that the network learns from: half under any action, half under who logged."""
    width: int = 64
    """The width of the network."""
    passes: int | None = None
    """The most passes over the pairs."""
    corrected: bool = False
    """Whether the network's draws are weighed by the density that the model has; then only calibration is asked."""
    logs: int = 200
    """Logs evaluated."""
    episodes: int = 100
    """Episodes per log."""
    scenarios: int = 2
    """Scenarios per episode."""
    truth: int = 200_000
    """Episodes from which the policy's true value is measured."""
    calibrated: int = 500
    """Episodes of the calibration."""
    seed: int = 1
    """The seed of everything that is drawn."""
    folder: Path = Path("runs/amortized")
    """The folder of the network, and of what was measured so far."""
    out: Path = Path("results/hindsight")
    """The folder of the numbers."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        case = CASES[self.world]
        model = case.make(**case.right)
        key_train, key_calibrate, key_log, key_evaluate, key_truth = jax.random.split(jax.random.key(self.seed), 5)
        source = self._source(key_train, case, model)
        found = {
            "world": self.world,
            "simulations": self.simulations,
            "width": self.width,
            "passes": self.passes,
            "episodes of a log": self.episodes,
            "scenarios of an episode": self.scenarios,
            "seed": self.seed,
            "calibration": self._kept("calibration", lambda: self._calibrated(key_calibrate, source, model, case)),
        }
        if not self.corrected:  # whose draws are dear
            found["coverage"] = self._kept(
                "coverage", lambda: self._coverage(key_log, key_evaluate, key_truth, source, model, case)
            )
        name = f"{'corrected' if self.corrected else 'amortized'}-{self.world}.json"
        self.out.mkdir(parents=True, exist_ok=True)
        replace_json(self.out / name, found)
        return found

    def _source(self, key: Array, case: Case, model: POMDP) -> ScenarioSource:
        folder = self.folder / f"{self.world}-{self.simulations}-{self.seed}"
        if not (folder / SOURCE).exists():
            policies = {"any action": AnyAction.of(model), "behavior": case.behavior}
            train_hindsight(
                key, model, policies, simulations=self.simulations, width=self.width, passes=self.passes, folder=folder
            )
        source = Amortized.load(folder, model)
        return Corrected(source, model) if self.corrected else source

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        """What was measured before, or is now."""
        settings = f"{self.world}-{self.simulations}-{self.seed}-{self.corrected}-{self.logs}-{self.episodes}"
        path = self.folder / f"{name}-{settings}-{self.scenarios}-{self.calibrated}.json"
        if not path.exists():
            start = time.process_time()
            replace_json(path, make() | {"processor seconds": round(time.process_time() - start, 1)})
        return json.loads(path.read_text())

    def _calibrated(self, key: Array, source: ScenarioSource, model: POMDP, case: Case) -> dict[str, Any]:
        found = calibrate(key, source, model, {"target": case.target}, episodes=self.calibrated)
        return {"verdict": found.verdict, "sentences": found.sentences, "quantities": found.plain()["quantities"]}

    def _coverage(
        self, key_log: Array, key: Array, key_truth: Array, source: ScenarioSource, model: POMDP, case: Case
    ) -> dict[str, Any]:
        log = collect(key_log, model, case.behavior, self.logs * self.episodes)
        truth, error = true_value(model, case.target, key_truth, self.truth)
        precision = Precision(scenarios=self.scenarios)
        table = compare(key, log, {"target": case.target}, [OnScenarios(model, source)], precision=precision)
        rows = table.estimates["target"]
        rng = np.random.default_rng(self.seed)
        # An episode's scenarios do not depend on the log that it is in, so that all logs are one.
        split = lambda terms: [Ratios.mean_of(one) for one in terms.reshape(self.logs, self.episodes)]
        intervals = {
            name.partition("(")[0]: [precision.of_returns(rng, one) for one in split(row.terms)]
            for name, row in rows.items()
        }
        intervals["WIS"] = [self._weighed(jax.random.fold_in(key, i), log, i, case) for i in range(self.logs)]
        return {
            "truth": truth,
            "standard error of the truth": error,
            "logs": self.logs,
            **{name: summary(found, truth) for name, found in intervals.items()},
            "verdicts of all logs together": {
                name: [row.verdict, *(d.sentence for d in row.diagnostics if d.verdict != "trust")]
                for name, row in rows.items()
            },
        }

    def _weighed(self, key: Array, log: EpisodeLog, number: int, case: Case) -> Interval:
        one = log[number * self.episodes : (number + 1) * self.episodes]
        found = ImportanceSampling("weighted").estimate(key, case.target, one).interval
        return Interval(np.nan, np.nan, 0.95, "none") if found is None else found


if __name__ == "__main__":
    tyro.cli(AmortizedStudy).run()
