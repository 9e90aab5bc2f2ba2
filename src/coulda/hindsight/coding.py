"""Noise as a code that a network can learn: which atom a discrete part is, and where in normal space a continuous one.

Parts of a distribution are those of `coordinates`. One that has `from_normal` is standard normal numbers, so that
nothing that a network says can fall outside of the prior's support; one that has few `atoms` is their index. What has
neither is not learned: it stays as it was drawn from the prior.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.hindsight.coordinates import Coordinates, Part, Position
from coulda.noise import Bernoulli, NoiseDistribution, Point, has

MOST_ATOMS = 1024
"""Of a part that is learned by a logit for each."""


class Code(NamedTuple):
    """Noise as numbers."""

    indices: Array
    """Of atoms, `[m]` int32."""
    normals: Array
    """Standard normal under the prior, `[d]`."""


class Coding(eqx.Module):
    """Codes of the noise of one distribution."""

    distribution: NoiseDistribution

    @property
    def coordinates(self) -> Coordinates:
        """Its parts."""
        return Coordinates(self.distribution)

    @property
    def log_prior(self) -> Array:
        """Log-probabilities of the atoms of each discrete number, `[m, n]`, -inf where it has fewer."""
        tables = [_table(part) for part in self.coordinates.parts if _is_discrete(part)]
        most = max((table.shape[1] for table in tables), default=0)
        pad = lambda table: jnp.pad(table, ((0, 0), (0, most - table.shape[1])), constant_values=-jnp.inf)
        return jnp.concatenate([jnp.zeros((0, most)), *map(pad, tables)])

    @property
    def num_normals(self) -> int:
        """How many standard normal numbers there are."""
        return sum(_size(part) for part in self.coordinates.parts if part.continuous)

    @property
    def num_features(self) -> int:
        """How many numbers `features` gives."""
        return math.prod(jax.eval_shape(lambda: self.log_prior).shape) + self.num_normals

    @property
    def not_coded(self) -> list[str]:
        """Of which kinds the parts are that have chance and no code."""
        parts = [part for part in self.coordinates.parts if not (part.continuous or _is_discrete(part))]
        return [type(part.distribution).__name__ for part in parts if not isinstance(part.distribution, Point)]

    def sample(self, key: Array) -> tuple[Code, Any]:
        """A draw of the prior, as a code and as noise. Consumes `key`."""
        key_indices, key_rest = jax.random.split(key)
        position, log_prior = self.coordinates.sample(key_rest), self.log_prior
        normals = [jnp.zeros(0), *(x.ravel() for x in self.coordinates.normals(position))]
        indices = jnp.zeros(0, jnp.int32)
        if log_prior.size:
            indices = jax.random.categorical(key_indices, log_prior).astype(jnp.int32)
        code = Code(indices, jnp.concatenate(normals))
        return code, self.coordinates.noise(self.position(code, position))

    def position(self, code: Code, drawn: Position) -> Position:
        """The position of a code; what has no code is as it was `drawn`."""
        found, index, normal = [], 0, 0
        for part, value in zip(self.coordinates.parts, drawn, strict=True):
            if part.continuous:
                found.append(code.normals[normal : normal + value.size].reshape(value.shape))
                normal += value.size
            elif _is_discrete(part):
                size = _size(part)
                found.append(_atoms_at(part, code.indices[index : index + size]))
                index += size
            else:
                found.append(value)
        return found

    def features(self, code: Code) -> Array:
        """The code as one row of numbers: atoms by ones and zeros, then the normal numbers."""
        most = jax.eval_shape(lambda: self.log_prior).shape[1]
        return jnp.concatenate([jax.nn.one_hot(code.indices, most).ravel(), code.normals])


def _is_discrete(part: Part) -> bool:
    distribution = part.distribution
    if part.continuous or isinstance(distribution, Point) or not has(distribution, "atoms"):
        return False
    return isinstance(distribution, Bernoulli) or len(distribution.atoms()[1]) <= MOST_ATOMS


def _shape(part: Part) -> tuple[int, ...]:
    """Of the numbers that a part has a code of."""
    if part.continuous:
        return (*part.times, *jax.eval_shape(part.distribution.sample, jax.random.key(0)).shape)
    return (*part.times, *(part.distribution.shape if isinstance(part.distribution, Bernoulli) else ()))


def _size(part: Part) -> int:
    return math.prod(_shape(part))


def _table(part: Part) -> Array:
    """Log-probabilities of a discrete part's numbers, `[size, n]`; the coins of a Bernoulli are one by one."""
    if isinstance(part.distribution, Bernoulli):
        coins = jnp.broadcast_to(part.distribution.probability, part.distribution.shape).reshape(-1, 1)
        table = jnp.log(jnp.concatenate([1 - coins, coins], 1))
    else:
        table = part.distribution.atoms()[1][None]
    return jnp.tile(table, (math.prod(part.times), 1))


def _atoms_at(part: Part, indices: Array) -> Any:
    indices = indices.reshape(_shape(part))
    if isinstance(part.distribution, Bernoulli):
        return indices == 1
    return jax.tree.map(lambda values: values[indices], part.distribution.atoms()[0])
