"""`compare`: one table of all estimators for all policies, with paired differences and the episodes that flip."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.doubly_robust import DoublyRobust
from coulda.evaluation.estimate import Diagnostic, Estimate, Interval, Verdict, plain
from coulda.evaluation.fitted_q import FittedQ
from coulda.evaluation.importance import KINDS, ImportanceSampling
from coulda.evaluation.intervals import Precision, Returns, student
from coulda.evaluation.method import Method, Run, reading_for
from coulda.evaluation.on_scenarios import OnScenarios, evaluate_sources
from coulda.evaluation.reading import Log
from coulda.evaluation.self_checks import as_known_by
from coulda.executors import Executor
from coulda.hindsight import ScenarioSource
from coulda.pomdp import POMDP, Policy
from coulda.pomdp.batching import raised_as_they_are
from coulda.progress import Advance


@dataclass(frozen=True)
class Difference:
    """How much better one policy is than another, on the same noise."""

    method: str
    policies: tuple[str, str]
    value: float
    """E[G] of the first minus that of the second."""
    interval: Interval
    variance_ratio: float
    """Var of an unpaired difference over that of the paired one: how many times fewer episodes pairing needs."""


@dataclass(frozen=True)
class Comparison:
    """The table: estimates by policy and method."""

    estimates: dict[str, dict[str, Estimate]]
    """`{policy: {method: Estimate}}`."""
    logged_returns: np.ndarray
    """G of each logged episode, `[N]`."""
    truth: dict[str, float]
    """E[G] of each policy, where it is known."""
    asked: Returns = field(default_factory=Returns)
    """What is asked of returns."""

    def error(self, policy: str, method: str) -> float | None:
        """|estimate - truth| / |truth|, the paper's relative error; None where one is not known or the truth is 0."""
        value = self.estimates[policy][method].value
        if value is None or not self.truth.get(policy):
            return None
        return abs(value - self.truth[policy]) / abs(self.truth[policy])

    def difference(self, method: str, first: str, second: str, level: float = 0.95) -> Difference:
        """First policy minus second by one method, paired episode by episode, with a Student interval."""
        a, b = self.estimates[first][method], self.estimates[second][method]
        if a.value is None or b.value is None:
            raise CouldaError(f"{method} has no value for both of {first} and {second}: {a.status}, {b.status}")
        if method == "FQE":
            raise CouldaError("FQE has no terms of single episodes to pair; use another method")
        paired = a.terms - b.terms
        variance = paired.var(ddof=1)
        ratio = float((a.terms.var(ddof=1) + b.terms.var(ddof=1)) / variance) if variance > 0 else float("inf")
        return Difference(method, (first, second), float(paired.mean()), student(paired, level), ratio)

    def flips(self, policy: str, method: str, threshold: float) -> list[tuple[int, float, float]]:
        """Episodes whose return would have crossed `threshold`: (episode, logged, counterfactual), largest first."""
        would = self.estimates[policy][method].terms
        crossed = np.flatnonzero((self.logged_returns >= threshold) != (would >= threshold))
        order = crossed[np.argsort(-np.abs(would - self.logged_returns)[crossed], kind="stable")]
        return [(int(i), float(self.logged_returns[i]), float(would[i])) for i in order]

    def plain(self) -> dict[str, Any]:
        """The table in the types of JSON."""
        return {
            "policies": {
                name: {method: plain(e) | {"relative error": self.error(name, method)} for method, e in methods.items()}
                for name, methods in self.estimates.items()
            },
            "asked": asdict(self.asked),
            "truth": self.truth,
            "logged": {"episodes": len(self.logged_returns), "mean": float(self.logged_returns.mean())},
        }

    def rows(self) -> Iterator[tuple[str, Estimate]]:
        """All estimates with their policy, in order."""
        for policy, methods in self.estimates.items():
            for estimate in methods.values():
                yield policy, estimate


