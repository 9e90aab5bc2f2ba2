"""A dry run of a taped environment: how much it draws, and whether the tape is all that it leaves to chance."""

import copy
import math
import random
from typing import Any

import gymnasium
import jax
import numpy as np

from coulda.environments.host_playing import Program
from coulda.environments.taping import GENERATOR, drawing_from, layers, taped_reset, taped_step
from coulda.errors import CouldaError

DRY_EPISODES, DRY_STEPS = 8, 4000
"""Episodes under any actions, and steps of them all, in which draws are counted; each is run twice."""
MARGIN, SPARE = 1.5, 2
"""The tape has this many times the largest number of draws that was met, and some more; none where there was none."""


def dry_run(program: Program, env: gymnasium.Env) -> tuple[int, int]:
    """The largest number of draws of a reset and of a step; refuses what its tape does not determine.

    Each episode is run twice on the same numbers, by environments that had other episodes before.
    """
    other, actions = program.made(), drawing_from(env.action_space, None)
    actions.seed(0)
    rng = np.random.default_rng(0)
    space = drawing_from(env.observation_space, None)
    most, left = [0, 0], DRY_STEPS
    for _ in range(DRY_EPISODES):
        row = _Endless(rng.random(997, np.float32))
        taken = [actions.sample() for _ in range(min(program.horizon, left))]
        before = _chances()
        first, second = (_dry_episode(one, row, taken) for one in (env, other))
        _check_same(program, first, second, [name for name, state in _chances().items() if state != before[name]], env)
        for place, ((seen, *_), used) in enumerate(first):
            _check_shapes(space, seen, place)
            most[min(place, 1)] = max(most[min(place, 1)], used)
        left -= len(first)
        if left <= 0:
            break
        _dry_episode(other, row.after(500), taken[:5])  # so that they differ in what they had before
    env.close()
    other.close()
    return most[0], most[1]


def _check_shapes(space: gymnasium.Space, observation: Any, step: int) -> None:
    """Refuse an observation that is not of its space's shape."""
    said, found = ([np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (space.sample(), observation))
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


def _dry_episode(env: gymnasium.Env, row: Any, actions: list[Any]) -> list[tuple[Any, int]]:
    """What came of the reset and of each step, and how much each has drawn."""
    found = [((taped_reset(env, row), 0.0, False, False), GENERATOR.used)]
    for t, action in enumerate(actions):
        *made, _ = taped_step(env, action, row.after(t + 1))
        found.append((copy.deepcopy(tuple(made)), GENERATOR.used))
        if made[2] or made[3]:
            break
    return found


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


def random_episode(program: Program, first: np.ndarray, rest: np.ndarray, rng: np.random.Generator) -> Any:
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
            seen, reward, terminated, truncated, _ = taped_step(env, actions[-1], rest[t])
            observed.append(copy.deepcopy(seen))
            over = bool(terminated or truncated)
        rewards.append(reward)
    stack = lambda values: jax.tree.map(lambda *leaves: np.stack(leaves), *values)
    return stack(observed), stack(actions), np.array(rewards, np.float32), np.array(live)
