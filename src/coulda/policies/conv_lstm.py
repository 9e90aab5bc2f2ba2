"""The paper's policy: a convolutional LSTM over grids of categories, with a softmax and a value head."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.networks import ConvLSTM, Dense
from coulda.networks.conv_lstm import Carry
from coulda.noise import Categorical
from coulda.policies.actor_critic import ActorCritic


class ConvLSTMPolicy(ActorCritic):
    """π(a | h) for observations that are grids of tile categories, `uint8[height, width]`.

    The network does not see the border of the grid, which is always wall: the interior alone is 1.5 times cheaper.
    Section 3.2: 3 layers of 32 channels, kernel size 3, two ticks a step (`paper_policy`).
    """

    memory: ConvLSTM
    hidden: Dense
    heads: Dense
    """Action logits, then the value."""
    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    num_tiles: int = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        height: int,
        width: int,
        *,
        num_tiles: int = 7,
        num_actions: int = 5,
        layers: int = 1,
        channels: int = 16,
        ticks: int = 1,
        units: int = 128,
    ):
        key_memory, key_hidden, key_heads = jax.random.split(key, 3)
        self.height, self.width, self.num_tiles = height - 2, width - 2, num_tiles
        if self.height < 1 or self.width < 1:
            raise ValueError(f"a grid of {height}×{width} has no interior; the least is 3×3.")
        self.memory = ConvLSTM(key_memory, num_tiles, layers=layers, channels=channels, ticks=ticks)
        self.hidden = Dense(key_hidden, self.height * self.width * channels, units, scale=2**0.5)
        self.heads = Dense(key_heads, units, num_actions + 1, scale=0.1)

    def initial_carry(self) -> Carry:
        """Zeros."""
        return self.memory.initial_carry(self.height, self.width)

    def with_value(self, carry: Carry, observation: Array) -> tuple[Carry, Categorical, Array]:
        """The network's answer."""
        tiles = jax.nn.one_hot(observation[1:-1, 1:-1], self.num_tiles)
        carry, top = self.memory(carry, tiles)
        outputs = self.heads(jax.nn.relu(self.hidden(jnp.ravel(top))))
        return carry, Categorical(logits=outputs[:-1]), outputs[-1]


def paper_policy(key: Array, height: int = 10, width: int = 10) -> ConvLSTMPolicy:
    """The architecture of section 3.2."""
    return ConvLSTMPolicy(key, height, width, layers=3, channels=32, ticks=2, units=256)
