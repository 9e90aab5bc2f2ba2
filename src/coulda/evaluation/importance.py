"""Importance sampling: reweigh logged returns by π/μ. Needs no model, and the behavior's probabilities.

With G = Σ_t γ^t r_t, ρ_t = Π_{s ≤ t} π(a_s | h_s) / μ(a_s | h_s) and ρ = ρ_T (Precup et al., 2000; Thomas, 2015):

| kind                    | name  | θ                                               |
|-------------------------|-------|-------------------------------------------------|
| "ordinary"              | IS    | mean_i ρ^i G^i                                  |
| "weighted"              | WIS   | Σ_i ρ^i G^i / Σ_i ρ^i                           |
| "per_decision"          | PDIS  | mean_i Σ_t ρ_t^i γ^t r_t^i                      |
| "weighted_per_decision" | WPDIS | Σ_t γ^t (Σ_i ρ_t^i r_t^i / Σ_i ρ_t^i)           |
| "capped"                | CIS   | mean_i min(ρ^i, c) G^i, c = √N (Ionides, 2008)  |

An episode that ends early keeps its last ρ and is paid nothing more.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import cap_diagnostic, log_diagnostics, spread_diagnostic, weight_diagnostics
from coulda.evaluation.distribution import distribution_of
from coulda.evaluation.estimate import Estimate, SinglePolicyMethod, unsupported
from coulda.evaluation.intervals import Precision, Ratios
from coulda.evaluation.propensities import propensity_diagnostic
from coulda.evaluation.reading import Reading, generator
from coulda.evaluation.weights import Weighted
from coulda.noise import effective_sample_size

Kind = Literal["ordinary", "weighted", "per_decision", "weighted_per_decision", "capped"]
KINDS: dict[Kind, str] = {
    "ordinary": "IS",
    "weighted": "WIS",
    "per_decision": "PDIS",
    "weighted_per_decision": "WPDIS",
    "capped": "CIS",
}


@dataclass(frozen=True)
class ImportanceSampling(SinglePolicyMethod):
    """The expected return of a policy, which may be recurrent, from a log with the behavior's probabilities."""

    kind: Kind = "weighted"
    """See the table above."""
    cap: float | None = None
    """The largest weight where `kind` is "capped"; √N by default."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CouldaError(f"kind is {self.kind!r}; use one of {', '.join(map(repr, KINDS))}")

    @property
    def name(self) -> str:
        """Its acronym."""
        return KINDS[self.kind]

    def of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        """The estimate of one policy; `key` is for the bootstrap."""
        if not reading.has_probabilities:
            return missing_probabilities(self.name, reading)
        weighted = reading.weighted(policy)
        if (refused := unusable_weights(self.name, weighted, reading)) is not None:
            return refused
        weights = total_weights(weighted, self.kind, self.cap)
        ratios = statistics(weighted, self.kind, self.cap)
        diagnostics = reading.once(("weights", policy), lambda: weight_diagnostics(weighted))
        diagnostics += spread_diagnostic(ratios.terms)
        diagnostics += propensity_diagnostic(reading) + log_diagnostics(reading)
        if self.kind == "capped":
            diagnostics = (cap_diagnostic(weights, weighted.total), *diagnostics)
        return Estimate(
            self.name,
            ratios.value,
            precision.of_weighted(generator(key), ratios),
            ratios.terms,
            float(effective_sample_size(weights if self.kind == "capped" else weighted.relative)),
            diagnostics=diagnostics,
            details={"largest weight": float(weights.max()), "mean weight": float(weights.mean())},
            beyond_the_mean=self._distribution(key, reading, weighted, weights, precision),
        )

    def _distribution(
        self, key: Array, reading: Reading, weighted: Weighted, weights: np.ndarray, precision: Precision
    ) -> dict[str, Estimate]:
        """Of whole episodes and normalized weights, which is WIS, or CIS where they are capped."""
        if self.kind not in ("weighted", "capped"):
            return {}
        normal = weights if self.kind == "capped" else weighted.relative
        return distribution_of(key, self.name, weighted.returns, normal, reading.asked, precision)


def statistics(weighted: Weighted, kind: Kind, cap: float | None = None) -> Ratios:
    """The estimator as means over episodes."""
    if kind in ("ordinary", "capped"):
        return Ratios.mean_of(total_weights(weighted, kind, cap) * weighted.returns)
    if kind == "per_decision":
        return Ratios.mean_of(np.einsum("nt,nt->n", weighted.cumulative, weighted.reward))
    if kind == "weighted":
        rho = weighted.relative[:, None]
        return Ratios(np.zeros(len(rho)), rho * weighted.returns[:, None], rho)
    rho = weighted.scaled
    return Ratios(np.zeros(len(rho)), rho * weighted.reward, rho)


def total_weights(weighted: Weighted, kind: Kind, cap: float | None = None) -> np.ndarray:
    """ρ^i of whole episodes, `[N]`, capped where asked."""
    weights = weighted.total
    if kind != "capped":
        return weights
    return np.minimum(weights, np.sqrt(len(weights)) if cap is None else cap)


def unusable_weights(name: str, weighted: Weighted, reading: Reading) -> Estimate | None:
    """The estimate that cannot be made, where no episode has any weight, or one has more than a number can hold."""
    if np.isneginf(weighted.log_total).all():
        return no_support(name, reading)
    for episode in weighted.too_large[:1]:
        said = (
            f"The weight of episode {episode} is e^{weighted.log_cumulative[episode].max():.0f}, whose square is more "
            "than a number can hold: the behavior's probabilities there are next to nothing. Look at them, or use "
            "another estimate."
        )
        return unsupported(name, "not finite", said, len(reading))
    return None


def missing_probabilities(name: str, reading: Reading) -> Estimate:
    """What to say of a log without behavior probabilities."""
    return unsupported(
        name,
        "no probabilities",
        f"The log lacks the probabilities with which the behavior policy acted{_where(reading)}. Log them, fit them "
        "with fit_behavior(log) or `coulda episodes convert LOG NEW --fit-behavior` (the estimate is "
        "then marked), or use a model-based or counterfactual estimate, which needs none.",
        len(reading),
    )


def _where(reading: Reading) -> str:
    """At which steps they are missing, where it is not at all of them."""
    missing = int(np.isnan(reading.log_prob).sum())
    steps = int(reading.lengths.sum())
    return "" if missing == steps else f" at {missing:,} of {steps:,} steps"


def no_support(name: str, reading: Reading) -> Estimate:
    """What to say where the policy could not have done anything that was logged."""
    return unsupported(
        name,
        "no support",
        f"In each of the {len(reading)} episodes some action was logged that the policy never takes there, so no "
        "episode tells of the policy. Log with a more random behavior, or use a model-based or counterfactual one.",
        len(reading),
    )
