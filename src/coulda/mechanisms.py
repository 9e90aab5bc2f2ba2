"""Named reparameterizations (Lemma 2): conditional distributions as deterministic functions of noise.

The same conditional distribution can be written as a function of noise in many ways. All give the same
interventional distributions; *they give different counterfactuals*. So the choice is always named.

| name             | node       | noise          | x = f(pa, u)                    | u given (pa, x)                   |
|------------------|------------|----------------|---------------------------------|-----------------------------------|
| `exogenous`      | any        | any            | u                               | x                                 |
| `additive`       | continuous | any            | m(pa) + u                       | x - m(pa)                         |
| `location_scale` | continuous | any            | m(pa) + s(pa) u                 | (x - m(pa)) / s(pa)               |
| `gumbel_max`     | discrete   | `Gumbel((K,))` | argmax_k logits_k(pa) + u_k     | truncated Gumbels, top-down       |
| `inverse_cdf`    | discrete   | `Uniform()`    | #{k : F_k(pa) ≤ u}              | uniform on [F_{x-1}(pa), F_x(pa)) |
| `quantile`       | continuous | `Uniform()`    | F^{-1}(u | pa), by bisection    | F(x | pa)                         |

Each knows the exact posterior of its own noise, given its parents and its value. It takes no key: it
*transports* a fresh draw of the noise, from its prior to its posterior.

Two categories that share noise are *coupled*. What a discrete choice would have been under other probabilities, given
what it was, needs no draws at all: `GumbelCoupling` and `InverseCDFCoupling` know it in closed form.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.noise import Gumbel, Noise, NoiseDistribution, Uniform
from coulda.scm import SCM, Mechanism, SCMError

__all__ = [
    "Additive",
    "Exogenous",
    "GumbelCoupling",
    "GumbelMax",
    "InverseCDF",
    "InverseCDFCoupling",
    "LocationScale",
    "Quantile",
    "Reparameterization",
    "additive",
    "category_at",
    "exogenous",
    "gumbel_argmax",
    "gumbel_coupling",
    "gumbel_given_argmax",
    "gumbel_max",
    "inverse_cdf",
    "inverse_cdf_coupling",
    "location_scale",
    "quantile",
    "table",
    "uniform_given_category",
    "uniformize",
]


class Reparameterization(Mechanism):
    """A mechanism that knows the posterior of its own noise."""

    invertible: ClassVar[bool]
    """Whether (parents, value) leave exactly one noise value."""
    noise_family: ClassVar[type[NoiseDistribution]] = NoiseDistribution
    """The noise for which `posterior` is exact."""

    @abc.abstractmethod
    def posterior(
        self, prior: NoiseDistribution, parents: tuple[Any, ...], value: Any, fresh: Noise
    ) -> tuple[Noise, Array]:
        """A draw of p(u | parents, value), and log p(value | parents).

        Args:
            prior: the distribution of the node's noise.
            parents: the parents' values, in order.
            value: the node's value.
            fresh: a draw from `prior`, to be carried onto the posterior.
        """


class Exogenous(Reparameterization):
    """x = u."""

    invertible: ClassVar[bool] = True

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """The value itself."""
        return value, prior.log_prob(value)


class Additive(Reparameterization):
    """x = m(pa) + u."""

    mean: Callable[..., Array]
    invertible: ClassVar[bool] = True

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """The residual."""
        noise = value - self.mean(*parents)
        return noise, prior.log_prob(noise)


class LocationScale(Reparameterization):
    """x = m(pa) + s(pa) u, elementwise, s > 0."""

    location_and_scale: Callable[..., tuple[Array, Array]]
    invertible: ClassVar[bool] = True

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """The standardized residual; the density carries the Jacobian 1/s."""
        location, scale = self.location_and_scale(*parents)
        noise = (value - location) / scale
        return noise, prior.log_prob(noise) - jnp.sum(jnp.log(jnp.broadcast_to(scale, noise.shape)))


class GumbelMax(Reparameterization):
    """x = argmax_k logits_k(pa) + u_k (Oberst & Sontag, 2019)."""

    log_probabilities: Callable[..., Array]
    invertible: ClassVar[bool] = False
    noise_family: ClassVar[type[NoiseDistribution]] = Gumbel

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """Gumbels given their argmax; see `gumbel_given_argmax`."""
        log_probabilities = self.log_probabilities(*parents)
        return gumbel_given_argmax(log_probabilities, value, fresh), log_probabilities[value]


class InverseCDF(Reparameterization):
    """x = #{k : F_k(pa) ≤ u}, for categories in the order given."""

    probabilities: Callable[..., Array]
    invertible: ClassVar[bool] = False
    noise_family: ClassVar[type[NoiseDistribution]] = Uniform

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """Uniform on the interval that maps to `value`."""
        probabilities = self.probabilities(*parents)
        return uniform_given_category(probabilities, value, fresh), jnp.log(probabilities[value])


