"""A choice among categories as a function of noise, and the posterior of that noise, as a transport of a fresh draw.

`GumbelMaxChoice` and `InverseCDFChoice` are the two by name, for whoever chooses: actions, states, observations.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical, Gumbel, Uniform


class GumbelMaxChoice(eqx.Module):
    """argmax_k log p_k + u_k, such as an action of π(a | h)."""

    size: int = eqx.field(static=True)
    family: ClassVar[type] = Categorical

    @property
    def noise(self) -> Gumbel:
        """One Gumbel per category."""
        return Gumbel((self.size,))

    def __call__(self, distribution: Categorical, noise: Array) -> Array:
        """An int32."""
        return gumbel_argmax(jax.nn.log_softmax(distribution.logits), noise)

    def posterior(self, distribution: Categorical, value: Array, fresh: Array) -> Array:
        """Gumbels given their argmax."""
        return gumbel_given_argmax(jax.nn.log_softmax(distribution.logits), value, fresh)


class InverseCDFChoice(eqx.Module):
    """The category in whose interval of the CDF u falls, in their order."""

    family: ClassVar[type] = Categorical

    @property
    def noise(self) -> Uniform:
        """One uniform number."""
        return Uniform()

    def __call__(self, distribution: Categorical, noise: Array) -> Array:
        """An int32."""
        return category_at(distribution.probabilities, noise)

    def posterior(self, distribution: Categorical, value: Array, fresh: Array) -> Array:
        """Uniform on the category's interval of the CDF."""
        return uniform_given_category(distribution.probabilities, value, fresh)


def choice(reparameterization: str, size: int) -> GumbelMaxChoice | InverseCDFChoice:
    """The named reparameterization of a choice among `size` categories, be they actions, states or observations.

    >>> type(choice("gumbel_max", 3).noise).__name__, type(choice("inverse_cdf", 3).noise).__name__
    ('Gumbel', 'Uniform')
    """
    if reparameterization == "gumbel_max":
        return GumbelMaxChoice(size)
    if reparameterization == "inverse_cdf":
        return InverseCDFChoice()
    raise CouldaError(
        f"reparameterization is {reparameterization!r}; name one of 'gumbel_max', 'inverse_cdf'. They agree on "
        "every distribution and differ on counterfactuals, so there is no default."
    )


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
