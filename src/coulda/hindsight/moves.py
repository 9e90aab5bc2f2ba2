"""Moves of whole paths of noise: a Markov chain that leaves the (tempered) posterior as it is.

Two kinds take turns. One moves what lies in a window of time towards a fresh draw of the prior, and is accepted by the
likelihood alone; windows of all sizes come in turn, U_s1 being the first entry of a path. It needs nothing of the noise
but `sample`. The other moves all continuous noise at once where it has few dimensions, else that of the first state, by
a Gaussian that is fitted to the population, which knows what hangs together; the ratio of densities corrects it.
"""

import itertools
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.hindsight.coordinates import Position
from coulda.hindsight.likelihood import Agreement, Seen
from coulda.noise import drawn

if TYPE_CHECKING:
    from coulda.hindsight.particles import Sampler

ACCEPTED = 0.25
"""The share of moves that should be accepted: about the best for random walks in many dimensions."""
LEARNING_RATE = 2.0
"""Of the sizes of moves, per move."""
EXAMPLES = 10
"""Paths per dimension of the Gaussian. With fewer it follows the very paths that it moves, and the evidence is off: by
.6 nats of 29 with 93 dimensions and 500 paths."""
ISLANDS = 2
"""Independent populations, each with its share of the particles: how far they differ tells how far to believe them."""
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
        return Population(paths, agreement, jnp.zeros(self._kinds), unmoved)

    def moved(
        self, key: Array, population: Population, temperature: Array | float = 1.0, *, fitted: bool = False
    ) -> Population:
        """The population after `times` moves that leave the tempered posterior invariant. Consumes `key`.

        Args:
            key: consumed.
            population: where it stands.
            temperature: β of `Agreement.tempered`.
            fitted: whether it is large enough to learn from: a Gaussian is fitted to it, and sizes of moves adapt.
        """
        temperature = jnp.asarray(temperature, float)
        size = population.moved.shape[0]
        gaussian = self._fitted(population.paths) if fitted else None

        def step(population: Population, inputs: tuple[Array, Array]) -> tuple[Population, None]:
            key, turn = inputs
            key_fresh, key_dice, key_redraw = jax.random.split(key, 3)
            place, accept, shrink = jax.random.uniform(key_dice, (3 * size,)).reshape(3, size)
            # Windows from the largest on; every other move is by the Gaussian, which is the last of the kinds.
            kind = self._widths - 1 - turn % self._widths
            if gaussian is not None:
                kind = jnp.where(turn % 2 == 0, self._widths, self._widths - 1 - turn // 2 % self._widths)
            scales = jnp.exp(population.log_scales[kind] + jnp.log(SMALLEST) * shrink)
            fresh = self.sampler.sample_paths(key_fresh, size)
            dice = self._dice(key_redraw, size)
            move = jax.vmap(self._proposal, (0, 0, 0, 0, 0, None, None))
            proposals, correction = move(population.paths, fresh, dice, place, scales, kind, gaussian)
            there = self._agreement(proposals)
            ratio = there.tempered(temperature) - population.agreement.tempered(temperature)
            accepted = jnp.log(accept) < ratio + correction
            # What was drawn anew and came out the same says nothing of how far to move.
            changed = jax.vmap(_differs)(proposals, population.paths)
            pick = lambda a, b: jnp.where(jnp.reshape(accepted, (-1,) + (1,) * (a.ndim - 1)), a, b)
            paths, agreement = jax.tree.map(pick, (proposals, there), (population.paths, population.agreement))
            count = lambda which: jnp.sum(jnp.where(which, 1.0, 0.0))
            share = (count(accepted & changed) + ACCEPTED) / (count(changed) + 1)
            learned = population.log_scales.at[kind].add(LEARNING_RATE * (share - ACCEPTED))
            log_scales = jnp.clip(learned, -7.0, 0.0) if fitted else population.log_scales
            return Population(paths, agreement, log_scales, population.moved | accepted), None

        first = eqx.tree_at(lambda p: p.moved, population, jnp.zeros(size, bool))
        return jax.lax.scan(step, first, (jax.random.split(key, self.times), jnp.arange(self.times)))[0]

    def _dice(self, key: Array, size: int) -> Array:
        """By which noise that is not continuous is drawn anew, `[size, T + 1]`; zeros where all of it is."""
        shape = size, self.seen.within.size
        if self.sampler.initial.continuous and self.sampler.transition.continuous:
            return jnp.zeros(shape)
        return drawn(jax.random.uniform, key, shape)

    @property
    def _widths(self) -> int:
        """How many sizes of windows there are: 1, 2, 4, … up to all of the path."""
        return (self.seen.within.shape[0] - 1).bit_length() + 1

    @property
    def _kinds(self) -> int:
        return self._widths + 1

    def _agreement(self, paths: Path) -> Agreement:
        return jax.vmap(lambda path: self.sampler.agreement(path, self.seen, self.cut_short))(paths)

    def _proposal(
        self, path: Path, fresh: Path, dice: Array, place: Array, scale: Array, kind: Array, gaussian: "Gaussian | None"
    ) -> tuple[Path, Array]:
        """Another path, and what corrects the ratio of likelihoods."""
        by_window = self._in_window(path, fresh, dice, place, scale, jnp.minimum(kind, self._widths - 1))
        if gaussian is None:
            return by_window, jnp.zeros(())
        old, new = self._normals(path), self._normals(fresh)
        proposed = gaussian.moved(old, new, scale)
        correction = gaussian.log_ratio(proposed) - gaussian.log_ratio(old)
        whole = kind == self._widths
        by_gaussian = self._with_normals(path, proposed)
        chosen = jax.tree.map(lambda a, b: jnp.where(whole, a, b), by_gaussian, by_window)
        return chosen, jnp.where(whole, correction, 0.0)

    def _in_window(self, path: Path, fresh: Path, dice: Array, place: Array, scale: Array, width: Array) -> Path:
        """One path with what lies in a window of 2^width entries moved, somewhere within the history."""
        size, length = 2**width, jnp.maximum(jnp.sum(self.seen.within), 1)
        start = jnp.floor(place * (length + size - 1).astype(float)).astype(jnp.int32) + 1 - size
        order = jnp.arange(self.seen.within.shape[0])
        chosen = (order >= start) & (order < start + size)
        # At least one entry in the mean: a window of one in which nothing is drawn anew would be no move at all.
        redrawn = dice < jnp.maximum(scale, 1 / size.astype(float))
        first, rest = self.sampler.initial, self.sampler.transition
        return Path(
            first.moved(path.initial, fresh.initial, scale, chosen[0], redrawn[0]),
            rest.moved(path.transition, fresh.transition, scale, chosen[1:], redrawn[1:]),
        )

    def _fitted(self, paths: Path) -> "Gaussian | None":
        normals = jax.vmap(self._normals)(paths)
        return Gaussian.fitted(normals) if 0 < normals.shape[1] <= self._learnable else None

    @property
    def _learnable(self) -> int:
        return self.sampler.particles // ISLANDS // EXAMPLES

    def _moving(self, path: Path) -> list[Array]:
        """The normal coordinates that the Gaussian is of: all of them where they are few, else those of U_s1."""
        first, rest = self.sampler.initial.normals(path.initial), self.sampler.transition.normals(path.transition)
        return first + rest if sum(x.size for x in first + rest) <= self._learnable else first

    def _normals(self, path: Path) -> Array:
        """Those in one row, `[d]`."""
        return jnp.concatenate([jnp.zeros(0), *(x.ravel() for x in self._moving(path))])

    def _with_normals(self, path: Path, normals: Array) -> Path:
        first, rest = self.sampler.initial, self.sampler.transition
        shapes = self._moving(path)
        ends = list(itertools.accumulate(x.size for x in shapes))
        parts = [normals[end - x.size : end].reshape(x.shape) for x, end in zip(shapes, ends, strict=True)]
        split = len(first.normals(path.initial))
        initial = first.with_normals(path.initial, parts[:split])
        return Path(initial, rest.with_normals(path.transition, parts[split:]) if parts[split:] else path.transition)


def _differs(a: Path, b: Path) -> Array:
    """Whether two paths do, anywhere."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.stack([jnp.zeros((), bool), *(jnp.any(x != y) for x, y in pairs)]).any()


class Gaussian(eqx.Module):
    """N(m, LL') in normal coordinates, `[d]`: about where a population is."""

    mean: Array
    factor: Array
    inverse: Array
    """L⁻¹."""

    @classmethod
    def fitted(cls, normals: Array) -> "Gaussian":
        """To `[n, d]`."""
        mean = normals.mean(0)
        apart = normals - mean[None]
        covariance = apart.T @ apart / normals.shape[0]
        factor = jnp.linalg.cholesky(covariance + jnp.diag(1e-6 + 1e-3 * jnp.diag(covariance)))
        identity = jnp.eye(normals.shape[1])
        return cls(mean, factor, jax.scipy.linalg.solve_triangular(factor, identity, lower=True))

    def moved(self, old: Array, fresh: Array, scale: Array) -> Array:
        """Towards another draw of it, made of `fresh`, a standard normal one: leaves the Gaussian invariant."""
        return self.mean + jnp.sqrt(1 - scale**2) * (old - self.mean) + scale * (self.factor @ fresh)

    def log_ratio(self, normals: Array) -> Array:
        """Log of the standard normal density over its own, but for a constant."""
        white = self.inverse @ (normals - self.mean)
        return 0.5 * (white @ white - normals @ normals)
