"""Environments on a tape: their generators replaced by one that draws from the row that a reset or a step is given."""

import copy
import weakref
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from coulda.environments.tape import TapedGenerator

GENERATOR = TapedGenerator()
"""The one generator of all environments of a process; each reset and step puts in its own row."""
_taped: "weakref.WeakSet[gymnasium.Env]" = weakref.WeakSet()


def taped_reset(env: gymnasium.Env, row: Any, *, watch: bool = False) -> Any:
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


def taped_step(env: gymnasium.Env, action: Any, row: Any, *, watch: bool = False) -> Any:
    """Step on a row of the tape."""
    GENERATOR.load(row.tolist(), "step", watch=watch)
    return env.step(action)


def tape(env: gymnasium.Env) -> None:
    """Let an environment, all that it wraps, and their spaces, draw from `GENERATOR`."""
    waiting: list[Any] = [env]
    known: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        parts = dict(vars(thing))
        if not isinstance(thing, gymnasium.Wrapper):
            thing._np_random, thing._np_random_seed = GENERATOR, -1
            # Spaces may be the class's, which others use too.
            parts |= {name: getattr(thing, name, None) for name in ("observation_space", "action_space")}
        for name, part in parts.items():
            if isinstance(part, np.random.Generator):
                setattr(thing, name, GENERATOR)
            elif isinstance(part, gymnasium.Space):
                setattr(thing, name, drawing_from(part, GENERATOR))
            inner = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else (part,)
            waiting += [one for one in inner if isinstance(one, gymnasium.Env)]


def drawing_from(space: gymnasium.Space, generator: np.random.Generator | None) -> gymnasium.Space:
    """A copy of a space that samples from another generator; from a new one of its own where there is none."""
    made = copy.deepcopy(space)
    waiting = [made]
    while waiting:
        one = waiting.pop()
        one._np_random = generator  # pyright: ignore[reportAttributeAccessIssue]
        parts = getattr(one, "spaces", ())
        waiting += parts.values() if isinstance(parts, dict) else parts
    return made


def layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """An environment, and those that it wraps."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found
