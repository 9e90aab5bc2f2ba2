"""A dry run of a taped environment: how much it draws, and whether the tape is all that it leaves to chance.

A second one, `pilot`, finds out whether its episodes can be inverted.
"""

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np

from coulda.environments.host_playing import Program, raised
from coulda.environments.inverting import invert_episode
from coulda.environments.taping import GENERATOR, drawing_from, layers, taped_reset, taped_step
from coulda.errors import CouldaError

DRY_EPISODES, DRY_STEPS = 8, 4000
"""Episodes under any actions, and steps of them all, in which draws are counted; each is run twice."""
MARGIN, SPARE = 1.5, 2
"""The tape has this many times the largest number of draws that was met, and some more; none where there was none."""
PILOT, PILOT_STEPS = 3, 40
"""Episodes on which inversion is tried, and their first observations."""

Tell = Callable[[], None]
"""Told before each reset and each step, so that one that hangs is noticed."""


def dry_run(program: Program, tell: Tell) -> list[np.ndarray]:
    """The largest number of draws of a reset and of a step; refuses what its tape does not determine.

    Each episode is run twice on the same numbers, by environments that had other episodes before.
    """
    env, other = program.made(), program.made()
    actions = drawing_from(env.action_space, None)
    actions.seed(0)
    rng = np.random.default_rng(0)
    space = drawing_from(env.observation_space, None)
    most, left = [0, 0], DRY_STEPS
    for _ in range(DRY_EPISODES):
        row = _Endless(rng.random(997, np.float32))
        taken = [actions.sample() for _ in range(min(program.horizon, left))]
        before = _chances()
        first, second = (_dry_episode(program, one, row, taken, tell) for one in (env, other))
        _check_same(program, first, second, [name for name, state in _chances().items() if state != before[name]], env)
        for place, ((seen, *_), used) in enumerate(first):
            _check_shapes(space, seen, place)
            most[min(place, 1)] = max(most[min(place, 1)], used)
        left -= len(first)
        if left <= 0:
            break
        _dry_episode(program, other, row.after(500), taken[:5], tell)  # so that they differ in what they had before
    env.close()
    other.close()
    return [np.array(most)]


def _check_shapes(space: gymnasium.Space, observation: Any, step: int) -> None:
    """Refuse an observation that is not of its space's shape."""
    wanted = jax.tree.leaves(space.sample())
    parts = [observation] if len(wanted) == 1 else jax.tree.leaves(observation)
    said, found = ([np.shape(leaf) for leaf in leaves] for leaves in (wanted, parts))
    if said != found:
        raise CouldaError(
            f"the observation at step {step} has shape {', '.join(map(str, found))}, but its space says "
            f"{', '.join(map(str, said))}; pad it in the environment, so that all are alike"
        )


class _Endless:
    """A row of the tape without an end: numbers that repeat."""

    def __init__(self, numbers: np.ndarray, start: int = 0):
        self.numbers, self.start = numbers, start

    def after(self, start: int) -> "_Endless":
        """From another place on."""
        return _Endless(self.numbers, start)

    def tolist(self) -> "_Endless":
        """Itself, as a row of the tape is asked for."""
        return self

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.numbers[(self.start + np.arange(place.start, place.stop)) % len(self.numbers)].tolist()
        return float(self.numbers[(self.start + place) % len(self.numbers)])


def _dry_episode(
    program: Program, env: gymnasium.Env, row: Any, actions: list[Any], tell: Tell
) -> list[tuple[Any, int]]:
    """What came of the reset and of each step, and how much each has drawn."""
    tell()
    found = [((_safely(program, "reset", taped_reset, env, row), 0.0, False, False), GENERATOR.used)]
    for t, action in enumerate(actions):
        tell()
        made = _safely(program, f"step {t + 1}", taped_step, env, action, row.after(t + 1))
        if not isinstance(made, tuple) or len(made) != 5:
            raise CouldaError(
                f"step of {program.name} returned {_kind(made)}; return observation, reward, terminated, truncated and "
                "info"
            )
        found.append((copy.deepcopy(made[:4]), GENERATOR.used))
        if made[2] or made[3]:
            break
    return found


def _safely(program: Program, what: str, play: Callable[..., Any], *inputs: Any) -> Any:
    try:
        return play(*inputs)
    except CouldaError:
        raise
    except Exception as error:
        raise CouldaError(
            f"{program.name} failed in a dry run of random actions, in {what}. {raised(error)}"
        ) from error


def _kind(made: Any) -> str:
    return f"{len(made)} things" if isinstance(made, tuple) else f"a {type(made).__name__}"


def _chances() -> dict[str, Any]:
    """Where chance may come from that is not on the tape, as far as it can be told."""
    return {
        "Python's `random`": hash(random.getstate()),
        "NumPy's global generator (np.random.…)": hash(repr(np.random.get_state())),  # noqa: NPY002
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
        for layer in layers(env)
        for name, value in vars(layer).items()
        if isinstance(value, np.random.RandomState | random.Random)
    ]
    if own:
        return f"{' and '.join(own)} cannot be taped; use self.np_random, or numpy.random.default_rng()."
    return (
        "Neither `random` nor NumPy's global generator was used: look for a generator that is hidden from Gymnasium "
        "(in an object of its own, or seeded anew in each reset), a C library's, the time, or something that outlives "
        "reset; let it draw from self.np_random."
    )


def with_margin(most: int) -> int:
    """How much tape there is for at most so many draws."""
    return math.ceil(MARGIN * most) + SPARE if most else 0


def pilot(program: Program, tell: Tell) -> list[np.ndarray]:
    """Whether inversion explains some of the environment's own episodes: refuses where it does not."""
    rng = np.random.default_rng(0)
    _, _, initial, transition = program.examples
    for _ in range(PILOT):
        rows = rng.random((program.horizon + 1, max(initial.size, transition.size)), np.float32)
        first, rest = rows[0, : initial.size], rows[1:, : transition.size]
        observed, actions, rewards, live = _random_episode(program, first, rest, rng, tell)
        fresh = rng.random((1, *initial.shape), np.float32), rng.random((1, *rest.shape), np.float32)
        dice = rng.random((1, program.horizon + 1))
        leaves = *jax.tree.leaves((observed, actions)), rewards, live, np.int32(PILOT_STEPS), *fresh, dice
        tell()
        *_, failed = invert_episode(program, *leaves, careful=True)
        if failed >= 0:
            raise CouldaError(f"an episode of {program.name}'s own could not be explained from step {failed} on")
    return []


def _random_episode(program: Program, first: np.ndarray, rest: np.ndarray, rng: np.random.Generator, tell: Tell) -> Any:
    """An episode under any actions, padded: observations, actions, rewards and which steps were taken."""
    env = program.made()
    space = drawing_from(env.action_space, None)
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
            tell()
            seen, reward, terminated, truncated, _ = taped_step(env, actions[-1], rest[t])
            observed.append(copy.deepcopy(seen))
            over = bool(terminated or truncated)
        rewards.append(reward)
    stack = lambda values: jax.tree.map(lambda *leaves: np.stack(leaves), *values)
    return stack(observed), stack(actions), np.array(rewards, np.float32), np.array(live)
