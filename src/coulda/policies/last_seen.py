"""A policy that remembers what it last saw of each cell, and plans over that: no memory has to be learned.

For grids that are seen through masks and in which nothing moves unseen, as in PO-Sokoban: boxes move only where the
agent pushes them, in the window that it sees. There the map of what was seen last is all that the history tells of
where things are, but for the chance that a cell that never showed anything is empty, which the time tells.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
from jax import Array, lax

from coulda.networks import Dense, ResidualTower
from coulda.noise import Categorical
from coulda.policies.actor_critic import ActorCritic
from coulda.policies.conv_lstm import check_interior
from coulda.storage import Count, Few


class LastSeenArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="last-seen"):
    """All that makes a `LastSeenPolicy` but its weights."""

    height: Count
    width: Count
    horizon: Count
    """Time is told to the network as a part of this."""
    agent: tuple[int, ...]
    """The categories of the agent's cell: where the heads look, and round which everything is seen."""
    masked: int = 0
    """What a masked cell is shown as."""
    window: Few = 3
    """The edge of the square round the agent in which nothing is masked."""
    num_tiles: Count = 7
    num_actions: Count = 5
    blocks: Few = 3
    channels: Count = 32
    units: Count = 128
    """The units of the dense layer before the heads."""


class LastSeenPolicy(ActorCritic):
    """π(a | h) for observations that are grids of tile categories, `uint8[height, width]`.

    The carry is the map, `uint8[height - 2, width - 2]`, and how many observations there were. As `ConvLSTMPolicy`, it
    does not look at the border of the grid, which is always wall.
    """

    tower: ResidualTower
    hidden: Dense
    heads: Dense
    """Action logits, then the value."""
    architecture: LastSeenArchitecture = eqx.field(static=True)

    def __init__(self, key: Array, height: int, width: int, **options: Any):
        """`options` are those of `LastSeenArchitecture`."""
        self.architecture = a = LastSeenArchitecture(height, width, **options)
        check_interior(a.height, a.width)
        key_tower, key_hidden, key_heads = jax.random.split(key, 3)
        # Each category, never seen, and the time.
        self.tower = ResidualTower(key_tower, a.num_tiles + 2, blocks=a.blocks, channels=a.channels)
        self.hidden = Dense(key_hidden, 3 * a.channels, a.units, scale=2**0.5)
        self.heads = Dense(key_heads, a.units, a.num_actions + 1, scale=0.1)

    def initial_carry(self) -> tuple[Array, Array]:
        """Nothing was seen."""
        a = self.architecture
        return jnp.full((a.height - 2, a.width - 2), a.num_tiles, jnp.uint8), jnp.int32(0)

    def with_value(self, carry: tuple[Array, Array], observation: Array) -> tuple[Any, Categorical, Array]:
        """The network's answer to the map with what is seen now."""
        a, (seen, count) = self.architecture, carry
        tiles = observation[1:-1, 1:-1].astype(jnp.uint8)
        agent = jnp.isin(tiles, jnp.asarray(a.agent, jnp.uint8))
        seen = jnp.where((tiles != a.masked) | self._near(agent), tiles, seen)
        time = jnp.broadcast_to(count.astype(jnp.float32) / a.horizon, (*seen.shape, 1))
        top = self.tower(jnp.concatenate([jax.nn.one_hot(seen, a.num_tiles + 1), time], -1))
        here = jnp.einsum("hw,hwc->c", agent.astype(top.dtype), top)
        read = jnp.concatenate([here, jnp.mean(top, (0, 1)), jnp.max(top, (0, 1))])
        outputs = self.heads(jax.nn.relu(self.hidden(read)))
        return (seen, count + 1), Categorical(logits=outputs[:-1]), outputs[-1]

    def _near(self, agent: Array) -> Array:
        """Cells in the window round the agent, where also what looks masked is seen."""
        window = (self.architecture.window,) * 2
        return lax.reduce_window(agent.astype(jnp.int32), 0, lax.max, window, (1, 1), "SAME") > 0
