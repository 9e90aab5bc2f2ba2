"""Moves of whole paths that leave the prior over noise invariant, accepted by the likelihood alone.

Each takes a window of time, the noise of the first state being its first entry, and moves what lies in it towards a fresh
draw. Windows of all sizes take turns: small ones go far where the evidence is sharp, large ones move what hangs together.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.hindsight.coordinates import Position
from coulda.hindsight.likelihood import Agreement, Seen

if TYPE_CHECKING:
    from coulda.hindsight.particles import Sampler

ACCEPTED = 0.25
"""The share of moves that should be accepted: about the best for random walks in many dimensions."""
SMALLEST = 1 / 30
"""A move's size is drawn between this and 1 times the largest of its window, so that some always fit."""


class Path(eqx.Module):
    """The noise of the states of one path, in coordinates."""

    initial: Position
    transition: Position
    """`[T, ...]`."""


class Population(eqx.Module):
    """Paths `[n, ...]` on their way."""

    paths: Path
    agreement: Agreement
    log_scales: Array
    """The largest size of a move, by the size of its window."""
    moved: Array
    """Which paths were moved at all, `[n]`."""


class Moves(eqx.Module):
    """A Markov chain over the paths of one episode."""

    sampler: "Sampler"
    seen: Seen
    cut_short: Array
    times: int = eqx.field(static=True)

    def begun(self, paths: Path) -> Population:
        """A population before its first move."""
        agreement = self._agreement(paths)
        unmoved = jnp.zeros(agreement.violations.shape, bool)
        return Population(paths, agreement, jnp.zeros(self._widths), unmoved)

    def moved(self, key: Array, population: Population, temperature: Array | float = 1.0, rate: float = 0.0) -> Population:
        """The population after `times` moves that leave the tempered posterior invariant. Consumes `key`.

        Args:
            key: consumed.
            population: where it stands.
            temperature: β of `Agreement.tempered`.
            rate: how fast the sizes of moves learn from how many were accepted.
        """
        temperature = jnp.asarray(temperature, float)
        size = population.moved.shape[0]

        def step(population: Population, inputs: tuple[Array, Array]) -> tuple[Population, None]:
            key, turn = inputs
            key_fresh, key_dice, key_redraw = jax.random.split(key, 3)
            place, accept, shrink = jax.random.uniform(key_dice, (3 * size,)).reshape(3, size)
            width = turn % self._widths
            scales = jnp.exp(population.log_scales[width] + jnp.log(SMALLEST) * shrink)
            fresh = self.sampler.sample_paths(key_fresh, size)
            redraw = jax.random.uniform(key_redraw, (size * self.seen.within.size,)).reshape(size, -1)
            proposals = jax.vmap(self._proposal, (0, 0, 0, 0, 0, None))(
                population.paths, fresh, redraw, place, scales, width
            )
            there = self._agreement(proposals)
            ratio = there.tempered(temperature) - population.agreement.tempered(temperature)
            accepted = jnp.log(accept) < ratio
            pick = lambda a, b: jnp.where(jnp.reshape(accepted, (-1,) + (1,) * (a.ndim - 1)), a, b)
            paths, agreement = jax.tree.map(pick, (proposals, there), (population.paths, population.agreement))
            share = jnp.mean(jnp.where(accepted, 1.0, 0.0))
            log_scales = jnp.clip(population.log_scales.at[width].add(rate * (share - ACCEPTED)), -7.0, 0.0)
            return Population(paths, agreement, log_scales, population.moved | accepted), None

        first = eqx.tree_at(lambda p: p.moved, population, jnp.zeros(size, bool))
        # The largest windows come first, so that few moves still reach everything.
        turns = jnp.arange(self.times, 0, -1) + self._widths - 1 - self.times
        return jax.lax.scan(step, first, (jax.random.split(key, self.times), turns))[0]

    @property
    def _widths(self) -> int:
        """How many sizes of windows there are: 1, 2, 4, … up to all of the path."""
        return (self.seen.within.shape[0] - 1).bit_length() + 1

    def _agreement(self, paths: Path) -> Agreement:
        return jax.vmap(lambda path: self.sampler.agreement(path, self.seen, self.cut_short))(paths)

    def _proposal(self, path: Path, fresh: Path, dice: Array, place: Array, scale: Array, width: Array) -> Path:
        """One path with what lies in a window of 2^width entries moved, somewhere within the history."""
        size, length = 2**width, jnp.maximum(jnp.sum(self.seen.within), 1)
        start = jnp.floor(place * (length + size - 1).astype(float)).astype(jnp.int32) + 1 - size
        order = jnp.arange(self.seen.within.shape[0])
        chosen = (order >= start) & (order < start + size)
        first, rest = self.sampler.initial, self.sampler.transition
        return Path(
            first.moved(path.initial, fresh.initial, scale, chosen[0], dice[0]),
            rest.moved(path.transition, fresh.transition, scale, chosen[1:], dice[1:]),
        )