class Quantile(Reparameterization):
    """x = F^{-1}(u | pa), F a continuous CDF that increases on [low, high]."""

    cdf: Callable[..., Array]
    invertible: ClassVar[bool] = True
    noise_family: ClassVar[type[NoiseDistribution]] = Uniform

    def posterior(self, prior, parents, value, fresh):  # noqa: ARG002
        """F(x | pa), whose derivative is the density."""
        noise, density = jax.jvp(lambda x: self.cdf(x, *parents), (value,), (jnp.ones_like(value),))
        return noise, jnp.log(density)


def exogenous() -> Exogenous:
    """A root that is its noise: U_c in Figure 1."""
    return Exogenous((), lambda u: u)


def additive(parents: tuple[str, ...], mean: Callable[..., Array]) -> Additive:
    """X = mean(*parents) + u."""
    return Additive(parents, lambda *inputs: mean(*inputs[:-1]) + inputs[-1], mean)


def location_scale(parents: tuple[str, ...], location_and_scale: Callable[..., tuple[Array, Array]]) -> LocationScale:
    """X = location + scale · u, with `location, scale = location_and_scale(*parents)`."""

    def function(*inputs: Any) -> Array:
        location, scale = location_and_scale(*inputs[:-1])
        return location + scale * inputs[-1]

    return LocationScale(parents, function, location_and_scale)


def gumbel_max(parents: tuple[str, ...], logits: Callable[..., Array]) -> GumbelMax:
    """X = argmax(logits(*parents) + u), with u ~ `Gumbel((K,))`. -inf marks an impossible category."""

    def log_probabilities(*pa: Any) -> Array:
        return jax.nn.log_softmax(logits(*pa))

    def function(*inputs: Any) -> Array:
        return gumbel_argmax(log_probabilities(*inputs[:-1]), inputs[-1])

    return GumbelMax(parents, function, log_probabilities)


def inverse_cdf(parents: tuple[str, ...], probabilities: Callable[..., Array]) -> InverseCDF:
    """X = the category in whose interval of the CDF u ~ `Uniform()` falls."""

    def function(*inputs: Any) -> Array:
        return category_at(probabilities(*inputs[:-1]), inputs[-1])

    return InverseCDF(parents, function, probabilities)


def quantile(parents: tuple[str, ...], cdf: Callable[..., Array], low: float, high: float) -> Quantile:
    """X = F^{-1}(u | parents) with F = `cdf(x, *parents)`, found by bisection in [low, high]."""

    def function(*inputs: Any) -> Array:
        return _bisect(lambda x: cdf(x, *inputs[:-1]), inputs[-1], low, high)

    return Quantile(parents, function, cdf)


def table(parents: tuple[str, ...], probabilities: Any) -> InverseCDF:
    """`inverse_cdf` of a conditional probability table `[|pa_1|, …, |pa_n|, K]`."""
    values = jnp.asarray(probabilities, float)
    if values.ndim != len(parents) + 1:
        raise SCMError(
            f"a table over {len(parents)} parents {parents} needs {len(parents) + 1} axes; got {values.shape}."
        )
    if bool(((values < 0) | (jnp.abs(values.sum(-1, keepdims=True) - 1) > 1e-4)).any()):
        raise SCMError(f"each row of the table over {parents} must be ≥ 0 and sum to 1; sums: {values.sum(-1)}.")
    return inverse_cdf(parents, lambda *pa: values[tuple(pa)])


