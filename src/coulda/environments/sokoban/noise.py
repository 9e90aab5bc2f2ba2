"""The noise of PO-Sokoban: which level is played, and 32 bits for each tile of each observation.

A hundred draws of JAX's own generator per step would cost a hundred times the game. So U_o is lazy: 64 bits per
episode, from which the slice u_t is computed by a hash of (episode, step, tile). It is drawn at the boundary like all
noise, and the same value always gives the same slices.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.counter_hash import GAMMA, scramble
from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError
from coulda.noise import NoiseDistribution, drawn
from coulda.pomdp import LazyNoise


def step_key(seed: Array, step: Array) -> tuple[Array, Array]:
    """64 bits for one step of one episode, from its seed `uint32[2]`."""
    low = scramble(seed[0] + step.astype(jnp.uint32) * GAMMA, seed[1])
    return low, scramble(low + GAMMA, seed[0])


def tile_bits(low: Array, high: Array, num_tiles: int) -> Array:
    """`uint32[num_tiles]`: independent uniform bits for the tiles of one observation."""
    return scramble(low + jnp.arange(num_tiles, dtype=jnp.uint32) * GAMMA, high)


class TileNoise(LazyNoise):
    """U_o of one episode: 64 bits from which the noise of every tile and step follows."""

    seed: Array
    """`uint32[2]`"""
    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def at(self, step: Array | int) -> Array:
        """u_t, `uint32[height, width]`."""
        low, high = step_key(self.seed, jnp.asarray(step))
        return tile_bits(low, high, self.height * self.width).reshape(self.height, self.width)


class TileNoiseSeeds(NoiseDistribution):
    """The prior of `TileNoise`."""

    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def sample(self, key: Array) -> TileNoise:
        """64 uniform bits."""
        return TileNoise(jax.random.bits(key, (2,), jnp.uint32), self.height, self.width)


class Bits(NoiseDistribution):
    """32 uniform bits, elementwise over `shape`: the distribution of one slice u_t."""

    shape: tuple[int, ...] = eqx.field(static=True)

    def sample(self, key: Array) -> Array:
        """Draw `uint32[shape]`."""
        return drawn(jax.random.bits, key, self.shape)

    def log_prob(self, value: Array) -> Array:
        """-32 log 2 for each number."""
        return jnp.float32(-32 * np.log(2) * value.size)


class UniformLevels(NoiseDistribution):
    """P(U_s1): one of n levels, all equally likely."""

    levels: Array
    """`uint8[n, height, width]`"""

    def __init__(self, levels: Array | np.ndarray):
        self.levels = jnp.asarray(tiles.as_levels(levels))
        if not len(self.levels):
            raise CouldaError("UniformLevels needs at least one level, got none")

    def sample(self, key: Array) -> Array:
        """Draw a level, `uint8[height, width]`."""
        return self.levels[jax.random.randint(key, (), 0, len(self.levels))]

    def log_prob(self, value: Array) -> Array:
        """Log of the share of levels that equal `value`."""
        return jnp.log(jnp.mean(jnp.all(self.levels == value[None], axis=(1, 2))))

    def atoms(self) -> tuple[Array, Array]:
        """The levels and their log-probabilities."""
        n = len(self.levels)
        return self.levels, jnp.full(n, -np.log(n))
