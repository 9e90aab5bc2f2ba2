"""Named reparameterizations of a sepsis transition: the same probabilities, different counterfactuals.

- `gumbel_max`: one Gumbel for each of the 720 next states, as published. An action sets the treatments of the next
  state, so that two different actions never reach the same one: their Gumbels are different, and what happened
  under one action says nothing of another. Only a repeated action shares noise.
- `gumbel_max_vitals`: one Gumbel for each of the 90 combinations of vitals, shared by all actions.
- `inverse_cdf`: one uniform number, over the vitals in their order.
- `simulator`: the five uniform numbers that the simulator itself compares with its thresholds.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.counter_hash import GAMMA, scramble
from coulda.environments.sepsis import kernel
from coulda.environments.sepsis.kernel import CELL_MIDDLES, CELL_WEIGHTS, NUM_VITALS, Coins
from coulda.mechanisms import gumbel_argmax, gumbel_given_argmax
from coulda.noise import Categorical, Independent, NoiseDistribution, Uniform
from coulda.pomdp import choice


class Before(NamedTuple):
    """What a transition starts from, and the log-probabilities of the 90 combinations of vitals that may follow."""

    diabetic: Array
    observed: Array
    action: Array
    log_probs: Array


class TransitionMechanism(eqx.Module):
    """The next vitals, in 0 … 89, as a function of noise."""

    @property
    @abc.abstractmethod
    def noise(self) -> NoiseDistribution:
        """P(U_s)."""

    @abc.abstractmethod
    def __call__(self, before: Before, u: Any) -> Array:
        """The next vitals."""

    @abc.abstractmethod
    def posterior(self, before: Before, vitals: Array, fresh: Any) -> Any:
        """A draw of p(u | before, vitals), carried there from `fresh`."""


class VitalsChoice(TransitionMechanism):
    """A choice among the 90 combinations of vitals with noise that all actions share."""

    reparameterization: str = eqx.field(static=True)

    @property
    def noise(self) -> NoiseDistribution:
        """90 Gumbels, or one uniform number."""
        return choice(self.reparameterization, NUM_VITALS).noise

    def __call__(self, before: Before, u: Array) -> Array:
        """The next vitals."""
        return choice(self.reparameterization, NUM_VITALS)(Categorical(logits=before.log_probs), u)

    def posterior(self, before: Before, vitals: Array, fresh: Array) -> Array:
        """Noise that chooses these vitals."""
        distribution = Categorical(logits=before.log_probs)
        return choice(self.reparameterization, NUM_VITALS).posterior(distribution, vitals, fresh)


class StateGumbels(eqx.Module):
    """720 standard Gumbels, 90 for each combination of treatments, of which only those asked for are computed."""

    seed: Array
    """`[2]` uint32."""
    inferred_row: Array
    """The treatments whose Gumbels were inferred, 0 … 7, or -1."""
    inferred: Array
    """`[90]`."""

    def row(self, treatments: Array) -> Array:
        """The Gumbels `[90]` of the states with these treatments."""
        return jnp.where(treatments == self.inferred_row, self.inferred, _gumbels(self.seed, treatments))


def _gumbels(seed: Array, row: Array) -> Array:
    """`[90]` of a 64-bit seed and a row number: a hash of (seed, row, place), ten times faster than JAX's generator."""
    place = (row.astype(jnp.uint32) * NUM_VITALS + jnp.arange(NUM_VITALS, dtype=jnp.uint32)) * GAMMA
    bits = scramble(seed[0] + place, seed[1])
    # 23 bits and a half: the number is never 0 or 1 in single precision, so that its Gumbel is finite.
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * np.float32(2**-23)
    return -jnp.log(-jnp.log(uniform))


class StateGumbelNoise(NoiseDistribution):
    """The distribution of `StateGumbels`."""

    def sample(self, key: Array) -> StateGumbels:
        """A seed."""
        return StateGumbels(jax.random.bits(key, (2,), jnp.uint32), jnp.int32(-1), jnp.zeros(NUM_VITALS))


