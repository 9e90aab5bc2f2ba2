"""Residual convolutions that also tell every cell about all of them: plans over a whole grid, without a memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.networks.layers import Convolution, Dense


class ResidualTower(eqx.Module):
    """One convolution, then blocks: `[H, W, inputs]` -> `[H, W, channels]`.

    A block is x + convolution(relu(convolution(x))), plus the same number in each cell, made of the mean and the
    largest of what the first convolution found anywhere (as "pool and inject" in Guez et al., 2019): five blocks of
    3 × 3 kernels see ten cells far, and whether something lies at the other end of the grid is known to all.
    """

    entry: Convolution
    blocks: tuple["_Block", ...]

    def __init__(self, key: Array, inputs: int, *, blocks: int = 3, channels: int = 32):
        key_entry, *keys = jax.random.split(key, blocks + 1)
        self.entry = Convolution(key_entry, inputs, channels)
        self.blocks = tuple(_Block(key, channels) for key in keys)

    def __call__(self, x: Array) -> Array:
        """What is found in each cell, rectified."""
        x = jax.nn.relu(self.entry(x))
        for block in self.blocks:
            x = block(x)
        return x


class _Block(eqx.Module):
    first: Convolution
    second: Convolution
    everywhere: Dense

    def __init__(self, key: Array, channels: int):
        key_first, key_second, key_everywhere = jax.random.split(key, 3)
        self.first = Convolution(key_first, channels, channels)
        # Small, so that a deep tower begins near the identity.
        second = Convolution(key_second, channels, channels)
        self.second = eqx.tree_at(lambda layer: layer.kernel, second, 0.3 * second.kernel)
        self.everywhere = Dense(key_everywhere, 2 * channels, channels, scale=0.3)

    def __call__(self, x: Array) -> Array:
        inner = jax.nn.relu(self.first(x))
        pooled = jnp.concatenate([jnp.mean(inner, (0, 1)), jnp.max(inner, (0, 1))])
        outer = self.second(inner)
        return jax.nn.relu(x + outer + jnp.broadcast_to(self.everywhere(pooled), outer.shape))
