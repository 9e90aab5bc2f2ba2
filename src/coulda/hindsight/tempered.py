"""`Tempered`: p(U | h_t) by bringing the evidence in little by little, for static unknowns and precise observations.

Many whole scenarios begin as draws of the prior. The likelihood is raised to a power β that goes from 0 to 1 in steps
that keep half of the effective sample size; at each, scenarios are resampled and moved (`moves`). No state is ever
resampled in the middle of a path, so that what is unknown from the beginning stays diverse.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from coulda.hindsight.likelihood import Agreement, Seen
from coulda.hindsight.moves import ISLANDS, Moves, Path, Population
from coulda.hindsight.particles import Sampler, check_size, filter_islands, island_gap, populated, systematic
from coulda.hindsight.source import ALL_STEPS, FINE, IMPOSSIBLE, NOT_A_NUMBER, Inference
from coulda.pomdp import POMDP, Actor

MOST_TEMPERATURES = 60
"""Then what is left is done at once; an episode that needs more is not explained by the model."""
BISECTIONS = 24
SCOUTS = 64
"""Particles of the filter that finds out whether the log was cut short."""


class Tempered(Sampler):
    """Draws of p(U | h_t) by a tempered sequential Monte Carlo sampler over whole scenarios.

    Args:
        model: any POMDP whose observations have a density, written or derived.
        behavior: who acted. With it the noise of its actions is inferred too; a planner must be given, since its
            actions tell of the state.
        particles: how many scenarios.
        moves: how often each is moved at every temperature.
        reward_scale: the standard deviation of logged rewards, where they are measured with an error. Without it
            they are evidence only where they take separate values.
    """

    particles: int = eqx.field(static=True)
    moves: int = eqx.field(static=True)

    def __init__(
        self,
        model: POMDP,
        behavior: Actor | None = None,
        *,
        particles: int = 1000,
        moves: int = 40,
        reward_scale: float | None = None,
    ):
        check_size("moves", moves, 1)
        self.evidence = populated(model, behavior, reward_scale, particles)
        self.particles, self.moves, self.steps = particles, moves, jnp.int32(ALL_STEPS)

    def paths(self, key: Array, seen: Seen, count: int) -> tuple[Path, Inference]:
        """Draws of the last temperature. Consumes `key`."""
        key_scout, key_run, key_draw = jax.random.split(key, 3)
        scouts = jax.tree.map(lambda leaf: leaf[0], filter_islands(key_scout, self.evidence, seen, SCOUTS)[0])
        size = self.particles // ISLANDS
        moves = Moves(self, seen, scouts.cut_short, self.moves)
        run = lambda one: _tempered(one, moves, size)
        islands = jax.vmap(run)(jax.random.split(key_run, ISLANDS))
        weight = jnp.where(jnp.isfinite(islands.log_evidence).any(), islands.log_evidence, 0.0)
        island = jax.random.categorical(key_draw, weight, shape=(count,))
        # Islands have equal weights within; a draw is the next of its island, so that none comes twice before all did.
        slot = (jnp.cumsum(jax.nn.one_hot(island, ISLANDS, dtype=jnp.int32), 0)[jnp.arange(count), island] - 1) % size
        found = jax.tree.map(lambda leaf: leaf[island, slot], islands.population.paths)
        failed = jnp.where(islands.flawed.any(), NOT_A_NUMBER, IMPOSSIBLE)
        fine = ~islands.flawed.any() & jnp.isfinite(islands.log_evidence).any()
        return found, Inference(
            log_evidence=logsumexp(islands.log_evidence) - jnp.log(1.0 * ISLANDS),
            effective=jnp.sum(jnp.where(islands.population.moved, 1.0, 0.0)),
            gap=island_gap(islands.log_evidence),
            r_hat=jnp.ones(()),
            reason=jnp.where(fine, FINE, failed).astype(jnp.int32),
            step=jnp.where(fine, -1, scouts.step).astype(jnp.int32),
        )


class _Island(eqx.Module):
    """One population on its way from the prior to the posterior."""

    population: Population
    temperature: Array
    log_evidence: Array
    flawed: Array
    temperatures: Array
    """How many there were."""


def _tempered(key: Array, moves: Moves, size: int) -> _Island:
    key_first, key_steps = jax.random.split(key)

    def unfinished(island: _Island) -> Array:
        return island.temperature < 1

    def step(island: _Island) -> _Island:
        agreement = island.population.agreement
        key_resample, key_move = jax.random.split(jax.random.fold_in(key_steps, island.temperatures))
        last = island.temperatures + 1 >= MOST_TEMPERATURES
        temperature = jnp.where(last, 1.0, _next_temperature(agreement, island.temperature))
        gained = agreement.tempered(temperature) - agreement.tempered(island.temperature)
        total = logsumexp(gained)
        possible = total > -jnp.inf
        weights = jnp.where(possible, jnp.exp(gained - jnp.where(possible, total, 0.0)), 1.0 / size)
        kept = systematic(jax.random.uniform(key_resample), weights)
        old = island.population
        paths, agreement = jax.tree.map(lambda leaf: leaf[kept], (old.paths, old.agreement))
        population = Population(paths, agreement, old.log_scales, old.moved)
        population = moves.moved(key_move, population, temperature, fitted=True)
        return _Island(
            population,
            temperature,
            island.log_evidence + total - jnp.log(1.0 * size),
            island.flawed | population.agreement.flawed.any(),
            island.temperatures + 1,
        )

    first = moves.begun(moves.sampler.sample_paths(key_first, size))
    zero = jnp.zeros(())
    return jax.lax.while_loop(unfinished, step, _Island(first, zero, zero, first.agreement.flawed.any(), jnp.int32(0)))


def _next_temperature(agreement: Agreement, temperature: Array) -> Array:
    """The largest β at which half of the effective sample size is left, found by bisection; 1 where more is."""
    before = agreement.tempered(temperature)

    def enough(candidate: Array) -> Array:
        gained = agreement.tempered(candidate) - before
        peak = jnp.max(gained)
        weights = jnp.where(peak > -jnp.inf, jnp.exp(gained - jnp.where(peak > -jnp.inf, peak, 0.0)), 0.0)
        return jnp.sum(weights) ** 2 >= 0.5 * weights.shape[0] * jnp.sum(weights**2)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        good = enough(middle)
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (temperature, jnp.ones(())))
    # Where no step is small enough the smallest is taken, so that it goes on.
    found = jnp.where(low > temperature, low, high)
    return jnp.where(enough(jnp.ones(())) & jnp.isfinite(agreement.tempered(jnp.ones(()))).any(), 1.0, found)
