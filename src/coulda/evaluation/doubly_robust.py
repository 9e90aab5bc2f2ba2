"""Doubly robust estimates: fitted values, corrected by importance-weighted temporal differences.

DR (Jiang & Li, 2016) and its weighted form WDR (Thomas & Brunskill, 2016), with δ_t = r_t + V(h_{t+1}) - Q(o_t, a_t):

    DR  = mean_i [ V(h_1^i) + Σ_t ρ_t^i δ_t^i ]
    WDR = mean_i V(h_1^i) + Σ_t (Σ_i ρ_t^i δ_t^i / Σ_i ρ_t^i)

They are right where either the weights or the values are. The values at an episode are fitted without it: the
episodes are dealt into folds, and each fold is evaluated with values of the others (cross-fitting).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import log_diagnostics, weight_diagnostics
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.fitted_q import Gathered, QFunction, fit_values, gather, past_matters
from coulda.evaluation.history import Log, Weighted, generator, known_probabilities, weigh
from coulda.evaluation.importance import missing_probabilities, no_support
from coulda.evaluation.intervals import Ratios, interval
from coulda.pomdp import Policy
from coulda.weights import effective_sample_size

FOLDS = 5


def doubly_robust(
    key: Array,
    policy: Policy,
    log: Log,
    regression: QFunction | None = None,
    *,
    weighted_form: bool = False,
    level: float = 0.95,
    interval_kind: str = "bca",
    weighted: Weighted | None = None,
) -> Estimate:
    """The expected return of `policy` by DR, or by WDR where `weighted_form`; see `importance_sampling`."""
    name = "WDR" if weighted_form else "DR"
    if weighted is None:
        if not known_probabilities(log):
            return missing_probabilities(name, log)
        weighted = weigh(policy, log)
    weights = np.exp(weighted.log_cumulative[:, -1])
    if not (weights > 0).any():
        return no_support(name, log)
    key_folds, key_interval, key_markov = jax.random.split(key, 3)
    gathered = gather(policy, log, regression)
    q, v = cross_fitted(key_folds, gathered)
    ratios = statistics(weighted, q, v, weighted_form)
    return Estimate(
        name,
        ratios.value,
        interval(generator(key_interval), ratios, level, interval_kind),
        ratios.terms,
        float(effective_sample_size(weights)),
        diagnostics=weight_diagnostics(weights) + _leaning(key_markov, gathered) + log_diagnostics(log),
        details={"value without correction": float(v[:, 0].mean())},
    )


def statistics(weighted: Weighted, q: np.ndarray, v: np.ndarray, weighted_form: bool) -> Ratios:
    """The estimator as means over episodes, from Q `[N, T]` and V `[N, T + 1]`, both zero after the end."""
    delta = weighted.reward + v[:, 1:] - q
    log_rho = weighted.log_cumulative
    if not weighted_form:
        return Ratios.mean_of(v[:, 0] + (np.exp(log_rho) * delta).sum(1))
    top = log_rho.max(0)
    rho = np.exp(log_rho - np.where(np.isfinite(top), top, 0.0))
    return Ratios(v[:, 0], rho * delta, rho)


def _leaning(key: Array, gathered: Gathered) -> tuple[Diagnostic, ...]:
    """Of the values that are corrected: where they are no values of states, only the weights can be right."""
    return tuple(
        d
        if d.verdict == "trust"
        else replace(d, verdict="caution", sentence=f"{d.sentence} Only the weights correct it.")
        for d in past_matters(key, gathered)
    )


def cross_fitted(key: Array, gathered: Gathered) -> tuple[np.ndarray, np.ndarray]:
    """Q(o_t, a_t) `[N, T]` and V(h_t) `[N, T + 1]` of each episode, fitted to the other folds; zero after the end."""
    steps, n = gathered.steps, len(gathered.steps.reward)
    fold = np.asarray(jax.random.permutation(key, n)) % min(FOLDS, n)
    live = np.asarray(steps.live)
    q, v = np.zeros(live.shape), np.zeros((n, live.shape[1] + 1))
    for number in range(min(FOLDS, n)):
        held_out = fold == number
        values = fit_values(gathered.regression, steps, jnp.asarray(~held_out | (n == 1), float))
        q[held_out], v[held_out] = np.asarray(values.q)[held_out], np.asarray(values.v)[held_out]
    # V after the last step counts only where the episode would have gone on.
    alive = np.concatenate([live[:, :1], np.asarray(steps.continues)], 1)
    return q * live, v * alive
