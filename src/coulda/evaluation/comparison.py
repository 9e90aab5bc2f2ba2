"""`compare`: one table of all estimators for all policies, with paired differences and the episodes that flip."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from jax import Array
from scipy import stats

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.doubly_robust import doubly_robust
from coulda.evaluation.estimate import Diagnostic, Estimate, Interval
from coulda.evaluation.fitted_q import QFunction, fitted_q
from coulda.evaluation.history import Log, known_probabilities, weigh
from coulda.evaluation.importance import KINDS, importance_sampling
from coulda.evaluation.intervals import student
from coulda.evaluation.model_checks import support_diagnostic
from coulda.evaluation.on_scenarios import evaluate_policies, evaluate_sources, on_policy
from coulda.evaluation.sensitivity import reparameterization_diagnostic
from coulda.executors import Executor
from coulda.hindsight import Prior, ScenarioSource
from coulda.pomdp import POMDP, Policy


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

    def error(self, policy: str, method: str) -> float | None:
        """|estimate - truth| / |truth|, the paper's relative error; None where either is not known."""
        value = self.estimates[policy][method].value
        if value is None or policy not in self.truth:
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

    def rows(self) -> Iterator[tuple[str, Estimate]]:
        """All estimates with their policy, in order."""
        for policy, methods in self.estimates.items():
            for estimate in methods.values():
                yield policy, estimate


def compare(
    key: Array,
    model: POMDP | None,
    policies: Mapping[str, Policy],
    episodes: Log,
    scenarios: ScenarioSource | None = None,
    *,
    steps: Sequence[int] = (),
    environment: POMDP | None = None,
    truth: Mapping[str, float] | None = None,
    regression: QFunction | None = None,
    level: float = 0.95,
    on_policy_episodes: int = 10_000,
    free: bool = True,
    estimated_from: Log | None = None,
    alternatives: Mapping[str, tuple[POMDP, ScenarioSource]] | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Comparison:
    """Every estimator that applies, for every policy.

    Args:
        key: consumed.
        model: for MB-PE and CF-PE; without it the table is model-free.
        policies: by name.
        episodes: the log.
        scenarios: a source of hindsight, for CF-PE at its own number of steps and at each of `steps`.
        steps: values of t.
        environment: where policies may be run, for on-policy Monte Carlo, which then is the truth.
        truth: E[G] of each policy where it is known otherwise.
        regression: of FQE, DR and WDR; see `default_regression`.
        level: of the intervals.
        on_policy_episodes: how many to run in the environment.
        free: whether the table has the model-free estimators.
        estimated_from: the log that the model was estimated from, where it was; it is then told how much of what
            the policies do there rests on few examples.
        alternatives: the same model under other reparameterizations, by name, each with its source: what CF-PE says
            must not depend on which one was chosen.
        executor: works on MB-PE and CF-PE, piece by piece of the log; see `evaluate_sources`.
        **options: of `evaluate_policies`.
    """
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in policies}
    # Within a kind of estimator all policies share a key: the same resamples, the same scenarios, the same noise.
    key_free, key_model, key_environment, key_support = jax.random.split(key, 4)
    for name, policy in policies.items() if free else ():
        for estimate in model_free(key_free, policy, episodes, regression, level):
            estimates[name][estimate.method] = estimate
    if model is not None:
        sources = model_sources(model, scenarios, steps)
        shared = {"level": level, "executor": executor, **options}
        for found in evaluate_sources(key_model, model, policies, episodes, sources, **shared):
            for name, estimate in found.items():
                estimates[name][estimate.method] = estimate
        for name, methods in estimates.items():
            _blame_model(methods)
            if estimated_from is not None:
                thin = support_diagnostic(key_support, model, policies[name], estimated_from)
                _add_diagnostic(methods, thin)
        for other, (other_model, source) in (alternatives or {}).items():
            found = evaluate_policies(key_model, other_model, policies, episodes, source, level=level, **options)
            for name, estimate in found.items():
                mine = estimates[name][estimate.method]
                moved = reparameterization_diagnostic(mine, other, estimate)
                estimates[name][estimate.method] = replace(mine, diagnostics=(*mine.diagnostics, moved))
    known = dict(truth or {})
    if environment is not None:
        for name, policy in policies.items():
            estimate = on_policy(key_environment, environment, policy, on_policy_episodes, level)
            estimates[name][estimate.method] = estimate
            known.setdefault(name, estimate.value or 0.0)
    returns = np.concatenate([batch.episode_returns for batch in episodes.batches()])
    return Comparison(estimates, returns, known)