def uniformize(conditionals: Mapping[str, InverseCDF | Quantile]) -> SCM:
    """Auto-regressive uniformization (Lemma 2): a chain of conditionals as an SCM with uniform noise.

    Give each variable its conditional distribution as a `table` of probabilities, as `inverse_cdf` of a
    function that returns probabilities, or as the `quantile` of a continuous CDF.

    >>> scm = uniformize({"X": table((), [0.2, 0.8]),
    ...                   "Y": quantile(("X",), lambda y, x: 1 - jnp.exp(-y * jnp.where(x, 2, 1)), low=0.0, high=50.0)})
    >>> [round(float(v), 3) for v in scm.simulate({"X": 0.5, "Y": 0.5}).values()]
    [1.0, 0.347]
    """
    for name, conditional in conditionals.items():
        if not isinstance(conditional, InverseCDF | Quantile):
            raise SCMError(
                f"uniformize: '{name}' is a {type(conditional).__name__}. Use table, inverse_cdf or quantile."
            )
    return SCM({name: Uniform() for name in conditionals}, dict(conditionals))


def gumbel_argmax(log_probabilities: Array, noise: Array) -> Array:
    """argmax_k log p_k + u_k, int32."""
    perturbed = log_probabilities + noise
    last = perturbed.shape[0] - 1
    # XLA:CPU does not vectorize an argmax, nor what it fuses with it; two plain reductions are three times faster.
    return jnp.min(jnp.where(perturbed == jnp.max(perturbed), jnp.arange(last + 1, dtype=jnp.int32), last))


def gumbel_given_argmax(log_probabilities: Array, value: Array, fresh: Array) -> Array:
    """Exact posterior of Gumbel noise given argmax(log p + u) = value, from fresh Gumbels `[K]`.

    Top-down (Maddison et al., 2014): the maximum is a standard Gumbel whatever the argmax, and the others
    are their own Gumbels truncated at it. `fresh[value]` becomes the maximum. The noise of an impossible
    category (log p = -inf) has no bearing on the outcome and stays fresh.
    """
    possible = jnp.isfinite(log_probabilities)
    shift = jnp.where(possible, log_probabilities, 0.0)
    top = fresh[value]
    truncated = -jnp.logaddexp(-(fresh + shift), -top)
    # A truncated value may round up to the maximum (one in 10^7); the observed category must still win.
    margin = 1e-6 * (1 + jnp.abs(top) + jnp.abs(shift[value]) + jnp.abs(shift))
    chosen = jnp.arange(fresh.shape[0]) == value
    perturbed = jnp.where(chosen, top, jnp.minimum(truncated, top - margin))
    return jnp.where(possible, perturbed - shift, fresh)


def category_at(probabilities: Array, noise: Array) -> Array:
    """The category in whose interval of the CDF `noise` falls, int32."""
    below = jnp.sum(jnp.cumsum(probabilities)[:-1] <= noise)
    # Rounding must not let the last, impossible categories catch what is left over.
    last = jnp.max(jnp.where(probabilities > 0, jnp.arange(probabilities.shape[0]), 0))
    return jnp.minimum(below, last).astype(jnp.int32)


def uniform_given_category(probabilities: Array, value: Array, fresh: Array) -> Array:
    """Exact posterior of the uniform noise of `category_at`: scaled into the category's interval."""
    upper = jnp.cumsum(probabilities)
    lower = jnp.where(value == 0, 0.0, upper[value - 1])
    # Off the interval's ends, where rounding could fall into the neighboring category.
    return lower + jnp.clip(fresh, 1e-5, 1 - 1e-5) * (upper[value] - lower)


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


def _bisect(function: Callable[[Array], Array], target: Array, low: float, high: float) -> Array:
    """X with function(x) = target for an increasing function, to the last float: 50 halvings."""

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        middle = 0.5 * (left + right)
        below = function(middle) < target
        return jnp.where(below, middle, left), jnp.where(below, right, middle)

    start = jnp.full_like(target, low), jnp.full_like(target, high)
    left, right = jax.lax.fori_loop(0, 50, halve, start)
    return 0.5 * (left + right)
