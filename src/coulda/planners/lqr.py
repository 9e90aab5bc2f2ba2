"""The linear-quadratic regulator: dynamic programming where everything is linear, quadratic and Gaussian."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Normal
from coulda.pomdp import Planner


class LinearPlanner(Planner):
    """a = -K s + scale · u, with one gain `[k, n]`, or one for each step `[T, k, n]`."""

    gain: Array
    scale: Array

    def initial_carry(self) -> Array:
        """The step."""
        return jnp.int32(0)

    def __call__(self, carry: Array, state: Array, observation: Any) -> tuple[Array, Normal]:  # noqa: ARG002
        """Gaussian round -K s."""
        gain = self.gain[carry] if self.gain.ndim == 3 else self.gain
        return carry + 1, Normal(-gain @ state, jnp.broadcast_to(self.scale, gain.shape[:1]))


class Regulator(NamedTuple):
    """An optimal gain and the cost-to-go sᵀ P s."""

    planner: LinearPlanner
    gain: Array
    cost: Array


def lqr(A: Array, B: Array, Q: Array, R: Array, *, scale: float, horizon: int | None = None) -> Regulator:
    """The gains that minimize Σ sᵀQs + aᵀRa under s' = A s + B a + noise.

    Args:
        A: `[n, n]`; `B` is `[n, k]`, `Q` `[n, n]` and `R` `[k, k]`.
        B: see `A`.
        Q: see `A`.
        R: see `A`.
        scale: standard deviation of the planner's actions, > 0.
        horizon: number of actions, for gains `[T, k, n]` and costs `[T, n, n]`; forever by default, for one of each.

    >>> one = jnp.ones((1, 1))
    >>> regulator = lqr(one, one, one, one, scale=0.1)
    >>> f"{regulator.cost[0, 0]:.4f} {regulator.gain[0, 0]:.4f}"
    '1.6180 0.6180'
    """
    A, B, Q, R = (jnp.atleast_2d(jnp.asarray(m, float)) for m in (A, B, Q, R))

    def backward(cost: Array, _: Any) -> tuple[Array, tuple[Array, Array]]:
        gain = jnp.linalg.solve(R + B.T @ cost @ B, B.T @ cost @ A)
        cost = Q + A.T @ cost @ (A - B @ gain)
        return cost, (gain, cost)

    # The last action has no consequence that is paid for, so the cost after it is zero.
    nothing = jnp.zeros_like(Q)
    if horizon is None:
        gain, cost = _fixed_point(backward, nothing)
    else:
        _, (gain, cost) = jax.lax.scan(backward, nothing, length=horizon, reverse=True)
    return Regulator(LinearPlanner(gain, jnp.asarray(scale, float)), gain, cost)


def _fixed_point(backward: Any, cost: Array, iterations: int = 10_000) -> tuple[Array, Array]:
    """Iterate until the cost stops changing."""

    def unsettled(carry: tuple[Array, Array, Array]) -> Array:
        i, before, after = carry
        return (i < iterations) & ~jnp.allclose(after, before, rtol=1e-7, atol=0.0)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, _, cost = carry
        return i + 1, cost, backward(cost, None)[0]

    start = jnp.int32(0), cost, backward(cost, None)[0]
    taken, _, cost = jax.lax.while_loop(unsettled, step, start)
    if int(taken) == iterations or not bool(jnp.isfinite(cost).all()):
        raise CouldaError(
            f"the Riccati recursion has not settled in {int(taken)} steps. Is (A, B) controllable where A is unstable?"
        )
    _, (gain, cost) = backward(cost, None)
    return gain, cost
