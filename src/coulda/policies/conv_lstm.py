"""The paper's policy: a convolutional LSTM over grids of categories, with a softmax and a value head."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from coulda.errors import CouldaError
from coulda.networks import ConvLSTM, Dense
from coulda.networks.conv_lstm import Carry
from coulda.noise import Categorical
from coulda.policies.actor_critic import ActorCritic
from coulda.storage import Count, Few


class ConvLSTMArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="conv-lstm"):
    """All that makes a `ConvLSTMPolicy` but its weights."""

    height: Count
    width: Count
    num_tiles: Count = 7
    num_actions: Count = 5
    layers: Few = 1
    channels: Count = 16
    kernel: Few = 3
    ticks: Few = 1
    """Passes through all layers per observation."""
    units: Count = 128
    """The units of the dense layer before the heads."""
    focus: tuple[int, ...] = ()
    """Categories of tiles, such as the agent's, in whose cells the heads see the memory, with the mean over all cells
    beside it, so that what is learned in one place holds in all. Without any they see every cell where it lies, as in
    the paper."""


class ConvLSTMPolicy(ActorCritic):
    """π(a | h) for observations that are grids of tile categories, `uint8[height, width]`.

    The network does not see the border of the grid, which is always wall: the interior alone is 1.5 times cheaper.
    Section 3.2: 3 layers of 32 channels, kernel size 3, two ticks per step (`paper_policy`).
    """

    memory: ConvLSTM
    hidden: Dense
    heads: Dense
    """Action logits, then the value."""
    architecture: ConvLSTMArchitecture = eqx.field(static=True)

    def __init__(self, key: Array, height: int, width: int, **options: Any):
        """`options` are those of `ConvLSTMArchitecture`."""
        self.architecture = a = ConvLSTMArchitecture(height, width, **options)
        check_interior(a.height, a.width)
        key_memory, key_hidden, key_heads = jax.random.split(key, 3)
        self.memory = ConvLSTM(
            key_memory, a.num_tiles, layers=a.layers, channels=a.channels, kernel=a.kernel, ticks=a.ticks
        )
        cells = 2 if a.focus else (a.height - 2) * (a.width - 2)
        self.hidden = Dense(key_hidden, cells * a.channels, a.units, scale=2**0.5)
        self.heads = Dense(key_heads, a.units, a.num_actions + 1, scale=0.1)

    def initial_carry(self) -> Carry:
        """Zeros."""
        return self.memory.initial_carry(self.architecture.height - 2, self.architecture.width - 2)

    def with_value(self, carry: Carry, observation: Array) -> tuple[Carry, Categorical, Array]:
        """The network's answer."""
        tiles = observation[1:-1, 1:-1]
        carry, top = self.memory(carry, jax.nn.one_hot(tiles, self.architecture.num_tiles))
        outputs = self.heads(jax.nn.relu(self.hidden(self._read(tiles, top))))
        return carry, Categorical(logits=outputs[:-1]), outputs[-1]

    def _read(self, tiles: Array, top: Array) -> Array:
        """What the heads see of the memory `top [height, width, channels]`."""
        if not self.architecture.focus:
            return jnp.ravel(top)
        focus = jnp.isin(tiles, jnp.asarray(self.architecture.focus, tiles.dtype)).astype(top.dtype)
        return jnp.concatenate([jnp.einsum("hw,hwc->c", focus, top), jnp.mean(top, (0, 1))])


def check_interior(height: int, width: int) -> None:
    """Refuse a grid that is all border, at which these policies do not look."""
    if min(height, width) < 3:
        raise CouldaError(f"a grid of {height}×{width} has no interior; the least is 3×3.")


def paper_policy(key: Array, height: int = 10, width: int = 10) -> ConvLSTMPolicy:
    """The architecture of section 3.2."""
    return ConvLSTMPolicy(key, height, width, layers=3, channels=32, ticks=2, units=256)
