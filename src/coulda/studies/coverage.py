"""Do 95 % intervals hold the truth 95 % of the time? Two thousand logs of a world whose values are known exactly.

`python -m coulda.studies.coverage coverage` writes `results/evaluation/coverage.json`, and `… power` how wrong a
model must be to be warned of. Every method for which a nominal
interval is claimed is repeated on the same logs; the Bernstein bounds, which promise at least their level, are printed
beside them. Then the same with a model that is wrong on purpose: coverage is lost, and the verdict must say so.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array
from scipy import stats

from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, collect
from coulda.evaluation import Estimate, Interval, OnScenarios, Precision, compare, evaluate
from coulda.evaluation.diagnostics import weight_diagnostics
from coulda.evaluation.doubly_robust import statistics as robust_statistics
from coulda.evaluation.estimate import VERDICTS, worst
from coulda.evaluation.fitted_q import FOLDS, Steps, default_regression, fit_values, seen_by, steps_of
from coulda.evaluation.importance import KINDS
from coulda.evaluation.importance import statistics as weight_statistics
from coulda.evaluation.intervals import bca, bernstein, student
from coulda.evaluation.mismatch import Shift, Shifts, shift
from coulda.evaluation.reading import over_log, read
from coulda.evaluation.regressions import QFunction
from coulda.evaluation.weights import Weighted
from coulda.hindsight import Exact, Prior
from coulda.hindsight.source import fresh
from coulda.policies import TabularPolicy
from coulda.pomdp import Episode
from coulda.pomdp.rollout import run_actions
from coulda.storage import replace_json

INITIAL = np.array([0.7, 0.3, 0.0, 0.0])
WAIT = np.array([[0.6, 0.2, 0.2, 0.0], [0.1, 0.6, 0.0, 0.3], [0, 0, 1, 0], [0, 0, 0, 1.0]])
TREAT = np.array([[0.4, 0.05, 0.5, 0.05], [0.4, 0.3, 0.2, 0.1], [0, 0, 1, 0], [0, 0, 0, 1.0]])
HOPE = np.array([[0.3, 0.0, 0.7, 0.0], [0.6, 0.1, 0.3, 0.0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
"""What a treatment does in the model that is wrong on purpose: it never harms."""
MILD = np.array([[0.4, 0.02, 0.56, 0.02], [0.45, 0.27, 0.24, 0.04], [0, 0, 1, 0], [0, 0, 0, 1.0]])
"""In another one it harms less than it does: nothing that was logged is impossible there, only less likely."""
REWARD = np.array([0, 0, 1, -1.0]) - 0.1 * np.array([0, 1.0])[:, None, None] * np.ones((2, 4, 1))
BEHAVIOR = np.array([[0.5, 0.5], [0.6, 0.4], [0.5, 0.5], [0.5, 0.5]])
TARGETS = {
    "light": np.array([[0.4, 0.6], [0.4, 0.6], [0.5, 0.5], [0.5, 0.5]]),
    "heavy": np.array([[0.3, 0.7], [0.1, 0.9], [0.5, 0.5], [0.5, 0.5]]),
}
"""Weights of the second reach 57, and 300 episodes weigh as much as 120: there intervals are expected to fall short."""
HORIZON = 5
RESAMPLES = 200
"""Of FQE, as in `fitted_q`."""
BOUNDS = (-1.5, 1.0)
"""Of the return: death at the last step after five treatments, and recovery without any."""


@dataclass(frozen=True)
class Coverage:
    """How often intervals hold the truth."""

    repeats: int = 2000
    """Logs."""
    episodes: int = 500
    """A log."""
    weights: Literal["light", "heavy"] = "light"
    """How far the policy is from the behavior's."""
    scenarios: int = 2
    """An episode, for CF-PE."""
    level: float = 0.95
    """Nominal."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/evaluation/coverage.json")
    """Where the numbers go."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        start = time.time()
        key_log, key_model, key_fold = jax.random.split(jax.random.key(self.seed), 3)
        behavior, target, world = TabularPolicy(BEHAVIOR), TabularPolicy(TARGETS[self.weights]), model(TREAT)
        log = collect(key_log, world, behavior, self.repeats * self.episodes)
        found = self.model_free(key_fold, log, target)
        for source in (Prior(world), Exact(world)):
            estimate = self._evaluate(key_model, world, log, source)
            found[estimate.method] = [student(terms, self.level) for terms in self.split(estimate.terms)]
            bounds = [bernstein(terms, self.level, BOUNDS) for terms in self.split(estimate.terms)]
            found[f"{estimate.method}, Bernstein"] = bounds
        truth = exact_value(TARGETS[self.weights])
        result = {
            "truth": truth,
            "repeats": self.repeats,
            "episodes": self.episodes,
            "weights": self.weights,
            "level": self.level,
            "band": [0.9335, 0.9655],
            "coverage": {name: summary(intervals, truth) for name, intervals in found.items()},
            "logs whose weights are not trusted": self.distrusted_weights(log, target),
            "verdicts of the right model": self.verdicts(key_model, log, world),
            "wrong model": {name: self.mismatch(key_model, log, kernel, truth) for name, kernel in WRONG.items()},
            "seconds": round(time.time() - start, 1),
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.out, result)
        return result

    def split(self, rows: Any) -> Any:
        """Rows of all logs, log by log: `[repeats, episodes, ...]`."""
        return rows.reshape(self.repeats, self.episodes, *rows.shape[1:])

    def logs(self, weighted: Weighted) -> list[Weighted]:
        """The weights of each log."""
        pairs = zip(self.split(weighted.log_ratio), self.split(weighted.reward), strict=True)
        return [Weighted(*pair) for pair in pairs]

    def model_free(self, key: Array, log: EpisodeLog, target: TabularPolicy) -> dict[str, list[Any]]:
        """Intervals of the estimators that need no model, from their statistics on each of the logs."""
        rng = np.random.default_rng(self.seed)
        regression = default_regression(log)
        reading = read(log, {"target": target}, [seen_by(regression)])
        logs = self.logs(reading.weighted("target"))
        found = {}
        for kind, name in KINDS.items():
            if kind != "capped":  # biased on purpose, so that it has no nominal interval
                found[name] = [bca(rng, weight_statistics(one, kind), self.level, resamples=1000) for one in logs]
                found[f"{name}, Student"] = [student(weight_statistics(one, kind).terms, self.level) for one in logs]
        steps = jax.tree.map(self.split, steps_of(reading, "target", regression))
        q, v = (np.asarray(x, float) for x in cross_fit(regression, steps))
        for name, form in (("DR", False), ("WDR", True)):
            ratios = [robust_statistics(*parts, form) for parts in zip(logs, q, v, strict=True)]
            found[name] = [bca(rng, one, self.level, resamples=1000) for one in ratios]
        values, spread = (np.asarray(x, float) for x in refit(key, regression, steps, RESAMPLES))
        half = stats.t.ppf(0.5 + self.level / 2, RESAMPLES - 1) * spread
        found["FQE"] = [Interval(a - b, a + b, self.level, "bootstrap") for a, b in zip(values, half, strict=True)]
        return found

    def distrusted_weights(self, log: EpisodeLog, target: TabularPolicy) -> float:
        """The share of logs in which the intervals of weighted estimators are not claimed to be nominal."""
        logs = self.logs(read(log, {"target": target}).weighted("target"))
        return float(np.mean([worst(d.verdict for d in weight_diagnostics(one)) != "trust" for one in logs]))

    def mismatch(self, key: Array, log: EpisodeLog, kernel: np.ndarray, truth: float) -> dict[str, Any]:
        """Coverage of CF-PE and MB-PE in a wrong model, and what the diagnostics say of it on one log at a time."""
        wrong = model(kernel)
        result = {}
        for source in (Prior(wrong), Exact(wrong)):
            estimate = self._evaluate(key, wrong, log, source)
            intervals = [student(terms, self.level) for terms in self.split(estimate.terms)]
            result[estimate.method] = summary(intervals, truth)
        result["verdicts"] = self.verdicts(key, log, wrong)
        return result

    def verdicts(self, key: Array, log: EpisodeLog, world: TabularPOMDP, logs: int = 100) -> dict[str, Any]:
        """How often each verdict is given, over the first logs, by the table's own diagnostics."""
        policies, found = {"target": TabularPolicy(TARGETS[self.weights])}, []
        for i in range(min(self.repeats, logs)):
            one = log[i * self.episodes : (i + 1) * self.episodes]
            key_one = jax.random.fold_in(key, i)
            table = compare(key_one, one, policies, [OnScenarios(world, Exact(world))], precision=self.precision)
            found.append({name: estimate.verdict for name, estimate in table.estimates["target"].items()})
        return {
            name: {verdict: sum(one[name] == verdict for one in found) / len(found) for verdict in VERDICTS}
            for name in found[0]
        }

    @property
    def precision(self) -> Precision:
        """The level, and the scenarios per episode."""
        return Precision(self.level, scenarios=self.scenarios)

    def _evaluate(self, key: Array, world: TabularPOMDP, log: EpisodeLog, source: Any) -> Estimate:
        return evaluate(key, world, TabularPolicy(TARGETS[self.weights]), log, source, precision=self.precision)


