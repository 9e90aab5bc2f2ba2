"""`HostSimulator`: an environment of your own, whose noise you hand to it, as a model: worker processes run it.

It is a POMDP like any other: whatever takes a model takes it. All chance is in the scenario: what `begin` and `step`
leave to chance otherwise breaks that. Where the environment draws its own numbers, take `GymSimulator`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.host_playing import Inputs, Program, unsaved
from coulda.environments.host_workers import Pool
from coulda.environments.taping import drawing_from
from coulda.errors import CouldaError
from coulda.noise import NoiseDistribution, Point
from coulda.pomdp import ActionMechanism, Episode
from coulda.pomdp.batching import host_call
from coulda.pomdp.black_box import BlackBoxPOMDP, Played

Begin = Callable[[gymnasium.Env, Any], Any]
"""Begins an episode of an environment on U_s1 (NumPy's arrays) and returns the first observation."""
Step = Callable[[gymnasium.Env, Any, Any], Any]
"""Takes an action in an environment on U_s, and returns what `env.step` does."""


def plain_step(env: gymnasium.Env, action: Any, u: Any) -> Any:  # noqa: ARG001
    """`env.step(action)`, for environments whose steps leave nothing to chance."""
    return env.step(action)


class HostSimulator(BlackBoxPOMDP):
    """An environment that is deterministic once it is given its noise, as a model.

    Args:
        make_env: gives a new environment; or its name, `file.py:name` or `package.module:name`.
        begin: begins an episode on U_s1, see `Begin`.
        step: takes a step on U_s, see `Step`; without it steps have no noise.
        initial_noise: the distribution of U_s1.
        transition_noise: that of the noise of one step; none by default.
        horizon: T. An environment that ends before, by termination or truncation, ends its episode.
        action_mechanism: the named reparameterization of the policy's choice.
        observation_scale: the standard deviation of logged numbers, where scenarios are weighed by them (`Tempered`).
        workers: number of processes; 0 is this one. They start with the first episode, and end with `close`, a `with`
            block, or this process.
        time_limit: seconds after which a step that does not end is given up.
    """

    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism
    observation_scale: float | None
    first_noise: NoiseDistribution
    step_noise: NoiseDistribution
    pool: Pool = eqx.field(static=True)
    spaces: "Spaces" = eqx.field(static=True)

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env] | str,
        begin: Begin,
        step: Step = plain_step,
        *,
        initial_noise: NoiseDistribution,
        transition_noise: NoiseDistribution | None = None,
        horizon: int,
        action_mechanism: ActionMechanism,
        observation_scale: float | None = None,
        workers: int = 2,
        time_limit: float = 60.0,
    ):
        program = Program(make_env, begin, step, None, horizon, ())
        env = program.made()
        spaces = Spaces(env.observation_space, env.action_space)
        env.close()
        self._fill(program, spaces, initial_noise, transition_noise or Point(), action_mechanism, observation_scale)
        self.pool = Pool(program._replace(examples=self._examples()), workers, time_limit)

    def _fill(
        self, program: Program, spaces: "Spaces", first: Any, step: Any, mechanism: Any, scale: float | None
    ) -> None:
        if program.horizon < 1:
            raise CouldaError(f"horizon is {program.horizon}; an episode has at least one step")
        if scale is not None and not scale > 0:
            raise CouldaError(f"observation_scale is {scale}; it is a standard deviation, and more than 0")
        self.horizon, self.action_mechanism, self.observation_scale = program.horizon, mechanism, scale
        self.first_noise, self.step_noise, self.spaces = first, step, spaces

    def _examples(self) -> Any:
        """Arrays of one observation, one action, U_s1 and one U_s."""
        key = jax.random.key(0)
        noise = jax.eval_shape(lambda: (self.first_noise.sample(key), self.step_noise.sample(key)))
        arrays = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), noise)
        return (_example(self.spaces.observation), _example(self.spaces.action), *arrays)

    @property
    def observation_space(self) -> gymnasium.Space:
        """The environment's."""
        return self.spaces.observation

    @property
    def action_space(self) -> gymnasium.Space:
        """The environment's."""
        return self.spaces.action

    @property
    def initial_noise(self) -> NoiseDistribution:
        """P(U_s1)."""
        return self.first_noise

    @property
    def transition_noise(self) -> NoiseDistribution:
        """P(U_s) of one step."""
        return self.step_noise

    def run(self, before: Played) -> tuple[Any, Array, Array]:
        """In the workers, all elements of a batch in one call."""
        seen, leaves = before.observation, len(jax.tree.leaves(before.observation))

        def call(inputs: Inputs, ended: np.ndarray) -> tuple[Any, Any, Any]:
            found = self.pool.advance(inputs, ended)
            reward, over = found[leaves:]
            return jax.tree.unflatten(jax.tree.structure(seen), found[:leaves]), reward, over

        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (seen, before.reward, before.ended))
        inputs = Inputs(before.initial, before.transition, before.action, before.step)
        return host_call(call, shapes, inputs, before.ended)

    def replay(self, inputs: Inputs | str | Path) -> Episode:
        """One episode on its noise and actions, alone and in this process: what an error names can be looked at.

        Args:
            inputs: `error.inputs`, or the file that the error names.
        """
        one = unsaved(self.pool.program, inputs) if isinstance(inputs, str | Path) else inputs
        alone = Pool(self.pool.program, 0, self.pool.time_limit)
        whole = Inputs(*(jax.tree.map(lambda leaf: np.asarray(leaf)[None], part) for part in one))
        seen, steps = [], []
        for step in range(int(one.step) + 1):
            found = alone.advance(whole._replace(step=np.array([step], np.int32)), np.zeros(1, bool))
            seen.append([leaf[0] for leaf in found[:-2]])
            steps.append((found[-2][0], found[-1][0]))
        stacked = [np.stack(leaves) for leaves in zip(*seen, strict=True)]
        structure = jax.tree.structure(self.pool.program.examples[0])
        reward = np.array([paid for paid, _ in steps[1:]], np.float32)
        live = np.ones(len(reward), bool)
        unknown = np.full(len(reward), np.nan, np.float32)
        parts = one.action, reward, live, unknown
        return Episode(jax.tree.unflatten(structure, stacked), *(jax.tree.map(jnp.asarray, part) for part in parts))

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def __enter__(self) -> "HostSimulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Spaces:
    """Of observations and actions, each a tree of arrays of fixed shapes."""

    def __init__(self, observation: gymnasium.Space, action: gymnasium.Space):
        self.observation, self.action = drawing_from(observation, None), drawing_from(action, None)
        for what, space in (("observations", observation), ("actions", action)):
            if not _fixed(space):
                raise CouldaError(
                    f"{space} is not a space of arrays of fixed shapes, as {what} must be. Wrap the environment, as "
                    "with gymnasium.wrappers.FlattenObservation or TransformObservation."
                )
        if isinstance(action, gymnasium.spaces.Discrete) and int(action.start):
            raise CouldaError(f"actions are {action}; wrap the environment so that they count from 0")

    def __repr__(self) -> str:
        return f"Spaces({self.observation}, {self.action})"


def _fixed(space: gymnasium.Space) -> bool:
    if isinstance(space, gymnasium.spaces.Dict):
        return all(_fixed(part) for part in space.spaces.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return all(_fixed(part) for part in space.spaces)
    spaces = gymnasium.spaces
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete)


def _example(space: gymnasium.Space) -> Any:
    """An element of the space as JAX would be given it."""
    return jax.tree.map(
        lambda x: np.zeros(np.shape(x), jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)), space.sample()
    )
