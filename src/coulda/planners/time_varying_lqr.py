"""The regulator of a time-varying affine system, by dynamic programming: GPS's planner."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from coulda.noise import Normal
from coulda.pomdp import Planner


class AffinePlanner(Planner):
    """a_t = -K_t s - k_t + scale · u, with gains `[T, k, n]` and offsets `[T, k]`."""

    gain: Array
    offset: Array
    scale: Array

    def initial_carry(self) -> Array:
        """The step."""
        return jnp.int32(0)

    def __call__(self, carry: Array, state: Array, observation: Any) -> tuple[Array, Normal]:  # noqa: ARG002
        """Gaussian round -K_t s - k_t."""
        mean = -self.gain[carry] @ state - self.offset[carry]
        return carry + 1, Normal(mean, jnp.broadcast_to(self.scale, mean.shape))


def time_varying_lqr(A: Array, B: Array, c: Array, Q: Array, R: Array, *, scale: Array) -> AffinePlanner:
    """The actions that minimize Σ_t sᵀQs + aᵀRa under s_{t+1} = A_t s_t + B_t a_t + c_t.

    Args:
        A: `[T, n, n]`.
        B: `[T, n, k]`.
        c: `[T, n]`.
        Q: `[n, n]`.
        R: `[k, k]`.
        scale: standard deviation of the planner's actions, > 0.
    """

    # In the state (s, 1) the system is linear and the cost stays quadratic.
    def backward(cost: Array, system: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        A, B, c = system
        n, k = B.shape
        A = jnp.block([[A, c[:, None]], [jnp.zeros((1, n)), jnp.ones((1, 1))]])
        B = jnp.concatenate([B, jnp.zeros((1, k))])
        gain = jnp.linalg.solve(R + B.T @ cost @ B, B.T @ cost @ A)
        cost = jnp.pad(Q, (0, 1)) + A.T @ cost @ (A - B @ gain)
        return (cost + cost.T) / 2, gain

    # The last action has no consequence that is paid for, so the cost after it is zero.
    nothing = jnp.zeros((Q.shape[0] + 1,) * 2)
    _, gains = jax.lax.scan(backward, nothing, (A, B, c), reverse=True)
    return AffinePlanner(gains[..., :-1], gains[..., -1], jnp.asarray(scale, float))
