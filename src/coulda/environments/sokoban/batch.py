"""Episodes one after another from a pool of levels: the fast path for whole batches, with automatic resets.

Written for one place in the batch, like everything else: `vmap` over seeds and actions. All chance of a place is its
seed, 64 bits drawn at the boundary: its episode number i plays the level and the observation noise that
`batch.scenario_noise(seed, i)` names, and the same seed and actions give the same run.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.counter_hash import GAMMA, scramble
from coulda.environments.sokoban.boards import BoardGame, Boards, has_closed_border
from coulda.environments.sokoban.environment import Sokoban
from coulda.environments.sokoban.noise import UniformLevels, step_key
from coulda.errors import CouldaError


class BatchState(eqx.Module):
    """Where one place in the batch stands."""

    boards: Boards
    seed: tuple[Array, Array]
    """All its chance, 2 × uint32."""
    episode: Array
    """uint32: how many episodes went before."""
    step: Array
    """uint32: actions taken in this episode."""


class Timestep(eqx.Module):
    """What one place shows after a reset or a step."""

    observation: Array
    """`uint8[height · width]`, flat in raster order."""
    reward: Array
    terminated: Array
    """Solved (or a level without an agent): the next step begins the next episode."""
    truncated: Array
    """The horizon was reached: likewise."""


class SokobanBatch(eqx.Module):
    """`Sokoban` with automatic resets; make one with `SokobanBatch.of(environment)`."""

    game: BoardGame
    pool: Boards
    """The levels, `[n]` in each leaf."""
    horizon: int = eqx.field(static=True)
    mask_probability: float = eqx.field(static=True)
    window: int = eqx.field(static=True)

    @classmethod
    def of(cls, environment: Sokoban) -> "SokobanBatch":
        """The fast path of an environment whose levels are a pool."""
        if not isinstance(environment.levels, UniformLevels):
            raise CouldaError(
                f"a batch resets from a pool of levels, but the environment's are {type(environment.levels).__name__}; "
                "draw some and give UniformLevels(levels)"
            )
        border = int(has_closed_border(np.asarray(environment.levels.levels)))
        height, width = environment.height - 2 * border, environment.width - 2 * border
        game = BoardGame(height, width, environment.num_boxes, border)
        pool = jax.jit(jax.vmap(game.pack))(environment.levels.levels)
        return cls(game, pool, environment.horizon, environment.mask_probability, environment.window)

    def reset(self, seed: Array) -> tuple[BatchState, Timestep]:
        """Begin the first episode of the place with this seed, `uint32[2]`."""
        state = self._begin((seed[0], seed[1]), jnp.uint32(0))
        return state, self._show(state, jnp.float32(0))

    def step(self, state: BatchState, action: Array) -> tuple[BatchState, Timestep]:
        """Act; after the end of an episode the action is ignored and the next episode begins."""
        terminated, truncated = self._ended(state)
        boards, reward = self.game.step(state.boards, action)
        fresh = self._begin(state.seed, state.episode + 1)
        moved = BatchState(boards, state.seed, state.episode, state.step + 1)
        again = terminated | truncated
        following = jax.tree.map(lambda new, old: jnp.where(again, new, old), fresh, moved)
        return following, self._show(following, jnp.where(again, 0.0, reward))

    def scenario_noise(self, seed: tuple[Array, Array], episode: Array) -> tuple[Array, Array]:
        """(index of the level, seed `uint32[2]` of its `TileNoise`) of one episode."""
        low, high = _episode_key(seed, episode)
        return self._level(low, high), jnp.stack([low, high])

    def _begin(self, seed: tuple[Array, Array], episode: Array) -> BatchState:
        index = self._level(*_episode_key(seed, episode))
        return BatchState(jax.tree.map(lambda leaf: leaf[index], self.pool), seed, episode, jnp.uint32(0))

    def _level(self, low: Array, high: Array) -> Array:
        """Uniform over the pool: the top 24 bits as a fraction of its size."""
        size = len(self.pool.agent)
        fraction = (scramble(low ^ GAMMA, high) >> 8).astype(jnp.float32) * np.float32(2.0**-24)
        return jnp.minimum((fraction * size).astype(jnp.int32), size - 1)

    def _ended(self, state: BatchState) -> tuple[Array, Array]:
        terminated = self.game.over(state.boards)
        return terminated, ~terminated & (state.step == self.horizon)

    def _show(self, state: BatchState, reward: Array) -> Timestep:
        # XLA would compute the state and its key again for each tile.
        key = step_key(jnp.stack(_episode_key(state.seed, state.episode)), state.step)
        state, (low, high) = jax.lax.optimization_barrier((state, key))
        observation = self.game.observe(state.boards, low, high, self.mask_probability, self.window)
        return Timestep(observation, reward, *self._ended(state))


def _episode_key(seed: tuple[Array, Array], episode: Array) -> tuple[Array, Array]:
    """64 bits for one episode of one place."""
    low = scramble(seed[0] + episode * GAMMA, seed[1])
    return low, scramble(seed[1] + episode * GAMMA, low)