def _blame_model(methods: dict[str, Estimate]) -> None:
    """What hindsight finds wrong with the model is wrong with MB-PE too, which by itself cannot know."""
    for name in [name for name in methods if name.startswith("CF-PE")]:
        prior, hindsight = methods["MB-PE"], methods[name]
        moved = hindsight_diagnostic(hindsight, prior)
        methods[name] = replace(hindsight, diagnostics=(*hindsight.diagnostics, moved))
        found = [d for d in hindsight.diagnostics if d.name in ("replay", "mismatch")]
        others = [d for d in prior.diagnostics if d.name not in ("replay", "mismatch", moved.name)]
        methods["MB-PE"] = replace(prior, diagnostics=(*found, moved, *others))


def _add_diagnostic(methods: dict[str, Estimate], diagnostic: Diagnostic) -> None:
    """To every estimate that rests on the model."""
    for name in [name for name in methods if name.startswith(("MB-PE", "CF-PE"))]:
        methods[name] = replace(methods[name], diagnostics=(*methods[name].diagnostics, diagnostic))


def hindsight_diagnostic(hindsight: Estimate, prior: Estimate) -> Diagnostic:
    """Whether hindsight moves the value: in a right model it does not (Corollary 1), paired on the same noise."""
    paired = hindsight.terms - prior.terms
    error = paired.std(ddof=1) / np.sqrt(len(paired))
    chance = float(2 * stats.norm.sf(abs(paired.mean()) / error)) if error > 0 else 1.0
    sentence = f"Hindsight moves the value by {paired.mean():+.3g} ± {error:.2g}"
    if chance >= UNUSUAL:
        return Diagnostic("hindsight", chance, "trust", f"{sentence}, which is nothing.")
    text = f"{sentence}, which a right model would do with probability {chance:.0e}: its beliefs about noise are wrong."
    return Diagnostic("hindsight", chance, "do not trust" if chance < RARE else "caution", text)


def model_sources(model: POMDP, scenarios: ScenarioSource | None, steps: Sequence[int] = ()) -> list[ScenarioSource]:
    """The sources of the rows that rest on the model: the prior for MB-PE, then those of CF-PE."""
    return [Prior(model), *hindsights(scenarios, steps)]


def hindsights(scenarios: ScenarioSource | None, steps: Sequence[int]) -> list[ScenarioSource]:
    """The source at its own t, and at each of `steps` but 0, where it is the prior."""
    if scenarios is None:
        return []
    return [scenarios.given(t) for t in steps if t > 0] or [scenarios]


def model_free(
    key: Array, policy: Policy, log: Log, regression: QFunction | None = None, level: float = 0.95
) -> list[Estimate]:
    """All estimators that need no model; those for discrete actions only where the actions are."""
    weighted = weigh(policy, log) if known_probabilities(log) else None
    arguments: dict[str, Any] = {"level": level, "weighted": weighted}
    *keys, key_dr, key_wdr, key_fqe = jax.random.split(key, len(KINDS) + 3)
    found = [importance_sampling(k, policy, log, kind, **arguments) for k, kind in zip(keys, KINDS, strict=True)]
    if not isinstance(log.schema.action_space, spaces.Discrete):
        return found
    return [
        *found,
        doubly_robust(key_dr, policy, log, regression, **arguments),
        doubly_robust(key_wdr, policy, log, regression, weighted_form=True, **arguments),
        fitted_q(key_fqe, policy, log, regression, level=level),
    ]
