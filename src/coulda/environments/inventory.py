"""A shop whose demand nobody sees: what is sold is seen, and what could have been sold is not."""

from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Normal
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice

ORDERS = np.array([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], np.float32)
"""What can be ordered in a day, by action."""


class InventoryState(NamedTuple):
    """The level of demand, which is hidden; what is left in stock, and what was sold the day before."""

    level: Array
    stock: Array
    sold: Array


class Inventory(POMDP):
    """Order goods each morning, sell what is asked for while stock lasts, and keep the rest.

    Demand is level · exp(noise), and the level itself drifts. A sold unit earns 1, an ordered one costs 0.4, and one
    that is left over costs `holding`. Stock and sales are counted with an error of `count_error`. In a stock-out the
    demand is known from below only: the log of a careful shop says little of how much could have been sold.

    Args:
        horizon: T, in days.
        level: the median level of a shop's demand.
        spread: of levels between shops, as a standard deviation of its logarithm.
        drift: of a shop's level in a day, likewise.
        variation: of a day's demand round its level, likewise.
        holding: the cost of keeping a unit for a day.
        count_error: standard deviation of what is counted.
    """

    level: Array
    spread: Array
    drift: Array
    variation: Array
    holding: Array
    count_error: Array
    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    def __init__(
        self,
        *,
        horizon: int = 14,
        level: float = 10.0,
        spread: float = 0.5,
        drift: float = 0.05,
        variation: float = 0.3,
        holding: float = 0.1,
        count_error: float = 3.0,
    ):
        self.level, self.spread, self.drift = (jnp.asarray(x, float) for x in (level, spread, drift))
        self.variation, self.holding, self.count_error = (
            jnp.asarray(x, float) for x in (variation, holding, count_error)
        )
        self.horizon, self.action_mechanism = horizon, GumbelMaxChoice(len(ORDERS))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """Stock and sales as counted, `[2]`."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Which of `ORDERS`."""
        return gymnasium.spaces.Discrete(len(ORDERS))

    @property
    def initial_noise(self) -> Normal:
        """The shop's place among all shops."""
        return Normal()

    @property
    def transition_noise(self) -> Normal:
        """Of the day's demand, and of the level's drift."""
        return Normal(shape=(2,))

    @property
    def observation_noise(self) -> Normal:
        """Of both counts."""
        return Normal(0.0, self.count_error, (2,))

    def initial(self, u: Array) -> InventoryState:
        """A shop with 10 in stock, that has sold nothing yet."""
        return InventoryState(self.level * jnp.exp(self.spread * u), jnp.full_like(u, 10.0), jnp.zeros_like(u))

    def transition(self, state: InventoryState, action: Array, u: Array) -> InventoryState:
        """The order arrives, and is sold as far as it goes."""
        available = state.stock + jnp.asarray(ORDERS)[action]
        sold = jnp.minimum(state.level * jnp.exp(self.variation * u[0]), available)
        return InventoryState(state.level * jnp.exp(self.drift * u[1]), available - sold, sold)

    def reward(self, state: InventoryState, action: Array, next_state: InventoryState) -> Array:  # noqa: ARG002
        """What was sold, less what was ordered and kept."""
        return next_state.sold - 0.4 * jnp.asarray(ORDERS)[action] - self.holding * next_state.stock

    def observe(self, state: InventoryState, u: Array) -> Array:
        """Both counts."""
        return jnp.stack([state.stock, state.sold]) + u