class StateChoice(TransitionMechanism):
    """Gumbel-max over the 720 next states."""

    @property
    def noise(self) -> StateGumbelNoise:
        """720 Gumbels."""
        return StateGumbelNoise()

    def __call__(self, before: Before, u: StateGumbels) -> Array:
        """The next vitals."""
        return gumbel_argmax(before.log_probs, u.row(kernel.treatment_bits(before.action)))

    def posterior(self, before: Before, vitals: Array, fresh: StateGumbels) -> StateGumbels:
        """Only the Gumbels of the states that the action could reach are touched."""
        treatments = kernel.treatment_bits(before.action)
        inferred = gumbel_given_argmax(before.log_probs, vitals, fresh.row(treatments))
        return StateGumbels(fresh.seed, treatments, inferred)


class SimulatorCoins(TransitionMechanism):
    """The simulator as it is written."""

    @property
    def noise(self) -> Independent:
        """Five uniform numbers."""
        return Independent(Coins(*(Uniform() for _ in Coins._fields)))

    def __call__(self, before: Before, u: Coins) -> Array:
        """The next vitals."""
        vitals = kernel.next_vitals(before.diabetic, before.observed, before.action, u)
        return kernel.vitals_index(vitals).astype(jnp.int32)

    def posterior(self, before: Before, vitals: Array, fresh: Coins) -> Coins:
        """Each coin in the cells that give the vital that was seen; of the pressure's two coins, one by one."""
        seen = kernel.vitals_of(vitals * kernel.NUM_TREATMENTS)

        def agrees(name: str, **coins: Array) -> Array:
            u = Coins(**{field: jnp.float32(0.5) for field in Coins._fields} | coins)
            after = kernel.next_vitals(before.diabetic, before.observed, before.action, u)
            return (getattr(after, name) == getattr(seen, name)).astype(float)

        def alone(name: str) -> Array:
            mask = jax.vmap(lambda c: agrees(name, **{name: c}))(CELL_MIDDLES)
            return _uniform_in_cells(CELL_WEIGHTS * mask, getattr(fresh, name))

        def both(first: Array, second: Array) -> Array:
            return agrees("pressure", pressure=first, pressure_vasopressors=second)

        pairs = jax.vmap(lambda a: jax.vmap(lambda b: both(a, b))(CELL_MIDDLES))(CELL_MIDDLES)
        pressure = _uniform_in_cells(CELL_WEIGHTS * (pairs @ CELL_WEIGHTS), fresh.pressure)
        mask = jax.vmap(lambda b: both(pressure, b))(CELL_MIDDLES)
        vasopressors = _uniform_in_cells(CELL_WEIGHTS * mask, fresh.pressure_vasopressors)
        return Coins(alone("heart_rate"), pressure, vasopressors, alone("oxygen"), alone("glucose"))


MECHANISMS: dict[str, TransitionMechanism] = {
    "gumbel_max": StateChoice(),
    "gumbel_max_vitals": VitalsChoice("gumbel_max"),
    "inverse_cdf": VitalsChoice("inverse_cdf"),
    "simulator": SimulatorCoins(),
}


def _uniform_in_cells(weights: Array, fresh: Array) -> Array:
    """A uniform number carried into cells of the unit interval, chosen by `weights`, one per cell."""
    upper = jnp.cumsum(weights) / jnp.sum(weights)
    possible = weights > 0
    cell = jnp.minimum(jnp.sum(upper <= fresh), weights.shape[0] - 1)
    # Rounding must not leave the last possible cell.
    cell = jnp.minimum(cell, jnp.max(jnp.where(possible, jnp.arange(weights.shape[0]), 0)))
    lower = upper[cell] - weights[cell] / jnp.sum(weights)
    inside = (fresh - lower) / (upper[cell] - lower)
    edge = jnp.asarray(kernel.EDGES[:-1], jnp.float32)[cell]
    return edge + jnp.clip(inside, 1e-4, 1 - 1e-4) * jnp.asarray(CELL_WEIGHTS)[cell]
