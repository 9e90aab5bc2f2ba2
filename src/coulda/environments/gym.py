"""`GymSimulator`: a Gymnasium environment as it is, its own generator on a tape of noise.

The environment's generator is replaced by one that draws from the scenario (`tape`): `np_random` of the environment and
of those it wraps, generators in their attributes, and those of their spaces. Each reset and each step has a row of
numbers of its own, and draws take them in order, so that a step that draws less leaves some over and the next is not
moved by it. The same scenario and actions give the same episode; policies meet the same noise; noise can be inferred.
"""

from collections.abc import Callable

import gymnasium
import jax
import jax.numpy as jnp
from jax import Array

from coulda.environments.dry_run import with_margin
from coulda.environments.host import HostSimulator, Spaces
from coulda.environments.host_playing import Program
from coulda.environments.host_workers import Pool
from coulda.environments.inverting import invert_episode
from coulda.environments.taping import layers, taped_reset, taped_step
from coulda.errors import CouldaError
from coulda.naming import anywhere, load
from coulda.noise import Uniform
from coulda.pomdp import POMDP, ActionMechanism, Episode, GumbelMaxChoice, LocationScaleAction, Scenario
from coulda.pomdp.batching import host_call
from coulda.pomdp.black_box import Inverted


class GymSimulator(HostSimulator):
    """A Gymnasium environment, unchanged, as a model.

    Args:
        make_env: gives a new environment, such as a class or `functools.partial(gymnasium.make, "FrozenLake-v1")`; or
            its name, `file.py:name` or `package.module:name`.
        horizon: T; by default the environment's own limit of steps.
        action_mechanism: the named reparameterization of the policy's choice; Gumbel-max for discrete actions, location
            and scale for continuous ones. The environment's own draws go by the inverse CDF.
        draws_at_reset: numbers on the tape for a reset; by default what a dry run needs, and half as many more.
        draws_per_step: the same for each step.
        observation_scale: the standard deviation of logged numbers, where scenarios are weighed by them (`Tempered`).
        workers: number of processes; 0 is this one.
        time_limit: seconds after which a step that does not end is given up.

    Raises:
        CouldaError: where the environment is not deterministic given its tape; it is run twice to find out.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env] | str,
        *,
        horizon: int | None = None,
        action_mechanism: ActionMechanism | None = None,
        draws_at_reset: int | None = None,
        draws_per_step: int | None = None,
        observation_scale: float | None = None,
        workers: int = 2,
        time_limit: float = 60.0,
    ):
        program = Program(make_env, taped_reset, taped_step, invert_episode, horizon or 1, ())
        env = program.made()
        spaces = Spaces(env.observation_space, env.action_space)
        program = program._replace(horizon=_horizon(env, program, horizon))
        env.close()
        trial = Pool(program, min(workers, 1), time_limit)
        drawn = trial.tried("dry_run")[0].tolist()
        trial.close()
        draws = [
            with_margin(most) if given is None else given
            for most, given in zip(drawn, (draws_at_reset, draws_per_step), strict=True)
        ]
        mechanism = action_mechanism or _mechanism(spaces.action)
        noise = [Uniform(shape=(size,)) for size in draws]
        self._fill(program, spaces, noise[0], noise[1], mechanism, observation_scale)
        self.pool = Pool(program._replace(examples=self._examples()), workers, time_limit)

    def invert(self, episode: Episode, steps: Array, fresh: Scenario, dice: Array) -> Inverted:
        """By going through what the environment drew, in the workers; see `inverting`."""
        result = (
            jax.ShapeDtypeStruct(fresh.initial.shape, jnp.float32),
            jax.ShapeDtypeStruct(fresh.transition.shape, jnp.float32),
            jax.ShapeDtypeStruct((), jnp.float32),
            jax.ShapeDtypeStruct((), jnp.int32),
        )
        arguments = (
            *jax.tree.leaves((episode.observation, episode.action)),
            episode.reward,
            episode.live,
            steps,
            fresh.initial,
            fresh.transition,
            dice,
        )
        found = host_call(lambda *leaves: tuple(self.pool.invert(*leaves)), result, *arguments)
        return Inverted(*found)

    def check_invertible(self) -> None:
        """Some episodes of its own must be explained."""
        self.pool.tried("pilot")


def _horizon(env: gymnasium.Env, program: Program, given: int | None) -> int:
    if given is not None:
        return given
    limits = [getattr(layer, "_max_episode_steps", None) for layer in layers(env)]
    found = [limit for limit in limits if limit is not None]
    if not found:
        raise CouldaError(
            f"{program.name} has no limit of steps; give horizon=, the most that an episode has, or let it return "
            "gymnasium.wrappers.TimeLimit(env, …)"
        )
    return min(found)


def load_model(name: str) -> POMDP:
    """The model called `file.py:name` or `package.module:name`: a POMDP, or a Gymnasium environment as one.

    The name may be that of a function which makes either of the two, or of a class.
    """
    made = load(name, (POMDP, gymnasium.Env))
    if isinstance(made, POMDP):
        return made
    made.close()
    return GymSimulator(anywhere(name))


def _mechanism(space: gymnasium.Space) -> ActionMechanism:
    if isinstance(space, gymnasium.spaces.Discrete):
        return GumbelMaxChoice(int(space.n))
    if isinstance(space, gymnasium.spaces.Box):
        return LocationScaleAction(space.shape)
    raise CouldaError(f"actions are {space}; give the action_mechanism that makes them of a policy's distribution")
