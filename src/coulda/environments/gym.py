"""`GymSimulator`: a Gymnasium environment as it is, its own generator on a tape of noise.

The environment's generator is replaced by one that draws from the scenario (`tape`): `np_random` of the environment and
of those it wraps, generators in their attributes, and those of their spaces. Each reset and each step has a row of
numbers of its own, and draws take them in order, so that a step that draws less leaves some over and the next is not
moved by it. The same scenario and actions give the same episode; policies meet the same noise; noise can be inferred.
"""

import copy
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import seeding
from jax import Array

from coulda.environments.host import HostSimulator, Spaces
from coulda.environments.host_workers import Pool, Program
from coulda.environments.inverting import invert_episode
from coulda.environments.tape import TapedGenerator
from coulda.errors import CouldaError
from coulda.host_calls import host_call
from coulda.noise import Uniform
from coulda.pomdp import ActionMechanism, Episode, GumbelMaxChoice, LocationScaleAction, Scenario
from coulda.pomdp.black_box import Inverted

DRY_EPISODES, DRY_STEPS = 8, 4000
"""Episodes under any actions, and steps of them all, in which draws are counted; each is run twice."""
MARGIN, SPARE = 1.5, 2
"""The tape has this many times the largest number of draws that was met, and some more; none where there was none."""
LONGEST_ROW = 2**16
"""Numbers that one dry step may draw."""
PILOT = 3
"""Episodes on which inversion is tried."""