@raised_as_they_are()
def compare(
    key: Array,
    log: Log,
    policies: Mapping[str, Policy],
    methods: Sequence[Method] | None = None,
    *,
    precision: Precision | None = None,
    returns: Returns | None = None,
    truth: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> Comparison:
    """Every policy by every method, on one log.

    The log is read once for what all methods need of it, and once more if policies are run on scenarios; each policy is
    run over it once. A method's draws do not depend on which others are in the table.

    Args:
        key: consumed.
        log: in memory or on disk.
        policies: by name.
        methods: such as `[*model_free(log), OnScenarios(model, Exact(model))]`; those that need no model by default.
        precision: the level and the kind of the intervals, and the scenarios per episode.
        returns: what is asked of them, such as `Returns(discount=0.99)`; undiscounted by default.
        truth: E[G] of each policy, where it is known; where it is not, what `OnPolicy` finds.
        executor: who runs policies on scenarios, batch by batch of the log. Its work is `OnScenarios.work` of the same
            log, policies, precision and returns, and is refused where it is not.
        advance: told how many episodes more are done, where scenarios are drawn for them, which takes long.
    """
    methods = model_free(log) if methods is None else list(methods)
    check_table(log, policies, methods)
    run = Run(precision or Precision(), executor, advance or Run().advance)
    reading = reading_for(methods, log, policies, returns)
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in policies}
    for method in methods:
        for name, found in method.rows(key, reading, run).items():
            estimates[name] |= {estimate.method: estimate for estimate in found}
    estimates = {name: told_apart(rows) for name, rows in estimates.items()}
    known = {name: rows["on-policy"].value for name, rows in estimates.items() if "on-policy" in rows}
    known = {name: value for name, value in known.items() if value is not None}
    return Comparison(estimates, reading.returns, known | dict(truth or {}), reading.asked)


def check_table(log: Log, policies: Mapping[str, Policy], methods: Sequence[Method]) -> None:
    """Shapes before numbers: every policy must fit the log, and what the methods rest on."""
    if not policies:
        raise CouldaError("there are no policies to evaluate; give {name: policy}")
    if not len(log):
        raise CouldaError("the log has no episodes")
    for name, policy in policies.items():
        if not isinstance(policy, Policy):
            kind = type(policy).__name__
            raise CouldaError(f"policy '{name}' is a {kind}, not a Policy; as_policy makes one of another framework's")
        try:
            policy.check_spaces(log.schema.observation_space, log.schema.action_space)
            for method in methods:
                method.check_policy(policy)
        except CouldaError as error:
            raise CouldaError(f"policy '{name}' does not fit: {error}") from error
    for method in methods:
        method.check_log(log)


def model_free(log: Log) -> list[Method]:
    """All methods that need no model; fitted values only where actions are choices or numbers, not trees of them."""
    found: list[Method] = [ImportanceSampling(kind) for kind in KINDS]
    if isinstance(log.schema.action_space, spaces.Discrete | spaces.Box):
        found += [DoublyRobust(), DoublyRobust(weighted=True), FittedQ()]
    return found


@raised_as_they_are()
def evaluate(
    key: Array,
    model: POMDP,
    policy: Policy,
    log: Log,
    scenarios: ScenarioSource | str = "auto",
    *,
    precision: Precision | None = None,
    returns: Returns | None = None,
    advance: Advance | None = None,
) -> Estimate:
    """The expected return of `policy` in `model`, on scenarios drawn for each logged episode: one row of the table.

    Args:
        key: consumed; the same key draws the same scenarios for any policy.
        model: the SCM we believe in.
        policy: the target π.
        log: the logged episodes. MB-PE takes from it the number of scenarios only.
        scenarios: the source, such as `hindsight.given(steps=50)`, or its name; `choose`n for the model by default.
            `Prior(model)` is MB-PE.
        precision: the level and the kind of the interval, and the scenarios per episode.
        returns: what is asked of them; undiscounted by default.
        advance: told how many episodes more are done.
    """
    method = OnScenarios(model, scenarios)
    check_table(log, {"policy": policy}, [method])
    run = Run(precision or Precision(), advance=advance or Run().advance)
    source, why = method.choice
    reading = reading_for([], log, {"policy": policy}, returns)
    rows = evaluate_sources(key, model, [source], reading, run)["policy"]
    found = as_known_by(reading, next(iter(rows.values())))
    return replace(found, details=found.details | {"scenarios from": why})


