"""`LinearGaussianPOMDP`: linear dynamics with Gaussian noise, for which inference is linear algebra."""

from typing import Any

import equinox as eqx
import gymnasium
import numpy as np
from jax import Array

from coulda.noise import NoiseDistribution, Normal, Point
from coulda.pomdp.model import POMDP


class LinearGaussianPOMDP(POMDP):
    """s_1 = m + L_1 u, s_{t+1} = A s_t + B a_t + L_s u, o_t = C s_t + L_o u, with standard normal u (location-scale).

    A subclass holds the matrices and says what the reward is. `C = None` is an observed state, o_t = s_t.
    """

    A: eqx.AbstractVar[Array]
    """`[n, n]`."""
    B: eqx.AbstractVar[Array]
    """`[n, k]`."""
    C: eqx.AbstractVar[Array | None]
    """`[m, n]`, or None where the state is observed."""
    initial_mean: eqx.AbstractVar[Array]
    """m, `[n]`."""
    initial_scale: eqx.AbstractVar[Array]
    """L_1, `[n, n]`: a square root of the covariance."""
    transition_scale: eqx.AbstractVar[Array]
    """L_s, `[n, n]`."""
    observation_scale: eqx.AbstractVar[Array | None]
    """L_o, `[m, m]`; None where the state is observed."""

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^m."""
        return _real_space(self.A.shape[0] if self.C is None else self.C.shape[0])

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """R^k."""
        return _real_space(self.B.shape[1])

    @property
    def initial_noise(self) -> Normal:
        """Standard normal `[n]`."""
        return Normal(shape=self.initial_mean.shape)

    @property
    def transition_noise(self) -> Normal:
        """Standard normal `[n]`."""
        return Normal(shape=self.initial_mean.shape)

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Standard normal `[m]`, or none."""
        return Point() if self.C is None else Normal(shape=(self.C.shape[0],))

    def initial(self, u: Array) -> Array:
        """The first state, m + L_1 u."""
        return self.initial_mean + self.initial_scale @ u

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """A s + B a + L_s u."""
        return self.A @ state + self.B @ action + self.transition_scale @ u

    def observe(self, state: Array, u: Any) -> Array:
        """C s + L_o u, or s."""
        if self.C is None or self.observation_scale is None:
            return state
        return self.C @ state + self.observation_scale @ u


def _real_space(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
