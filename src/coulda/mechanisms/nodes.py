"""Reparameterizations of the nodes of an SCM: a mechanism that knows the posterior of its own noise."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from coulda.mechanisms.choices import category_at, gumbel_argmax, gumbel_given_argmax, uniform_given_category
from coulda.noise import Gumbel, Noise, NoiseDistribution, Uniform
from coulda.scm import SCM, Mechanism, SCMError


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