ASSUMPTIONS = {"on-policy": 0, "IS": 1, "WIS": 1, "PDIS": 1, "WPDIS": 1, "DR": 2, "WDR": 2}
"""How much a method takes for granted: nothing; the behavior's probabilities; those, or fitted values. All others rest
on something of their own: a cap, fitted values, a model."""
SOMETHING_ELSE = 3


def assumptions(method: str) -> int:
    """Where a method stands in that order; fewer assumptions come first.

    >>> sorted(["MB-PE", "DR", "WIS"], key=assumptions)
    ['WIS', 'DR', 'MB-PE']
    """
    return ASSUMPTIONS.get(method, SOMETHING_ELSE)


def told_apart(rows: dict[str, Estimate]) -> dict[str, Estimate]:
    """The rows of one policy; those that are trusted and contradict each other say so.

    Of two intervals that are apart, the one that takes more for granted is warned of, and not to be trusted where the
    gap is wider than both of them; the other is as good as it was. Where neither does, both are warned of. And each is
    held against the sharpest of those that take less for granted: a difference beyond both errors is a warning too.
    """
    trusted = [row for row in rows.values() if row.verdict == "trust" and row.interval is not None]
    found: dict[str, list[Diagnostic]] = {}
    for i, one in enumerate(trusted):
        for other in trusted[i + 1 :]:
            gap = _gap(one, other)
            if gap <= _rounding(one):
                continue
            first, second = sorted((one, other), key=lambda row: assumptions(row.method))
            equals = assumptions(first.method) == assumptions(second.method)
            far = gap > _width(first) + _width(second) and not equals
            worse: Verdict = "do not trust" if far else "caution"
            found.setdefault(second.method, []).append(_contradicted(second, first, gap, worse))
            if equals:
                found.setdefault(first.method, []).append(_contradicted(first, second, gap, "caution"))
    for one in trusted:
        safer = [row for row in trusted if assumptions(row.method) < assumptions(one.method)]
        if one.method not in found and safer:
            sharpest = min(safer, key=_width)
            error = np.hypot(_width(one), _width(sharpest)) / 2
            if (gap := _difference(one, sharpest)) > error + _rounding(one):
                found[one.method] = [_contradicted(one, sharpest, gap, "caution")]
    return {
        method: replace(row, diagnostics=(*row.diagnostics, *found.get(method, ()))) for method, row in rows.items()
    }


def _contradicted(mine: Estimate, other: Estimate, gap: float, verdict: Verdict) -> Diagnostic:
    sentence = f"{mine.method} says {_said(mine)} and {other.method} says {_said(other)}: one of them is wrong."
    return Diagnostic("agreement", gap, verdict, sentence)


def _said(row: Estimate) -> str:
    assert row.interval is not None
    return f"{row.value:.3g} ({row.interval.low:.3g} to {row.interval.high:.3g})"


def _gap(one: Estimate, other: Estimate) -> float:
    """How far the intervals are apart; below 0 where they overlap."""
    assert one.interval is not None
    assert other.interval is not None
    return max(one.interval.low - other.interval.high, other.interval.low - one.interval.high)


def _difference(one: Estimate, other: Estimate) -> float:
    """Of the values."""
    assert one.value is not None
    assert other.value is not None
    return abs(one.value - other.value)


def _rounding(row: Estimate) -> float:
    """What sums of numbers of single precision cannot tell apart: no contradiction, where nothing varies."""
    assert row.value is not None
    return 1e-4 * (1 + abs(row.value))


def _width(row: Estimate) -> float:
    return 0.0 if row.interval is None else row.interval.width
