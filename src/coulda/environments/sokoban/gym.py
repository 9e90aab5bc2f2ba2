"""Gymnasium: one environment, and a vector environment with its own automatic resets.

Both are `SokobanBatch` with a batch of one or many, so that they agree with the POMDP to the bit. Importing
`coulda.environments.sokoban` registers them.
"""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban.batch import BatchState, SokobanBatch, Timestep
from coulda.environments.sokoban.drawing import side_by_side
from coulda.environments.sokoban.environment import Sokoban
from coulda.environments.sokoban.generator import generate
from coulda.environments.sokoban.noise import UniformLevels
from coulda.errors import CouldaError
from coulda.pomdp import GumbelMaxChoice

ID = "coulda/POSokoban-v0"
_METADATA = {"render_modes": ["ansi", "rgb_array"], "render_fps": 5}


class POSokobanEnv(gymnasium.Env):
    """PO-Sokoban, one episode at a time.

    Args:
        render_mode: "ansi" (the state and what is seen of it, as text), "rgb_array" (as a picture), or None.
        levels: `uint8[n, height, width]`; generated from seed 0 when None.
        num_levels: How many to generate.
        height: Rows of generated levels.
        width: Columns of generated levels.
        num_boxes: Boxes that must be on targets.
        horizon: Steps until the episode is truncated.
        mask_probability: The probability that a tile is shown as empty.
        window: Side of the square round the agent that is never masked; 0 for none.
    """

    metadata: dict[str, Any] = _METADATA

    def __init__(self, render_mode: str | None = None, **parameters: Any):
        self.render_mode = _render_mode(render_mode)
        environment = _environment(**parameters)
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self._batch = SokobanBatch.of(environment)
        self._shape = environment.height, environment.width
        self._state: BatchState | None = None
        self._seen = np.zeros(self._shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; its level and noise follow from the seed."""
        super().reset(seed=seed, options=options)
        self._state, timestep = _reset(self._batch, _seeds(self.np_random, (2,)))
        self._seen = np.array(timestep.observation).reshape(self._shape)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call env.reset() before env.step()")
        self._state, t = _step(self._batch, self._state, jnp.uint8(action))
        self._seen = np.array(t.observation).reshape(self._shape)
        return self._seen, float(t.reward), bool(t.terminated), bool(t.truncated), {}

    def render(self) -> Any:
        """The state beside its observation, as text or as a picture."""
        if self._state is None or self.render_mode is None:
            return None
        return _render(self.render_mode, self._batch.game.unpack(self._state.boards), self._seen)


class POSokobanVectorEnv(gymnasium.vector.VectorEnv):
    """Many episodes of PO-Sokoban at once, compiled; a place whose episode has ended begins the next on the next step.

    Arguments as for `POSokobanEnv`, with `num_envs`.
    """

    metadata: dict[str, Any] = {**_METADATA, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **parameters: Any):
        self.num_envs, self.render_mode = num_envs, _render_mode(render_mode)
        environment = _environment(**parameters)
        self.single_observation_space = environment.observation_space
        self.single_action_space = environment.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._batch = SokobanBatch.of(environment)
        self._shape = num_envs, environment.height, environment.width
        self._state: BatchState | None = None
        self._seen = np.zeros(self._shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every place."""
        super().reset(seed=seed, options=options)
        self._state, timestep = _reset_all(self._batch, _seeds(self.np_random, (self.num_envs, 2)))
        self._seen = np.array(timestep.observation).reshape(self._shape)
        return self._seen, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in every place."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call envs.reset() before envs.step()")
        self._state, t = _step_all(self._batch, self._state, jnp.asarray(actions).astype(jnp.uint8))
        self._seen = np.array(t.observation).reshape(self._shape)
        return self._seen, np.array(t.reward), np.array(t.terminated), np.array(t.truncated), {}

    def render(self) -> tuple[Any, ...] | None:
        """What `POSokobanEnv.render` gives, for each place."""
        if self._state is None or self.render_mode is None:
            return None
        states = jax.vmap(self._batch.game.unpack)(self._state.boards)
        pairs = zip(np.asarray(states), self._seen, strict=True)
        return tuple(_render(self.render_mode, state, observation) for state, observation in pairs)


@eqx.filter_jit
def _reset(batch: SokobanBatch, seed: jax.Array) -> tuple[BatchState, Timestep]:
    return batch.reset(seed)


@eqx.filter_jit
def _step(batch: SokobanBatch, state: BatchState, action: jax.Array) -> tuple[BatchState, Timestep]:
    return batch.step(state, action)


@eqx.filter_jit
def _reset_all(batch: SokobanBatch, seeds: jax.Array) -> tuple[BatchState, Timestep]:
    return jax.vmap(batch.reset)(seeds)


@eqx.filter_jit
def _step_all(batch: SokobanBatch, state: BatchState, actions: jax.Array) -> tuple[BatchState, Timestep]:
    return jax.vmap(batch.step)(state, actions)


def _environment(
    levels: Any = None,
    num_levels: int = 10_000,
    height: int = 10,
    width: int = 10,
    num_boxes: int = 3,
    **parameters: Any,
) -> Sokoban:
    if levels is None:
        levels = generate(jax.random.key(0), num_levels, height, width, num_boxes)
    pool = UniformLevels(levels)
    height, width = pool.levels.shape[1:]
    return Sokoban(
        levels=pool,
        action_mechanism=GumbelMaxChoice(tiles.NUM_ACTIONS),
        height=height,
        width=width,
        num_boxes=num_boxes,
        **parameters,
    )


def _seeds(generator: np.random.Generator, shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(generator.integers(2**32, size=shape, dtype=np.uint32))


def _render_mode(mode: str | None) -> str | None:
    if mode is not None and mode not in _METADATA["render_modes"]:
        raise CouldaError(f"render_mode must be one of {_METADATA['render_modes']} or None, got {mode!r}")
    return mode


def _render(mode: str, state: Any, observation: Any) -> Any:
    if mode == "rgb_array":
        return side_by_side(state, observation)
    rows = zip(tiles.to_text(state).split("\n"), tiles.to_text(observation).split("\n"), strict=True)
    return "\n".join(f"{left}   {right}" for left, right in rows)


def register() -> None:
    """Tell Gymnasium about the environment; once is enough."""
    if ID not in gymnasium.registry:
        module = "coulda.environments.sokoban.gym"
        gymnasium.register(ID, f"{module}:POSokobanEnv", vector_entry_point=f"{module}:POSokobanVectorEnv")
