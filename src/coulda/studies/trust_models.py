"""Worlds of vectors and numbered actions, and policies of them, for the study of trust.

Who acts and what the worlds do is given by arrays alone, so that many random worlds share one compiled program.
"""

import abc
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Categorical, Normal
from coulda.pomdp import POMDP, ActionMechanism, Policy
from coulda.pomdp.model import VectorPOMDP, real_space
from coulda.pomdp.observed import ObservedPOMDP


class Habit(Policy):
    """μ(a_t | a_{t-1}, o_t) from a table, for numbered observations."""

    logits: Array
    """`[A + 1, O, A]`; the last for the first step."""

    def __init__(self, probabilities: np.ndarray):
        with np.errstate(divide="ignore"):
            self.logits = jnp.asarray(np.log(probabilities), jnp.float32)

    def initial_carry(self) -> Array:
        """No action yet."""
        return jnp.int32(self.logits.shape[0] - 1)

    def __call__(self, carry: Array, observation: Array) -> tuple[Array, Categorical]:
        """The row of the last action and of what is seen."""
        return carry, Categorical(logits=self.logits[carry, observation])

    def remember(self, carry: Array, action: Array, reward: Array) -> Array:  # noqa: ARG002
        """The action."""
        return jnp.asarray(action, jnp.int32)


class Logistic(Policy):
    """π(a | x) ∝ exp(w_a · (1, x, |x| < 1)) of a vector x, times e^`sticky` for the action before."""

    weight: Array
    """`[A, 1 + 2 d]`."""
    sticky: Array

    def initial_carry(self) -> Array:
        """No action yet."""
        return jnp.zeros(self.weight.shape[0])

    def __call__(self, carry: Array, observation: Array) -> tuple[Array, Categorical]:
        """A softmax."""
        features = jnp.concatenate([jnp.ones(1), observation, (jnp.abs(observation) < 1).astype(float)])
        return carry, Categorical(logits=self.weight @ features + self.sticky * carry)

    def remember(self, carry: Array, action: Array, reward: Array) -> Array:  # noqa: ARG002
        """The action."""
        return jax.nn.one_hot(action, carry.shape[0])