@dataclass(frozen=True)
class Power:
    """How wrong a model must be to be warned of: the treatment's kernel is TREAT + size · (MILD - TREAT)."""

    sizes: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
    """0 is the right model, 1 the one in which a treatment harms less."""
    repeats: int = 200
    """Logs."""
    episodes: int = 500
    """A log."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/evaluation/power.json")
    """Where the numbers go."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the share of logs in which "mismatch" says caution or worse."""
        key_log, key = jax.random.split(jax.random.key(self.seed))
        log = collect(key_log, model(TREAT), TabularPolicy(BEHAVIOR), self.repeats * self.episodes)
        warned = {str(size): self.warned(key, log, model(TREAT + size * (MILD - TREAT))) for size in self.sizes}
        result = {"repeats": self.repeats, "episodes": self.episodes, "caution or worse": warned}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.out, result)
        return result

    def warned(self, key: Array, log: EpisodeLog, believed: TabularPOMDP) -> float:
        """The share of logs that contradict the model."""
        function = eqx.Partial(_shift, believed, Exact(believed), key)
        parts = list(over_log(function, log, HORIZON))
        shifts = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        verdicts = []
        for i in range(self.repeats):
            found, one = Shifts(), slice(i * self.episodes, (i + 1) * self.episodes)
            found.add(jax.tree.map(lambda leaf, one=one: leaf[one], shifts))
            verdicts.append(worst(diagnostic.verdict for diagnostic in found.diagnostic()))
        return float(np.mean([verdict != "trust" for verdict in verdicts]))


