"""Importance sampling: reweigh logged returns by π/μ. Needs no model, and the behavior's probabilities.

With ρ_t = Π_{s ≤ t} π(a_s | h_s) / μ(a_s | h_s) and ρ = ρ_T (Precup et al., 2000; Thomas, 2015):

| kind                    | name  | θ                                               |
|-------------------------|-------|-------------------------------------------------|
| "ordinary"              | IS    | mean_i ρ^i G^i                                  |
| "weighted"              | WIS   | Σ_i ρ^i G^i / Σ_i ρ^i                           |
| "per_decision"          | PDIS  | mean_i Σ_t ρ_t^i r_t^i                          |
| "weighted_per_decision" | WPDIS | Σ_t (Σ_i ρ_t^i r_t^i / Σ_i ρ_t^i)               |
| "capped"                | CIS   | mean_i min(ρ^i, c) G^i, c = √N (Ionides, 2008)  |

An episode that ends early keeps its last ρ and is paid nothing more.
"""

from typing import Literal

import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import log_diagnostics, weight_diagnostics
from coulda.evaluation.estimate import Estimate, unsupported
from coulda.evaluation.history import Log, Weighted, generator, known_probabilities, weigh
from coulda.evaluation.intervals import Ratios, interval
from coulda.pomdp import Policy
from coulda.weights import effective_sample_size

Kind = Literal["ordinary", "weighted", "per_decision", "weighted_per_decision", "capped"]
KINDS: dict[Kind, str] = {
    "ordinary": "IS",
    "weighted": "WIS",
    "per_decision": "PDIS",
    "weighted_per_decision": "WPDIS",
    "capped": "CIS",
}


def importance_sampling(
    key: Array,
    policy: Policy,
    log: Log,
    kind: Kind = "weighted",
    *,
    cap: float | None = None,
    level: float = 0.95,
    interval_kind: str = "bca",
    bounds: tuple[float, float] | None = None,
    weighted: Weighted | None = None,
) -> Estimate:
    """The expected return of `policy`, from a log of another one.

    Args:
        key: consumed by the bootstrap.
        policy: the target π; it may be recurrent.
        log: with behavior probabilities, logged or fitted.
        kind: see the table above.
        cap: the largest weight where `kind` is "capped"; √N by default.
        level: of the interval.
        interval_kind: "bca", "student" or, given `bounds` of the terms, "bernstein".
        bounds: the least and the largest possible term, such as cap · return.
        weighted: `weigh(policy, log)`, where it was computed before.
    """
    name = KINDS[kind]
    if weighted is None:
        if not known_probabilities(log):
            return missing_probabilities(name, log)
        weighted = weigh(policy, log)
    weights = total_weights(weighted, kind, cap)
    if not (weights > 0).any():
        return no_support(name, log)
    ratios = statistics(weighted, kind, cap)
    return Estimate(
        name,
        ratios.value,
        interval(generator(key), ratios, level, interval_kind, bounds),
        ratios.terms,
        float(effective_sample_size(weights)),
        diagnostics=weight_diagnostics(weights, capped=kind == "capped") + log_diagnostics(log),
        details={"largest weight": float(weights.max()), "mean weight": float(weights.mean())},
    )


def statistics(weighted: Weighted, kind: Kind, cap: float | None = None) -> Ratios:
    """The estimator as means over episodes."""
    returns = weighted.reward.sum(1)
    log_rho = weighted.log_cumulative
    if kind in ("ordinary", "capped"):
        return Ratios.mean_of(total_weights(weighted, kind, cap) * returns)
    if kind == "per_decision":
        return Ratios.mean_of((np.exp(log_rho) * weighted.reward).sum(1))
    if kind == "weighted":
        rho = np.exp(log_rho[:, -1:] - log_rho[:, -1].max())
        return Ratios(np.zeros(len(rho)), rho * returns[:, None], rho)
    # Ratios do not change with the scale of the weights, so each step is scaled by its largest.
    top = log_rho.max(0)
    rho = np.exp(log_rho - np.where(np.isfinite(top), top, 0.0))
    return Ratios(np.zeros(len(rho)), rho * weighted.reward, rho)


def total_weights(weighted: Weighted, kind: Kind, cap: float | None = None) -> np.ndarray:
    """ρ^i of whole episodes, `[N]`, capped where asked."""
    weights = np.exp(weighted.log_cumulative[:, -1])
    if kind != "capped":
        return weights
    return np.minimum(weights, np.sqrt(len(weights)) if cap is None else cap)


def missing_probabilities(name: str, log: Log) -> Estimate:
    """What to say of a log without behavior probabilities."""
    return unsupported(
        name,
        "no probabilities",
        "The log lacks the probabilities with which the behavior policy acted. Log them, fit them with "
        "fit_behavior(log) (the estimate is then marked), or use a model-based or counterfactual estimate, which "
        "needs none.",
        len(log),
    )


def no_support(name: str, log: Log) -> Estimate:
    """What to say where the policy could not have done anything that was logged."""
    return unsupported(
        name,
        "no support",
        f"In each of the {len(log)} episodes some action was logged that the policy never takes there, so no episode "
        "tells of the policy. Log with a more random behavior, or use a model-based or counterfactual estimate.",
        len(log),
    )
