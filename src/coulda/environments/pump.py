"""A pump that wears out: hidden wear, a vibration that is heard, and what the mechanic finds when it is serviced."""

from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Normal, Uniform
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice

MOST_WORN = 0.9
"""No pump comes with more wear than this; at 1 it breaks."""


class PumpState(NamedTuple):
    """How worn the pump is, and what the mechanic found in it this morning."""

    wear: Array
    found: Array
    """The wear before the service; 0 where there was none."""


class Pump(POMDP):
    """Run a pump (0) or service it (1), day by day, until it breaks.

    A day of work adds up to `rate` of wear and pays 1; beyond a wear of 1 the pump breaks, which costs 10 and ends the
    episode. A service costs 1 and leaves the pump almost as new. Seen are the vibration, which is the wear and much
    noise, and the mechanic's finding: how worn the pump was when it was opened. So a policy hears little, and hindsight
    is told.

    Args:
        horizon: T, in days.
        rate: the most that a day of work wears.
        worn: the mean wear of a pump that comes, as a share of the largest: near 0 they come new, near 1 worn.
        noise: standard deviation of the vibration's noise.
    """

    rate: Array
    worn: Array
    noise: Array
    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    def __init__(self, *, horizon: int = 20, rate: float = 0.2, worn: float = 0.3, noise: float = 0.4):
        if not 0 < worn < 1:
            raise CouldaError(f"worn is {worn}; it is a share, between 0 (pumps come new) and 1 (worn).")
        self.rate, self.worn, self.noise = (jnp.asarray(x, float) for x in (rate, worn, noise))
        self.horizon, self.action_mechanism = horizon, GumbelMaxChoice(2)

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """The vibration and the finding, `[2]`."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """0 runs the pump, 1 services it."""
        return gymnasium.spaces.Discrete(2)

    @property
    def initial_noise(self) -> Uniform:
        """The pump's place among all that come."""
        return Uniform()

    @property
    def transition_noise(self) -> Uniform:
        """How hard the day is."""
        return Uniform()

    @property
    def observation_noise(self) -> Normal:
        """Of the vibration, and a little of the finding."""
        return Normal(0.0, jnp.stack([self.noise, 0.05 * jnp.ones_like(self.noise)]))

    def initial(self, u: Array) -> PumpState:
        """A power of u whose mean is `worn`: however new pumps come in the mean, some are worn."""
        return PumpState(MOST_WORN * u ** ((1 - self.worn) / self.worn), jnp.zeros_like(u))

    def transition(self, state: PumpState, action: Array, u: Array) -> PumpState:
        """A service leaves up to 0.1 of wear."""
        serviced = action == 1
        worn = state.wear + self.rate * u
        return PumpState(jnp.where(serviced, 0.1 * u, worn), jnp.where(serviced, state.wear, 0.0))

    def reward(self, state: PumpState, action: Array, next_state: PumpState) -> Array:  # noqa: ARG002
        """1 for a day of work, -1 for a service, -10 for a broken pump."""
        return jnp.where(action == 1, -1.0, jnp.where(next_state.wear > 1.0, -10.0, 1.0))

    def observe(self, state: PumpState, u: Array) -> Array:
        """What is heard, and what was found."""
        return jnp.stack([state.wear, state.found]) + u

    def terminal(self, state: PumpState) -> Array:
        """A broken pump stays so."""
        return state.wear > 1.0
