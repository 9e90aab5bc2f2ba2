"""A linear-Gaussian system with quadratic costs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.pomdp import LinearGaussianPOMDP, LocationScaleAction


class LinearQuadratic(LinearGaussianPOMDP):
    """s' = A s + B a + L_s u with reward -(sᵀ Q s + aᵀ R a), the state observed or seen through C s + L_o u.

    Scales are square roots of covariances (`scale @ scale.T`); noise enters as `scale @ u` with standard normal u.
    The reward of a hidden state is paid by that state; inference from h_t uses observations and actions only.
    """

    Q: Array
    R: Array

    def __init__(
        self,
        A: Any,
        B: Any,
        Q: Any,
        R: Any,
        *,
        horizon: int,
        initial_mean: Any,
        initial_scale: Any,
        transition_scale: Any,
        C: Any = None,
        observation_scale: Any = None,
    ):
        if (C is None) != (observation_scale is None):
            raise CouldaError("give both C and observation_scale for a hidden state, or neither for an observed one.")
        (n, _), (_, k) = (np.atleast_2d(np.asarray(value)).shape for value in (A, B))
        self.A, self.B, self.Q, self.R = (
            _matrix(value, shape, name)
            for name, value, shape in (("A", A, (n, n)), ("B", B, (n, k)), ("Q", Q, (n, n)), ("R", R, (k, k)))
        )
        self.initial_mean = _matrix(initial_mean, (n,), "initial_mean")
        self.initial_scale = _matrix(initial_scale, (n, n), "initial_scale")
        self.transition_scale = _matrix(transition_scale, (n, n), "transition_scale")
        self.C = self.observation_scale = None
        if C is not None:
            m = np.atleast_2d(np.asarray(C)).shape[0]
            self.C = _matrix(C, (m, n), "C")
            self.observation_scale = _matrix(observation_scale, (m, m), "observation_scale")
        self.horizon, self.action_mechanism = horizon, LocationScaleAction((k,))

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """-(sᵀ Q s + aᵀ R a)."""
        return -(state @ self.Q @ state + action @ self.R @ action)


def _matrix(value: Any, shape: tuple[int, ...], name: str) -> Array:
    array = np.asarray(value, np.float32)
    array = array.reshape(shape) if array.ndim == 0 and set(shape) == {1} else array
    if array.shape != shape:
        raise CouldaError(f"{name} has shape {array.shape}; with the other matrices it must be {shape}.")
    return jnp.asarray(array)
