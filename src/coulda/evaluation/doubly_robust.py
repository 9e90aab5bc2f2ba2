"""Doubly robust estimates: fitted values, corrected by importance-weighted temporal differences.

DR (Jiang & Li, 2016) and its weighted form WDR (Thomas & Brunskill, 2016), with temporal differences
δ_t = γ^t (r_t + γ V(h_{t+1}) - Q(o_t, a_t)):

    DR  = mean_i [ V(h_1^i) + Σ_t ρ_t^i δ_t^i ]
    WDR = mean_i V(h_1^i) + Σ_t (Σ_i ρ_t^i δ_t^i / Σ_i ρ_t^i)

They are right where either the weights or the values are. The values at an episode are fitted without it: the
episodes are dealt into folds, and each fold is evaluated with values of the others (cross-fitting).
"""

from dataclasses import dataclass, replace

import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import log_diagnostics, spread_diagnostic, weight_diagnostics
from coulda.evaluation.estimate import Diagnostic, Estimate, SinglePolicyMethod, Verdict
from coulda.evaluation.fitted_q import (
    chosen_regression,
    cross_fitted,
    default_regression,
    fit_checks,
    missing_actions,
    seen_by,
    steps_of,
)
from coulda.evaluation.importance import missing_probabilities, unusable_weights
from coulda.evaluation.intervals import Precision, Ratios
from coulda.evaluation.propensities import propensity_diagnostic
from coulda.evaluation.reading import Features, Log, Reading, generator
from coulda.evaluation.regressions import QFunction
from coulda.evaluation.weights import Weighted
from coulda.keys import apart
from coulda.noise import effective_sample_size


@dataclass(frozen=True)
class DoublyRobust(SinglePolicyMethod):
    """The expected return by DR, or by WDR where `weighted`."""

    weighted: bool = False
    """Whether weights are normalized at each step."""
    regression: QFunction | None = None
    """A table for discrete observations and linear for others by default."""

    @property
    def name(self) -> str:
        """DR or WDR."""
        return "WDR" if self.weighted else "DR"

    def features(self, log: Log) -> Features:
        """What the regression sees."""
        return seen_by(self.regression or default_regression(log))

    def of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        """The estimate of one policy; `key` deals the folds and is for the bootstrap."""
        if not reading.has_probabilities:
            return missing_probabilities(self.name, reading)
        if policy not in reading.probabilities:
            return missing_actions(self.name, reading)
        weighted = reading.weighted(policy)
        if (refused := unusable_weights(self.name, weighted, reading)) is not None:
            return refused
        key_folds, key_interval, key_markov = apart(key, 3)
        regression = self.regression or chosen_regression(reading)
        steps = steps_of(reading, policy, regression)
        q, v = cross_fitted(key_folds, regression, steps)
        ratios = statistics(weighted, q, v, self.weighted)
        found = precision.of_weighted(generator(key_interval), ratios)
        about_log = propensity_diagnostic(reading) + log_diagnostics(reading, goes_on=True)
        checks = fit_checks(key_markov, key_folds, reading, regression, steps, found)
        rests = bool(reading.cut_short) or reading.log.schema.behavior == "fitted"
        return Estimate(
            self.name,
            ratios.value,
            found,
            ratios.terms,
            float(effective_sample_size(weighted.relative)),
            diagnostics=reading.once(("weights", policy), lambda: weight_diagnostics(weighted))
            + _corrected(checks, rests)
            + spread_diagnostic(ratios.terms)
            + about_log,
            details={"value without correction": float(v[:, 0].mean())},
        )


def statistics(weighted: Weighted, q: np.ndarray, v: np.ndarray, weighted_form: bool) -> Ratios:
    """The estimator as means over episodes, from γ^t Q `[N, T]` and γ^t V `[N, T + 1]`, both zero after the end."""
    delta = weighted.reward + v[:, 1:] - q
    if not weighted_form:
        return Ratios.mean_of(v[:, 0] + (weighted.cumulative * delta).sum(1))
    return Ratios(v[:, 0], weighted.scaled * delta, weighted.scaled)


def _corrected(found: tuple[Diagnostic, ...], rests_on_values: bool) -> tuple[Diagnostic, ...]:
    """Of the values that are corrected: where they are no values of states, only the weights can be right.

    With logged probabilities they are, and whether they carry enough is asked of them alone; after an episode was cut
    off, values stand for what nobody corrects, and weights that were fitted may be wrong too.
    """
    verdict: Verdict = "caution" if rests_on_values else "trust"
    return tuple(
        d
        if d.verdict == "trust"
        else replace(d, verdict=verdict, sentence=f"{d.sentence} Only the weights correct it.")
        for d in found
    )