GENERATOR = TapedGenerator()
"""The one generator of all environments of a process; each reset and step puts in its own row."""
_taped: "weakref.WeakSet[gymnasium.Env]" = weakref.WeakSet()


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
        drawn = _dry_run(program, env)
        draws = [_with_margin(most) if given is None else given for most, given in zip(drawn, (draws_at_reset, draws_per_step), strict=True)]
        mechanism = action_mechanism or _mechanism(spaces.action)
        noise = [Uniform(shape=(size,)) for size in draws]
        self._fill(program, spaces, *noise, mechanism, observation_scale)
        self.pool = Pool(program._replace(examples=self._examples()), workers, time_limit)

    def invert(self, episode: Episode, steps: Array, fresh: Scenario, dice: Array) -> Inverted:
        """By going through what the environment drew, in the workers; see `inverting`."""
        count = dice.shape[0]
        result = (
            jax.ShapeDtypeStruct((count, *self.first_noise.shape), jnp.float32),
            jax.ShapeDtypeStruct((count, self.horizon, *self.step_noise.shape), jnp.float32),
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
        rng = np.random.default_rng(0)
        program = self.pool.program
        for _ in range(PILOT):
            _, _, initial, transition = program.examples
            rows = rng.random((program.horizon + 1, max(initial.size, transition.size)), np.float32)
            first, rest = rows[0, : initial.size], rows[1:, : transition.size]
            observed, actions, rewards, live = _random_episode(program, first, rest, rng)
            fresh = rng.random((1, *initial.shape), np.float32), rng.random((1, *rest.shape), np.float32)
            dice = rng.random((1, program.horizon + 1))
            leaves = *jax.tree.leaves((observed, actions)), rewards, live, np.int32(2**30), *fresh, dice
            *_, failed = invert_episode(program, *leaves)
            if failed >= 0:
                raise CouldaError(f"an episode of {program.name}'s own could not be explained from step {failed} on")


def taped_reset(env: gymnasium.Env, row: np.ndarray, *, watch: bool = False) -> Any:
    """Reset on a row of the tape; the first observation."""
    if env not in _taped:
        tape(env)
        _taped.add(env)
    GENERATOR.load(row.tolist(), "reset", watch=watch)
    # Environments that make their generator anew in each reset, without a seed, get the taped one.
    kept = seeding.np_random, np.random.default_rng
    seeding.np_random = lambda seed=None: (GENERATOR, seed or 0)
    np.random.default_rng = lambda seed=None: GENERATOR if seed is None else kept[1](seed)
    try:
        observation, _ = env.reset()
    finally:
        seeding.np_random, np.random.default_rng = kept
    return observation


def taped_step(env: gymnasium.Env, action: Any, row: np.ndarray, *, watch: bool = False) -> Any:
    """Step on a row of the tape."""
    GENERATOR.load(row.tolist(), "step", watch=watch)
    return env.step(action)


def tape(env: gymnasium.Env) -> None:
    """Let an environment, all that it wraps, and their spaces, draw from `GENERATOR`."""
    found: list[Any] = [env]
    known: set[int] = set()
    while found:
        thing = found.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        parts = dict(vars(thing))
        if isinstance(thing, gymnasium.Space):
            thing._np_random = GENERATOR
        elif not isinstance(thing, gymnasium.Wrapper):
            thing._np_random, thing._np_random_seed = GENERATOR, -1
        for name, part in parts.items():
            if isinstance(part, np.random.Generator):
                setattr(thing, name, GENERATOR)
            inner = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else (part,)
            found += [one for one in inner if isinstance(one, gymnasium.Env | gymnasium.Space)]
        if isinstance(thing, gymnasium.Env):
            found += [thing.observation_space, thing.action_space]


def _horizon(env: gymnasium.Env, program: Program, given: int | None) -> int:
    found = given or getattr(env.spec, "max_episode_steps", None)
    if found is None:
        raise CouldaError(f"{program.name} has no limit of steps of its own; give horizon=, the most that an episode has")
    return int(found)


def _mechanism(space: gymnasium.Space) -> ActionMechanism:
    if isinstance(space, gymnasium.spaces.Discrete):
        return GumbelMaxChoice(int(space.n))
    if isinstance(space, gymnasium.spaces.Box):
        return LocationScaleAction(space.shape)
    raise CouldaError(f"actions are {space}; give the action_mechanism that makes them of a policy's distribution")


def _with_margin(most: int) -> int:
    return math.ceil(MARGIN * most) + SPARE if most else 0


def _dry_run(program: Program, env: gymnasium.Env) -> tuple[int, int]:
    """The largest number of draws of a reset and of a step; refuses what its tape does not determine.

    Each episode is run twice on the same numbers, by environments that had other episodes before.
    """
    other, actions = program.made(), copy.deepcopy(env.action_space)
    actions.seed(0)
    rng = np.random.default_rng(0)
    most, left = [0, 0], DRY_STEPS
    for _ in range(DRY_EPISODES):
        row = rng.random(LONGEST_ROW, np.float32)
        taken = [actions.sample() for _ in range(min(program.horizon, left))]
        before = _chances()
        first, second = (_dry_episode(one, row, taken) for one in (env, other))
        _check_same(program, first, second, [name for name, state in _chances().items() if state != before[name]], env)
        for place, (_, used) in enumerate(first):
            most[min(place, 1)] = max(most[min(place, 1)], used)
        left -= len(first)
        if left <= 0:
            break
        _dry_episode(other, row[::-1], taken[:5])  # so that they differ in what they had before
    env.close()
    other.close()
    return most[0], most[1]


def _dry_episode(env: gymnasium.Env, row: np.ndarray, actions: list[Any]) -> list[tuple[Any, int]]:
    """What came of the reset and of each step, and how much each has drawn."""
    found = [((taped_reset(env, row), 0.0, False, False), GENERATOR.used)]
    for t, action in enumerate(actions):
        *made, _ = taped_step(env, action, row[t + 1 :])
        found.append((copy.deepcopy(tuple(made)), GENERATOR.used))
        if made[2] or made[3]:
            break
    return found


def _chances() -> dict[str, Any]:
    """Where chance may come from that is not on the tape, as far as it can be told."""
    return {
        "Python's `random`": hash(random.getstate()),
        "NumPy's global generator (np.random.…)": hash(np.random.get_state(legacy=True)[1].tobytes()),  # noqa: NPY002
    }


def _check_same(program: Program, first: Any, second: Any, changed: list[str], env: gymnasium.Env) -> None:
    names = "observation", "reward", "terminated", "truncated"
    for step, ((one, _), (other, _)) in enumerate(zip(first, second, strict=False)):
        for name, a, b in zip(names, one, other, strict=True):
            same = jax.tree.map(lambda x, y: np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f"), a, b)
            if not all(jax.tree.leaves(same)):
                raise CouldaError(
                    f"{program.name} is not deterministic given its tape: run twice on the same noise and actions, its "
                    f"{name} at step {step} was {a} and then {b}. {_blamed(changed, env)}"
                )


def _blamed(changed: list[str], env: gymnasium.Env) -> str:
    if changed:
        return f"It draws from {' and '.join(changed)}; let it draw from self.np_random, which can be taped."
    own = [
        f"{type(layer).__name__}.{name}"
        for layer in _layers(env)
        for name, value in vars(layer).items()
        if isinstance(value, np.random.RandomState | random.Random)
    ]
    if own:
        return f"{' and '.join(own)} cannot be taped; use self.np_random, or numpy.random.default_rng()."
    return (
        "Neither `random` nor NumPy's global generator was used: look for a generator that is hidden from Gymnasium (in "
        "an object of its own, or seeded anew in each reset), a C library's, the time, or something that outlives reset; "
        "let it draw from self.np_random."
    )


def _layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers




def _random_episode(program: Program, first: np.ndarray, rest: np.ndarray, rng: np.random.Generator) -> Any:
    """An episode under any actions, padded: observations, actions, rewards and which steps were taken."""
    env = program.made()
    space = copy.deepcopy(env.action_space)
    space.seed(int(rng.integers(2**31)))
    observed, actions, rewards, live = [taped_reset(env, first)], [], [], []
    over = False
    for t in range(program.horizon):
        actions.append(space.sample())
        live.append(not over)
        reward = 0.0
        if over:
            observed.append(observed[-1])
        else:
            seen, reward, terminated, truncated, _ = taped_step(env, actions[-1], rest[t])
            observed.append(copy.deepcopy(seen))
            over = bool(terminated or truncated)
        rewards.append(reward)
    stack = lambda values: jax.tree.map(lambda *leaves: np.stack(leaves), *values)
    return stack(observed), stack(actions), np.array(rewards, np.float32), np.array(live)
