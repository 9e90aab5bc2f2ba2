"""How an action distribution and action noise become an action: A_t = f_π(H_t, U_at).

A policy returns a distribution; the model names the reparameterization that turns it into an action.
"""

from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.mechanisms import category_at, gumbel_argmax
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


class GumbelMaxAction(eqx.Module):
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


class InverseCDFAction(eqx.Module):
    """The action in whose interval of the CDF u falls, for discrete actions in their order."""

    family: ClassVar[type] = Categorical

    @property
    def noise(self) -> Uniform:
        """One uniform number."""
        return Uniform()

    def __call__(self, distribution: Categorical, noise: Array) -> Array:
        """An int32."""
        return category_at(distribution.probabilities, noise)


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
