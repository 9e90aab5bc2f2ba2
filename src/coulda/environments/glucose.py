"""Glucose control with a patient whose sensitivity to insulin is not known: a static unknown in the first state."""

from typing import NamedTuple

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Independent, Normal, Uniform
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice

BASAL, LOWEST = 140.0, 20.0
"""Where glucose rests without insulin, and below which it never falls; in mg/dl."""
TARGET = 110.0


class GlucoseState(NamedTuple):
    """Glucose in the blood, insulin at work, and the patient's sensitivity to it, which is hidden and constant."""

    glucose: Array
    insulin: Array
    sensitivity: Array


class Glucose(POMDP):
    """Dose insulin, 0 to 3 units an hour, after readings of glucose.

    g' = g - 0.15 (g - 140) - sensitivity · insulin + meal + noise, at least 20; insulin decays by 0.4 an hour and takes
    up the dose. A meal of up to 60 mg/dl comes in one hour of four. The reward is -(log₂(g' / 110))²: half of the
    target is as bad as its double.

    Args:
        horizon: T, in hours.
        sensitivity: the median patient's, in mg/dl for each unit and hour.
        spread: between patients, as a standard deviation of its logarithm.
        noise: standard deviation of glucose's own noise in an hour.
        reading_error: standard deviation of a reading.
    """

    sensitivity: Array
    spread: Array
    noise: Array
    reading_error: Array
    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    def __init__(
        self,
        *,
        horizon: int = 12,
        sensitivity: float = 8.0,
        spread: float = 0.4,
        noise: float = 5.0,
        reading_error: float = 20.0,
    ):
        self.sensitivity, self.spread = jnp.asarray(sensitivity, float), jnp.asarray(spread, float)
        self.noise, self.reading_error = jnp.asarray(noise, float), jnp.asarray(reading_error, float)
        self.horizon, self.action_mechanism = horizon, GumbelMaxChoice(4)

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """A reading, `[1]`."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Units of insulin."""
        return gymnasium.spaces.Discrete(4)

    @property
    def initial_noise(self) -> Normal:
        """Of the first glucose, and of the patient."""
        return Normal(shape=(2,))

    @property
    def transition_noise(self) -> Independent:
        """Whether and what was eaten, and the rest."""
        return Independent({"meal": Uniform(), "rest": Normal()})

    @property
    def observation_noise(self) -> Normal:
        """Of the reading."""
        return Normal(0.0, self.reading_error, (1,))

    def initial(self, u: Array) -> GlucoseState:
        """A patient without insulin."""
        return GlucoseState(BASAL + 20.0 * u[0], jnp.zeros_like(u[0]), self.sensitivity * jnp.exp(self.spread * u[1]))

    def transition(self, state: GlucoseState, action: Array, u: dict[str, Array]) -> GlucoseState:
        """One hour."""
        insulin = 0.6 * state.insulin + action.astype(float)
        meal = 60.0 * jnp.maximum(u["meal"] - 0.75, 0.0) / 0.25
        change = -0.15 * (state.glucose - BASAL) - state.sensitivity * insulin + meal + self.noise * u["rest"]
        return GlucoseState(jnp.maximum(state.glucose + change, LOWEST), insulin, state.sensitivity)

    def reward(self, state: GlucoseState, action: Array, next_state: GlucoseState) -> Array:  # noqa: ARG002
        """How far off, in doublings."""
        return -(jnp.log2(next_state.glucose / TARGET) ** 2)

    def observe(self, state: GlucoseState, u: Array) -> Array:
        """The reading."""
        return state.glucose[None] + u
