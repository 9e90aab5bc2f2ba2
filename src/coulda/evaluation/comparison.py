"""`compare`: one table of all estimators for all policies."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import as_known_by
from coulda.evaluation.doubly_robust import DoublyRobust
from coulda.evaluation.estimate import Diagnostic, Estimate, Method, Run, Verdict, assumptions, reading_for
from coulda.evaluation.fitted_q import FittedQ
from coulda.evaluation.importance import KINDS, ImportanceSampling
from coulda.evaluation.intervals import Precision, Returns
from coulda.evaluation.on_scenarios import OnScenarios, evaluate_sources
from coulda.evaluation.reading import Log
from coulda.evaluation.table import ByName, Comparison
from coulda.executors import Executor
from coulda.hindsight import ScenarioSource
from coulda.noise import check_key
from coulda.pomdp import POMDP, Policy
from coulda.pomdp.batching import raised_as_they_are
from coulda.progress import Advance, followed
from coulda.scales import unit_of


@raised_as_they_are()
def compare(
    key: Array,
    log: Log,
    policies: Mapping[str, Policy],
    methods: Sequence[Method] | None = None,
    *,
    precision: Precision | None = None,
    returns: Returns | None = None,
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
        executor: who runs policies on scenarios, batch by batch of the log. Its work is `OnScenarios.work` of the same
            log, policies, precision and returns, and is refused where it is not.
        advance: told how many episodes more are done, where scenarios are drawn for them, which takes long.
    """
    check_arguments(key, log)
    methods = model_free(log) if methods is None else _check_methods(methods)
    check_table(log, policies, methods)
    reading = reading_for(methods, log, policies, returns)
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in policies}
    with _followed(advance, log, any(isinstance(method, OnScenarios) for method in methods)) as tell:
        run = Run(precision or Precision(), executor, tell)
        for method in methods:
            for name, found in method.rows(key, reading, run).items():
                estimates[name] |= {estimate.method: estimate for estimate in found}
    unit = float(unit_of(reading.reward))
    estimates = ByName({name: ByName(told_apart(rows, unit)) for name, rows in estimates.items()})
    known = {name: rows["on-policy"].value for name, rows in estimates.items() if "on-policy" in rows}
    truth = {name: value for name, value in known.items() if value is not None}
    return Comparison(estimates, reading.returns, truth, reading.asked)


def _followed(advance: Advance | None, log: Log, counted: bool) -> AbstractContextManager[Advance]:
    """Who is told of episodes: a bar where nobody is and a notebook looks on, which takes IPython."""
    if advance is None and "IPython" in sys.modules:
        return followed(None, f"evaluating on {len(log):,} episodes", len(log) if counted else None)
    return nullcontext(advance or Run().advance)


def check_arguments(key: Any, log: Any) -> None:
    """A key, and then a log."""
    check_key(key)
    if not hasattr(log, "schema"):
        said = "; open_log reads one" if isinstance(log, str) else ""
        raise CouldaError(f"log is a {type(log).__name__}, not a log of episodes{said}")


def check_table(log: Log, policies: Mapping[str, Policy], methods: Sequence[Method]) -> None:
    """Shapes before numbers: every policy must fit the log, and what the methods rest on."""
    if not isinstance(policies, Mapping):
        raise CouldaError(f"policies is a {type(policies).__name__}, not a dict; give {{'a name': policy}}")
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


def _check_methods(methods: Sequence[Any]) -> list[Method]:
    for method in methods:
        if not isinstance(method, Method):
            raise CouldaError(
                f"methods has {method!r}, which is no method; give [*model_free(log), OnScenarios(model)]"
            )
    return list(methods)


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
    check_arguments(key, log)
    method = OnScenarios(model, scenarios)
    check_table(log, {"policy": policy}, [method])
    source, why = method.choice
    reading = reading_for([], log, {"policy": policy}, returns)
    with _followed(advance, log, counted=True) as tell:
        run = Run(precision or Precision(), advance=tell)
        rows = evaluate_sources(key, model, [source], reading, run, {})["policy"]
    found = as_known_by(reading, next(iter(rows.values())))
    return replace(found, details=found.details | {"scenarios from": why})


def told_apart(rows: dict[str, Estimate], unit: float) -> dict[str, Estimate]:
    """The rows of one policy; those that are trusted and contradict each other say so.

    Of two intervals that are apart, the one that takes more for granted is warned of, and not to be trusted where the
    gap is wider than both of them; the other is as good as it was. Where neither does, both are warned of. And each is
    held against the sharpest of those that take less for granted: a difference beyond both errors is a warning too.

    Args:
        rows: by method.
        unit: of rewards near 0.
    """
    trusted = [row for row in rows.values() if row.verdict == "trust" and row.interval is not None]
    found: dict[str, list[Diagnostic]] = {}
    for i, one in enumerate(trusted):
        for other in trusted[i + 1 :]:
            gap = _gap(one, other)
            if gap <= _rounding(one, unit):
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
            if (gap := _difference(one, sharpest)) > error + _rounding(one, unit):
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


def _rounding(row: Estimate, unit: float) -> float:
    """What sums of numbers of single precision cannot tell apart: no contradiction, where nothing varies."""
    assert row.value is not None
    return 1e-4 * (unit + abs(row.value))


def _width(row: Estimate) -> float:
    return 0.0 if row.interval is None else row.interval.width
