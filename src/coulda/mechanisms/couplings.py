"""What a choice would have been under other probabilities, given what it was: in closed form, with the same noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class GumbelCoupling(eqx.Module):
    """argmax_k log p_k + u_k and argmax_k log q_k + u_k on the same Gumbels: the second, given the first.

    Were -u the logarithms of exponential clocks, k would ring at rate p_k in the first world and q_k in the second.
    With s_k = p_k / (p_k + q_k) and E(s) = Σ_k max(p_k (1 - s), q_k s),

        P(j | i) = q_j ∫_{s_j}^{s_i} ds / E(s)² for s_j < s_i, and 0 for all other j ≠ i,
        P(i | i) = q_i / ((p_i + q_i) E(s_i)).

    That it is 0 where j became no likelier, relative to i, is counterfactual stability (Oberst & Sontag, 2019). E is
    linear between neighboring s_k, where the integral is Δs / (E_left E_right): a sort and two cumulative sums serve
    all i and j.
    """

    other: Array
    """q, `[K]`."""
    integral: Array
    """∫_0^{s_k} ds / E(s)² up to a constant, `[K]`."""
    stay: Array
    """P(k | k), `[K]`."""

    def given(self, value: Array) -> Array:
        """P(· | i = `value`), `[K]`; `value` must be possible under p."""
        moved = self.other * jnp.maximum(self.integral[value] - self.integral, 0.0)
        return jnp.where(jnp.arange(self.other.shape[0]) == value, self.stay[value], moved)


def gumbel_coupling(probabilities: Array, other: Array) -> GumbelCoupling:
    """The coupling of p = `probabilities` and q = `other`, `[K]` each; zeros are welcome.

    >>> gumbel_coupling(jnp.array([0.5, 0.5]), jnp.array([0.25, 0.75])).given(0).round(4)
    Array([0.5, 0.5], dtype=float32)
    """
    total = probabilities + other
    ratio = probabilities / jnp.where(total > 0, total, 1.0)
    rank = _ranks(ratio)
    order = jnp.zeros_like(rank).at[rank].set(jnp.arange(rank.shape[0], dtype=rank.dtype))
    s, p, q = ratio[order], probabilities[order], other[order]
    # At s_k the terms of all that come before are q s, and those of the others p (1 - s).
    height = (1 - s) * _running_sum(p[::-1])[::-1] + s * (_running_sum(q) - q)
    pieces = (s[1:] - s[:-1]) / (height[1:] * height[:-1])
    integral = jnp.concatenate([jnp.zeros_like(s[:1]), _running_sum(pieces)])
    return GumbelCoupling(other, integral[rank], other / jnp.where(total > 0, total * height[rank], 1.0))


FEW = 128
"""Up to which all pairs of numbers are compared sooner than XLA:CPU sorts them: 20 in 0.2 µs and not in 3."""


def _ranks(numbers: Array) -> Array:
    """The place of each number in the order of all, `[K]`; of equal ones the first comes first."""
    place = jnp.arange(numbers.shape[0], dtype=jnp.int32)
    if len(place) > FEW:
        return jnp.zeros_like(place).at[jnp.argsort(numbers)].set(place)
    one, other = numbers[:, None], numbers[None]
    before = (other < one) | ((other == one) & (place[None] < place[:, None]))
    return jnp.sum(before, axis=1, dtype=jnp.int32)


def _running_sum(numbers: Array) -> Array:
    """`cumsum`, which for a few numbers XLA:CPU computes six times slower."""
    return jax.lax.associative_scan(jnp.add, numbers)


class InverseCDFCoupling(eqx.Module):
    """The categories in whose intervals of two CDFs the same uniform number falls: the second, given the first."""

    upper: Array
    """The CDF of p, `[K]`."""
    other_upper: Array
    """The CDF of q, `[K]`."""

    def given(self, value: Array) -> Array:
        """P(· | i = `value`), `[K]`: the share of i's interval that j's covers; `value` must be possible under p."""
        low, high = jnp.where(value == 0, 0.0, self.upper[value - 1]), self.upper[value]
        inside = jnp.clip(self.other_upper, low, high)
        before = jnp.concatenate([low[None], inside[:-1]])
        # XLA's cumulative sums of numbers ≥ 0 may decrease by a rounding.
        overlap, width = jnp.maximum(inside - before, 0.0), high - low
        # The interval of a tiny probability may be rounded away: then it is a point.
        at = jnp.minimum(jnp.sum(self.other_upper <= low), inside.shape[0] - 1)
        point = (jnp.arange(inside.shape[0]) == at).astype(inside.dtype)
        return jnp.where(width > 0, overlap / jnp.where(width > 0, width, 1.0), point)


def inverse_cdf_coupling(probabilities: Array, other: Array) -> InverseCDFCoupling:
    """The coupling of p = `probabilities` and q = `other`, `[K]` each, in their order; zeros are welcome.

    >>> inverse_cdf_coupling(jnp.array([0.5, 0.5]), jnp.array([0.25, 0.75])).given(0)
    Array([0.5, 0.5], dtype=float32)
    """
    cdf, other_cdf = (jnp.cumsum(p) / jnp.sum(p) for p in (probabilities, other))
    return InverseCDFCoupling(cdf, other_cdf)
