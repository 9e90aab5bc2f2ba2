"""How an action distribution and action noise become an action: A_t = f_π(H_t, U_at).

A policy returns a distribution; the model names the reparameterization that turns it into an action: a choice
(`coulda.mechanisms`), or a number.
"""

from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from coulda.noise import NoiseDistribution, Normal


class ActionMechanism(Protocol):
    """A named reparameterization of the choice of action."""

    @property
    def noise(self) -> NoiseDistribution:
        """The distribution of U_at."""
        ...

    def __call__(self, distribution: Any, noise: Any) -> Any:
        """The action."""
        ...

    def posterior(self, distribution: Any, value: Any, fresh: Any) -> Any:
        """A draw of p(u | distribution, value), carried there from `fresh`, a draw of p(u)."""
        ...


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

    def posterior(self, distribution: Normal, value: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        return (value - distribution.mean) / distribution.scale