def _shift(believed: TabularPOMDP, source: Exact, key: Array, episode: Episode, index: Array) -> Shift:
    key = jax.random.fold_in(key, index)
    drawn, prior = (
        jax.tree.map(lambda leaf: leaf[None], one) for one in (source.infer(key, episode), fresh(key, believed))
    )
    states = jax.vmap(lambda scenario: run_actions(believed, scenario, episode.action)[0])(drawn)
    return shift(believed, drawn, states, prior, episode, source.steps)


WRONG = {"never harms": HOPE, "harms less": MILD}


def model(treat: np.ndarray) -> TabularPOMDP:
    """The world in which treatment does `treat`."""
    return TabularPOMDP(
        INITIAL,
        np.stack([WAIT, treat]),
        np.eye(4),
        REWARD,
        horizon=HORIZON,
        reparameterization="gumbel_max",
        terminal=[False, False, True, True],
    )


def exact_value(target: np.ndarray) -> float:
    """E[G] of the policy `[4, 2]`, by dynamic programming in float64."""
    value = np.zeros(4)
    for _ in range(HORIZON):
        q = np.stack([(p * (REWARD[a] + value)).sum(1) for a, p in enumerate((WAIT, TREAT))], 1)
        value = (target * q).sum(1) * np.array([1, 1, 0, 0])
    return float(INITIAL @ value)


def summary(intervals: list[Any], truth: float) -> dict[str, float]:
    """Share of intervals that hold the truth, and their mean width."""
    covered = np.mean([truth in one for one in intervals])
    return {"coverage": round(float(covered), 4), "width": round(float(np.mean([one.width for one in intervals])), 4)}


@eqx.filter_jit
def cross_fit(regression: QFunction, steps: Steps) -> tuple[Array, Array]:
    """What `doubly_robust.cross_fitted` computes, for all logs at once: Q `[R, N, T]` and V `[R, N, T + 1]`.

    Episodes of one log are in random order already, so that dealing them in turn is fair.
    """
    count = steps.reward.shape[1]
    fold = jnp.arange(count) % FOLDS

    def one(log: Steps) -> tuple[Array, Array]:
        fits = [fit_values(regression, log, (fold != number).astype(float)) for number in range(FOLDS)]
        q, v = (jnp.stack([getattr(fit, name) for fit in fits]) for name in ("q", "v"))
        alive = jnp.concatenate([log.live[:, :1], log.continues], 1)
        held_out = jnp.arange(count)
        return jnp.where(log.live, q[fold, held_out], 0.0), jnp.where(alive, v[fold, held_out], 0.0)

    return jax.lax.map(one, steps, batch_size=100)


@eqx.filter_jit
def refit(key: Array, regression: QFunction, steps: Steps, resamples: int) -> tuple[Array, Array]:
    """FQE's value on each log, and its standard deviation over `resamples` bootstrap refits, `[R]` each."""
    n = steps.reward.shape[1]

    def value(log: Steps, counts: Array) -> Array:
        return counts @ fit_values(regression, log, counts).v[:, 0] / n

    def one(pair: tuple[Array, Steps]) -> tuple[Array, Array]:
        key, log = pair
        draws = jax.random.randint(key, (resamples, n), 0, n)
        counts = jax.vmap(lambda rows: jnp.bincount(rows, length=n).astype(float))(draws)
        return value(log, jnp.ones(n)), jnp.std(jax.vmap(lambda c: value(log, c))(counts), ddof=1)

    return jax.lax.map(one, (jax.random.split(key, steps.reward.shape[0]), steps), batch_size=10)


if __name__ == "__main__":
    commands = {"coverage": Coverage, "power": Power}
    print(json.dumps(tyro.extras.subcommand_cli_from_dict(commands).run(), indent=1))  # noqa: T201
