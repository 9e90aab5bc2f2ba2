"""The simulator's facts: how vitals move, as pure functions of five uniform numbers, and what follows exactly.

The facts are those of the published simulator, also where they look odd: the glucose of a non-diabetic that rises
by fluctuation becomes at most 1, from whatever it was.

An observed state is a number in 0 … 719: 8 · vitals + treatments, with vitals = ((heart rate · 3 + pressure) · 2 +
oxygen) · 5 + glucose and treatments = 4 · antibiotics + 2 · vasopressors + ventilation. An action is
4 · antibiotics + 2 · ventilation + vasopressors.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

NUM_ACTIONS, NUM_OBSERVED, NUM_VITALS, NUM_TREATMENTS = 8, 720, 90, 8
LEVELS = (3, 3, 2, 5)
"""How many levels heart rate, blood pressure, oxygen and glucose have."""
NORMAL = (1, 1, 1, 2)

CUTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9)
"""Every threshold that a uniform number is compared with: between two of them, all numbers do the same."""
EDGES = np.array([0.0, *CUTS, 1.0])
CELL_MIDDLES: Any = ((EDGES[1:] + EDGES[:-1]) / 2).astype(np.float32)
CELL_WEIGHTS: Any = np.diff(EDGES).astype(np.float32)

INITIAL_LEVELS = ((0.25, 0.5, 0.25), (0.25, 0.5, 0.25), (0.2, 0.8))
INITIAL_GLUCOSE = ((0.05, 0.15, 0.6, 0.15, 0.05), (0.01, 0.05, 0.15, 0.6, 0.19))
"""Without and with diabetes."""


class Vitals(NamedTuple):
    """Levels, 0 the lowest."""

    heart_rate: Array
    pressure: Array
    oxygen: Array
    glucose: Array


class Treatments(NamedTuple):
    """What is given, booleans."""

    antibiotics: Array
    vasopressors: Array
    ventilation: Array


class Coins(NamedTuple):
    """The noise of a transition: uniform numbers (or, as a template, their distributions)."""

    heart_rate: Any
    pressure: Any
    pressure_vasopressors: Any
    oxygen: Any
    glucose: Any


def vitals_of(observed: Array) -> Vitals:
    """The four levels."""
    return Vitals(*jnp.unravel_index(observed // NUM_TREATMENTS, LEVELS))


def treatments_of(observed: Array) -> Treatments:
    """What is given in this state."""
    return Treatments((observed & 4) > 0, (observed & 2) > 0, (observed & 1) > 0)


def treatments_by(action: Array) -> Treatments:
    """What an action gives."""
    return Treatments((action & 4) > 0, (action & 1) > 0, (action & 2) > 0)


def treatment_bits(action: Array) -> Array:
    """The treatments of the state that follows `action`, as a number in 0 … 7."""
    return (action & 4) + ((action & 1) << 1) + ((action & 2) >> 1)


def vitals_index(vitals: Vitals) -> Array:
    """A number in 0 … 89."""
    heart_rate, pressure, oxygen, glucose = vitals
    return ((heart_rate * 3 + pressure) * 2 + oxygen) * 5 + glucose


def next_vitals(diabetic: Array, observed: Array, action: Array, coins: Coins) -> Vitals:
    """One step of the simulator; each vital depends on coins of its own only."""
    vitals, given, now = vitals_of(observed), treatments_of(observed), treatments_by(action)
    return Vitals(
        _next_heart_rate(vitals, given, now, coins.heart_rate),
        _next_pressure(vitals, given, now, diabetic, coins.pressure, coins.pressure_vasopressors),
        _next_oxygen(vitals, given, now, coins.oxygen),
        next_glucose(vitals, now, diabetic, coins.glucose),
    )


def _next_heart_rate(vitals: Vitals, given: Treatments, now: Treatments, coin: Array) -> Array:
    """Antibiotics bring it down from high; stopping them may bring it back up; else it fluctuates."""
    treated = _antibiotics(vitals.heart_rate, now, coin)
    fluctuating = _fluctuate(vitals.heart_rate, 2, 0.1, coin)
    return jnp.where(now.antibiotics | given.antibiotics, treated, fluctuating)


def _next_pressure(
    vitals: Vitals, given: Treatments, now: Treatments, diabetic: Array, coin: Array, vaso_coin: Array
) -> Array:
    """Antibiotics first, then vasopressors, which act more strongly on diabetics; else it fluctuates."""
    antibiotics, vasopressors = now.antibiotics | given.antibiotics, now.vasopressors | given.vasopressors
    level = jnp.where(antibiotics, _antibiotics(vitals.pressure, now, coin), vitals.pressure)
    raised = jnp.where(vaso_coin < 0.7, jnp.minimum(level + 1, 2), level)
    from_low = jnp.where(vaso_coin < 0.5, 1, jnp.where(vaso_coin < 0.9, 2, 0))
    from_normal = jnp.where(vaso_coin < 0.9, 2, 1)
    raised_diabetic = jnp.where(level == 0, from_low, jnp.where(level == 1, from_normal, level))
    falls = vaso_coin < jnp.where(diabetic == 1, 0.05, 0.1)
    fallen = jnp.where(falls, jnp.maximum(level - 1, 0), level)
    on = jnp.where(diabetic == 1, raised_diabetic, raised)
    level = jnp.where(now.vasopressors, on, jnp.where(given.vasopressors, fallen, level))
    return jnp.where(antibiotics | vasopressors, level, _fluctuate(level, 2, 0.1, coin))


def _next_oxygen(vitals: Vitals, given: Treatments, now: Treatments, coin: Array) -> Array:
    """Ventilation brings it up; stopping it may let it fall; else it fluctuates."""
    level = vitals.oxygen
    on = jnp.where((level == 0) & (coin < 0.7), 1, level)
    off = jnp.where((level == 1) & (coin < 0.1), 0, level)
    return jnp.where(now.ventilation, on, jnp.where(given.ventilation, off, _fluctuate(level, 1, 0.1, coin)))


def next_glucose(vitals: Vitals, now: Treatments, diabetic: Array, coin: Array) -> Array:
    """Vasopressors raise it in diabetics and hold it in others; without them it fluctuates."""
    level = vitals.glucose
    on = jnp.where((diabetic == 1) & (coin < 0.5), jnp.minimum(level + 1, 4), level)
    # The published code caps the rise of non-diabetics at 1, where 4 was surely meant.
    odd = jnp.where(coin < 0.1, jnp.maximum(level - 1, 0), jnp.where(coin < 0.2, jnp.minimum(level + 1, 1), level))
    return jnp.where(now.vasopressors, on, jnp.where(diabetic == 1, _fluctuate(level, 4, 0.3, coin), odd))


def rewards() -> np.ndarray:
    """The reward of entering each observed state `[720]`, which also tells where the episode is over."""
    levels = np.stack(np.unravel_index(np.arange(NUM_OBSERVED) // NUM_TREATMENTS, LEVELS))
    abnormal = (levels != np.array(NORMAL)[:, None]).sum(0)
    untreated = np.arange(NUM_OBSERVED) % NUM_TREATMENTS == 0
    return np.where(abnormal >= 3, -1.0, np.where((abnormal == 0) & untreated, 1.0, 0.0)).astype(np.float32)


def initial_probabilities(diabetes: float) -> np.ndarray:
    """P(diabetic, observed) at the start, `[2, 720]`: drawn until the patient is neither dead nor discharged."""
    joint = np.zeros((2, NUM_OBSERVED))
    for diabetic, weight in enumerate((1 - diabetes, diabetes)):
        a, b, c = (np.array(p) for p in INITIAL_LEVELS)
        vitals = np.einsum("a,b,c,d->abcd", a, b, c, np.array(INITIAL_GLUCOSE[diabetic])).ravel()
        joint[diabetic, ::NUM_TREATMENTS] = weight * vitals
    joint[:, rewards() != 0] = 0
    return joint / joint.sum()


@jax.jit
def transition_probabilities() -> Array:
    """P(next vitals | diabetic, action, observed), `[2, 8, 720, 90]`, by enumeration of the coins' cells.

    Each vital has coins of its own, so that a row is the product of four small distributions.
    """

    def row(diabetic: Array, action: Array, observed: Array) -> Array:
        vitals, given, now = vitals_of(observed), treatments_of(observed), treatments_by(action)
        heart_rate = _distribution(lambda c: _next_heart_rate(vitals, given, now, c), LEVELS[0])
        pressure = CELL_WEIGHTS @ jax.vmap(
            lambda c: _distribution(lambda v: _next_pressure(vitals, given, now, diabetic, c, v), LEVELS[1])
        )(CELL_MIDDLES)
        oxygen = _distribution(lambda c: _next_oxygen(vitals, given, now, c), LEVELS[2])
        glucose = _distribution(lambda c: next_glucose(vitals, now, diabetic, c), LEVELS[3])
        return jnp.einsum("a,b,c,d->abcd", heart_rate, pressure, oxygen, glucose).ravel()

    table = jax.vmap(jax.vmap(jax.vmap(row, (None, None, 0)), (None, 0, None)), (0, None, None))
    return table(jnp.arange(2), jnp.arange(NUM_ACTIONS), jnp.arange(NUM_OBSERVED))


def _antibiotics(level: Array, now: Treatments, coin: Array) -> Array:
    on = jnp.where((level == 2) & (coin < 0.5), 1, level)
    off = jnp.where((level == 1) & (coin < 0.1), 2, level)
    return jnp.where(now.antibiotics, on, off)


def _fluctuate(level: Array, top: int, probability: float, coin: Array) -> Array:
    down, up = jnp.maximum(level - 1, 0), jnp.minimum(level + 1, top)
    return jnp.where(coin < probability, down, jnp.where(coin < 2 * probability, up, level))


def _distribution(level: Callable[[Array], Array], levels: int) -> Array:
    """The probabilities of `level(coin)`, by its value in each cell."""
    values = jax.vmap(level)(CELL_MIDDLES)
    return CELL_WEIGHTS @ jax.nn.one_hot(values, levels)