class NumberedActions(ObservedPOMDP, VectorPOMDP):
    """s_1 = m + σ_1 u, s' = f(s, a) + σ u with numbered actions; over where |s_1| reaches the `limit`."""

    initial_mean: Array
    initial_scale: Array
    transition_scale: Array
    limit: Array
    failure: Array
    """What the step is paid that reaches the limit."""
    horizon: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    @abc.abstractmethod
    def predict(self, state: Array, action: Array) -> Array:
        """f(s, a), `[n]`."""

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^n."""
        return real_space(self.initial_mean.shape[0])

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(A)."""
        return gymnasium.spaces.Discrete(self.num_actions)

    def initial(self, u: Array) -> Array:
        """The first state, m + σ_1 u, squeezed into the limit, so that no episode is over before its first step."""
        state, room = self.initial_mean + self.initial_scale * u, self._room
        return state.at[0].set(jnp.where(jnp.isfinite(self.limit), room * jnp.tanh(state[0] / room), state[0]))

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """The next state, f(s, a) + σ u."""
        return self.predict(state, action) + self.transition_scale * u

    def initial_posterior(self, state: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        plain = self._room * jnp.arctanh(jnp.clip(state[0] / self._room, -0.99999, 0.99999))
        state = state.at[0].set(jnp.where(jnp.isfinite(self.limit), plain, state[0]))
        return (state - self.initial_mean) / self.initial_scale

    @property
    def _room(self) -> Array:
        """Where a first state may be; any number where there is no limit, which is not used then."""
        return jnp.where(jnp.isfinite(self.limit), 0.95 * self.limit, 1.0)

    def transition_posterior(self, state: Array, action: Array, next_state: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        return (next_state - self.predict(state, action)) / self.transition_scale

    def terminal(self, state: Array) -> Array:
        """Whether the limit is reached."""
        return jnp.abs(state[0]) >= self.limit

    def failed(self, next_state: Array) -> Array:
        """What is paid on top of the rest where the episode ends."""
        return jnp.where(self.terminal(next_state), self.failure, 0.0)


class LinearWorld(NumberedActions):
    """f(s, a) = M_a s + b_a, and a reward that is linear, quadratic, a step and a wave of the state.

    With one step it is a contextual bandit, with one dimension that wears off a pump.
    """

    matrices: Array
    """`[A, n, n]`."""
    drift: Array
    """`[A, n]`."""
    pay: Array
    """`[A, 5]`: of 1, of s_1, of |s|², of s_1 > 0, of sin 3 s_1."""

    def predict(self, state: Array, action: Array) -> Array:
        """M_a s + b_a."""
        return self.matrices[action] @ state + self.drift[action]

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:
        """Of the state, and of a failure."""
        first = state[0]
        parts = [jnp.ones(()), first, jnp.sum(state**2), (first > 0).astype(float), jnp.sin(3 * first)]
        return self.pay[action] @ jnp.stack(parts) + self.failed(next_state)


class TanhWorld(NumberedActions):
    """f(s, a) = W_a tanh(s) + b_a, with the reward v_a · tanh(U s) - q_a |s|."""

    matrices: Array
    """`[A, n, n]`."""
    drift: Array
    """`[A, n]`."""
    inner: Array
    """U, `[h, n]`."""
    outer: Array
    """v, `[A, h]`."""
    cost: Array
    """q, `[A]`."""

    def predict(self, state: Array, action: Array) -> Array:
        """W_a tanh(s) + b_a."""
        return self.matrices[action] @ jnp.tanh(state) + self.drift[action]

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:
        """A small network, and a kink."""
        size = jnp.sqrt(jnp.sum(state**2) + 1e-12)
        return self.outer[action] @ jnp.tanh(self.inner @ state) - self.cost[action] * size + self.failed(next_state)


class Fishery(NumberedActions):
    """The logarithm of a stock, x' = x + growth · (1 - e^x) - h_a + σ u, paid price · h_a · e^x (Ricker's model).

    Below -`limit` it is gone.
    """

    growth: Array
    harvest: Array
    """h, `[A]`."""
    price: Array

    def predict(self, state: Array, action: Array) -> Array:
        """Growth less harvest."""
        return state + self.growth * (1 - jnp.exp(state)) - self.harvest[action]

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:
        """The harvest, and what a collapse costs."""
        return self.price * self.harvest[action] * jnp.exp(state[0]) + self.failed(next_state)


class Store(POMDP):
    """A level that actions raise and chance lowers (a stock), or the other way round (a queue); nothing below zero.

    x' = max(min(x + up_a, room) - down · D, 0) for a stock; max(x + down · D - up_a, 0) up to `room` for a queue, with
    D log-normal of mean 1. Lost demand is not seen, so that the noise cannot be inferred from two levels.
    """

    up: Array
    """`[A]`."""
    down: Array
    spread: Array
    """Of log D."""
    room: Array
    start: Array
    pay: Array
    """Of what leaves, of an action's amount, of what is left: `[3]`."""
    horizon: int = eqx.field(static=True)
    queue: bool = eqx.field(static=True)
    action_mechanism: ActionMechanism

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """The level."""
        return real_space(1)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(A)."""
        return gymnasium.spaces.Discrete(self.up.shape[0])

    @property
    def initial_noise(self) -> Normal:
        """Standard normal."""
        return Normal()

    @property
    def transition_noise(self) -> Normal:
        """Standard normal."""
        return Normal()

    def initial(self, u: Array) -> Array:
        """About `start`."""
        return jnp.clip(self.start * (1 + 0.3 * u), 0.0, self.room)[None]

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """The level after the action and demand."""
        chance = self.down * jnp.exp(self.spread * u - self.spread**2 / 2)
        if self.queue:
            return jnp.clip(state + chance - self.up[action], 0.0, self.room)
        return jnp.clip(jnp.minimum(state + self.up[action], self.room) - chance, 0.0, None)

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:
        """What leaves pays, actions and what is left cost."""
        level, left = state[0], next_state[0]
        filled = level if self.queue else jnp.minimum(level + self.up[action], self.room)
        return self.pay @ jnp.stack([jnp.maximum(filled - left, 0.0), self.up[action], left])

    def observe(self, state: Array, u: Any) -> Array:  # noqa: ARG002
        """The level."""
        return state
