"""Dynamic programming in a `FinitePOMDP` whose state is seen: finite horizon, and discounted.

Planning is done once, on the host, in double precision. Terminal states are worth nothing.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from coulda.errors import CouldaError
from coulda.noise import Categorical
from coulda.pomdp import FinitePOMDP, Planner
from coulda.scales import unit_of


class TabularPlanner(Planner):
    """λ(a | s) of a table: stationary `[S, A]`, or one for each step `[T, S, A]`."""

    logits: Array

    def __init__(self, probabilities: ArrayLike):
        with np.errstate(divide="ignore"):
            self.logits = jnp.asarray(np.log(np.asarray(probabilities, float)), jnp.float32)
        if self.logits.ndim not in (2, 3):
            raise CouldaError(f"a planner's table is [S, A] or [T, S, A]; got shape {self.logits.shape}.")

    def initial_carry(self) -> Array:
        """The step."""
        return jnp.int32(0)

    def __call__(self, carry: Array, state: Any, observation: Any) -> tuple[Array, Categorical]:  # noqa: ARG002
        """The state's row."""
        table = self.logits[carry] if self.logits.ndim == 3 else self.logits
        return carry + 1, Categorical(logits=table[state.index])

    def noisy(self, epsilon: float) -> "TabularPlanner":
        """(1 - ε) λ + ε / A."""
        probabilities = np.exp(np.asarray(self.logits, float))
        return TabularPlanner((1 - epsilon) * probabilities + epsilon / probabilities.shape[-1])


class Solution(NamedTuple):
    """An optimal planner and its value."""

    planner: TabularPlanner
    value: np.ndarray
    """V(s), `[S]`; for a finite horizon of all its steps, `[T + 1, S]`, the last row zero."""


def finite_horizon(model: FinitePOMDP, discount: float = 1.0) -> Solution:
    """The best planner for the model's horizon, by backward induction. The paper's returns are undiscounted."""
    transition, reward = _tables(model)
    values, choices = [np.zeros(transition.shape[1])], []
    for _ in range(model.horizon):
        q = reward + discount * transition @ values[0]
        values, choices = [q.max(0), *values], [_greedy(q), *choices]
    return Solution(TabularPlanner(np.stack(choices)), np.stack(values))


def value_iteration(model: FinitePOMDP, discount: float, tolerance: float = 1e-10) -> Solution:
    """The best stationary planner at `discount`, its value within `tolerance` of the largest reward's size."""
    _check_discount(discount)
    transition, reward = _tables(model)
    value, gap, within = np.zeros(transition.shape[1]), np.inf, tolerance * np.abs(reward).max()
    while gap > within * (1 - discount) / discount:
        updated = (reward + discount * transition @ value).max(0)
        gap, value = np.abs(updated - value).max(), updated
    return Solution(TabularPlanner(_greedy(reward + discount * transition @ value)), value)


def policy_iteration(model: FinitePOMDP, discount: float) -> Solution:
    """The best stationary planner at `discount`, exactly: evaluate by a linear solve, improve, until it is stable."""
    _check_discount(discount)
    transition, reward = _tables(model)
    states = np.arange(transition.shape[1])
    best = reward.argmax(0)
    while True:
        value = np.linalg.solve(np.eye(states.size) - discount * transition[best, states], reward[best, states])
        q = reward + discount * transition @ value
        # A tie, to rounding, keeps the action: otherwise two equally good policies would alternate for ever.
        improved = np.where(q.max(0) > q[best, states] + 1e-9 * (unit_of(reward) + np.abs(value)), q.argmax(0), best)
        if (improved == best).all():
            return Solution(TabularPlanner(np.eye(q.shape[0])[best]), value)
        best = improved


def _tables(model: FinitePOMDP) -> tuple[np.ndarray, np.ndarray]:
    """P(s' | s, a) `[A, S, S]` and the expected reward `[A, S]`, both zero in terminal states."""
    transition, reward, terminal = (np.asarray(table) for table in model.tables())
    transition = np.where(terminal[None, :, None], 0.0, transition.astype(float))
    return transition, (transition * reward).sum(-1)


def _greedy(q: np.ndarray) -> np.ndarray:
    """One-hot `[S, A]` of the first best action, `q` being `[A, S]`."""
    return np.eye(q.shape[0])[q.argmax(0)]


def _check_discount(discount: float) -> None:
    if not 0 < discount < 1:
        raise CouldaError(f"discount must be between 0 and 1; got {discount}. For no discount, use finite_horizon.")
