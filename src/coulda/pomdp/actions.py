"""How an action distribution and action noise become an action: A_t = f_π(H_t, U_at).

A policy returns a distribution; the model names the reparameterization that turns it into an action. Each knows
the exact posterior of its noise given the action that was taken, as a transport of a fresh draw.
"""

from typing import Any, ClassVar, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.mechanisms import category_at, gumbel_argmax, gumbel_given_argmax, uniform_given_category
from coulda.noise import Categorical, Gumbel, NoiseDistribution, Normal, Uniform


class ActionMechanism(Protocol):
    """A named reparameterization of the choice of action."""

    @property
    def noise(self) -> NoiseDistribution:
        """The distribution of U_at."""
        ...

    def __call__(self, distribution: Any, noise: Any) -> Any:
        """The action."""
        ...

    def posterior(self, distribution: Any, action: Any, fresh: Any) -> Any:
        """A draw of p(u | distribution, action), carried there from `fresh`, a draw of p(u)."""
        ...


class GumbelMaxChoice(eqx.Module):
    """argmax_a log π(a | h) + u_a, for discrete actions."""

    num_actions: int = eqx.field(static=True)
    family: ClassVar[type] = Categorical

    @property
    def noise(self) -> Gumbel:
        """One Gumbel an action."""
        return Gumbel((self.num_actions,))

    def __call__(self, distribution: Categorical, noise: Array) -> Array:
        """An int32."""
        return gumbel_argmax(jax.nn.log_softmax(distribution.logits), noise)

    def posterior(self, distribution: Categorical, action: Array, fresh: Array) -> Array:
        """Gumbels given their argmax."""
        return gumbel_given_argmax(jax.nn.log_softmax(distribution.logits), action, fresh)


class InverseCDFChoice(eqx.Module):
    """The action in whose interval of the CDF u falls, for discrete actions in their order."""

    family: ClassVar[type] = Categorical

    @property
    def noise(self) -> Uniform:
        """One uniform number."""
        return Uniform()

    def __call__(self, distribution: Categorical, noise: Array) -> Array:
        """An int32."""
        return category_at(distribution.probabilities, noise)

    def posterior(self, distribution: Categorical, action: Array, fresh: Array) -> Array:
        """Uniform on the action's interval of the CDF."""
        return uniform_given_category(distribution.probabilities, action, fresh)


class LocationScaleAction(eqx.Module):
    """mean + scale · u, for continuous actions of a Gaussian policy."""

    shape: tuple[int, ...] = eqx.field(static=True)
    family: ClassVar[type] = Normal

    @property
    def noise(self) -> Normal:
        """Standard normal `[shape]`."""
        return Normal(shape=self.shape)

    def __call__(self, distribution: Normal, noise: Array) -> Array:
        """A float array `[shape]`."""
        return jnp.broadcast_to(distribution.from_normal(noise), self.shape)

    def posterior(self, distribution: Normal, action: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        return (action - distribution.mean) / distribution.scale


Reparameterization = Literal["gumbel_max", "inverse_cdf"]


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
