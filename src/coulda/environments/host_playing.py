"""Environments of a user's own, run on inputs: what is answered depends on the inputs alone.

An environment stands where its last input left it. It is asked for what follows on a whole list of inputs: where that
is one more than it has had, it takes one step; else it is begun anew, and its actions are repeated.
"""

import functools
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.naming import named

OURS = str(Path(__file__).parents[1])
MOST_LANES = 8
"""As many programs may run side by side without disturbing each other."""


class Inputs(NamedTuple):
    """What is put into environments `[n, ...]`; or into one."""

    initial: Any
    transition: Any
    """`[T, ...]` each."""
    action: Any
    """`[T, ...]` each."""
    step: Any
    """How many actions were taken."""

    def row(self, i: int) -> "Inputs":
        """Those of one environment, without what is still to come."""
        steps = int(self.step[i])
        cut = lambda leaf: leaf[i][:steps]
        first = jax.tree.map(lambda leaf: leaf[i], self.initial)
        return Inputs(first, jax.tree.map(cut, self.transition), jax.tree.map(cut, self.action), steps)


class Program(NamedTuple):
    """What a worker needs to know; it is sent to it by name, so functions must be importable."""

    make_env: Callable[[], gymnasium.Env] | str
    begin: Callable[[gymnasium.Env, Any], Any]
    step: Callable[[gymnasium.Env, Any, Any], Any]
    invert: Callable[..., Any] | None
    horizon: int
    examples: Any
    """Arrays of one observation, one action, U_s1 and one U_s."""

    def made(self) -> gymnasium.Env:
        """A new environment."""
        make = named(self.make_env) if isinstance(self.make_env, str) else self.make_env
        try:
            env = make()
        except Exception as error:
            raise CouldaError(f"{self.name} makes no environment. {raised(error)}") from error
        if not isinstance(env, gymnasium.Env):
            raise CouldaError(f"{self.name} makes a {type(env).__name__}, not a gymnasium.Env")
        for space in ("observation_space", "action_space"):
            if not isinstance(getattr(env, space, None), gymnasium.Space):
                raise CouldaError(f"{self.name} has no {space}; let it say what is seen and what can be done")
        return env

    @property
    def name(self) -> str:
        """Of what makes environments, for people."""
        if isinstance(self.make_env, str):
            return self.make_env.rpartition("/")[2]
        if isinstance(self.make_env, functools.partial):
            return f"{self.make_env.func.__name__}({', '.join(map(repr, self.make_env.args))})"
        return getattr(self.make_env, "__qualname__", type(self.make_env).__name__)

    def check_importable(self) -> None:
        """Refuse what a worker could not find."""
        if isinstance(self.make_env, str):
            return
        for one in (self.make_env, self.begin, self.step):
            one = getattr(one, "func", one)  # of a partial
            place, name = getattr(one, "__module__", None), getattr(one, "__qualname__", "<lambda>")
            found: Any = sys.modules.get(place or "")
            for part in name.split("."):
                found = getattr(found, part, None)
            script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")  # of a notebook there is none
            if found is None or (place == "__main__" and not script.is_file()):
                raise CouldaError(
                    f"worker processes cannot import `{name}` of {place}. Write it into a module, such as my.py, and "
                    "give it as my.make_env or 'my.py:make_env'; or run it in this process with workers=0"
                )


def raised(error: Exception) -> str:
    """What was raised, and where in a user's own code: our frames are left out."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(OURS)]
    return f"It raised {type(error).__name__}: {error}\n{''.join(traceback.format_list(frames))}".rstrip()


class Lane:
    """Environments that are run together, and what each has had."""

    def __init__(self) -> None:
        self.envs: list[gymnasium.Env] = []
        self.had: list[np.ndarray] = []
        self.steps = np.zeros(0, np.int32)
        self.done = True
        """Whether nothing is to follow."""

    def follows(self, inputs: Inputs) -> np.ndarray:
        """Which environments have had all of their inputs but the last."""
        n, last = len(inputs.step), int(inputs.step.max(initial=0)) - 1
        # All are at the same step as a rule; what is at another one is played again.
        same = np.full(n, last >= 0) & (inputs.step == last + 1)
        if len(self.steps) != n:
            return np.zeros(n, bool)
        same &= self.steps == last
        first, over_time = _leaves(inputs)
        rows = [*first, *(leaf[:, :last] for leaf in over_time)]
        for new, old in zip(rows, self.had, strict=True) if same.any() else ():
            if new.shape != old.shape:
                return np.zeros(n, bool)
            if not (equal := new == old).all():
                same &= equal.reshape(n, -1).all(1)
        return same

    def remember(self, inputs: Inputs, done: bool) -> None:
        """What they have had from now on."""
        first, over_time = _leaves(inputs)
        self.had, self.steps, self.done = [*first, *over_time], inputs.step.copy(), done

    def forget(self) -> None:
        """They stand anywhere: all are to be begun anew."""
        self.steps, self.done = np.zeros(0, np.int32), True


def _leaves(inputs: Inputs) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return jax.tree.leaves(inputs.initial), jax.tree.leaves((inputs.transition, inputs.action))


class Player:
    """Environments that are made once and used for one scenario after another.

    Programs that run side by side, one on each device, have a lane each.
    """

    def __init__(self, program: Program, row: Any = None):
        self.program = program
        self.row = row
        """Tells which environment is at work: a shared number, or None."""
        observation, action, *_ = program.examples
        self.seen = jax.tree.leaves(observation)
        self.plain_action = isinstance(action, np.ndarray) and action.ndim == 0
        self.lanes: list[Lane] = []

    def advance(self, inputs: Inputs, ended: np.ndarray) -> list[np.ndarray]:
        """What is seen, paid and over after the last of the inputs; anything where it was over before."""
        n = len(ended)
        lane, follows = self._lane(inputs)
        while len(lane.envs) < n:
            lane.envs.append(self.program.made())
        seen = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self.seen]
        reward, over = np.zeros(n, np.float32), np.ones(n, bool)
        for i in np.flatnonzero(~ended).tolist():
            if self.row is not None:
                self.row.value = i
            try:
                observation, reward[i], over[i] = self._play(lane.envs[i], i, inputs, follows[i])
                self._put(seen, i, observation)
            except Exception as error:
                lane.forget()
                raise RowError(i, traceback.format_exc(), error) from error
        lane.remember(inputs, bool(over.all()) or int(inputs.step.max(initial=0)) >= self.program.horizon)
        return [*seen, reward, over]

    def _lane(self, inputs: Inputs) -> tuple[Lane, np.ndarray]:
        """Where the environments stand one step behind; else one that is free, or has waited longest."""
        for lane in self.lanes:
            if (follows := lane.follows(inputs)).any():
                return lane, follows
        free = [lane for lane in self.lanes if lane.done]
        if not free and len(self.lanes) < MOST_LANES:
            free = [Lane()]
            self.lanes += free
        lane = (free or self.lanes)[0]
        self.lanes.remove(lane)
        self.lanes.append(lane)
        return lane, np.zeros(len(inputs.step), bool)

    def _play(self, env: gymnasium.Env, i: int, inputs: Inputs, begun: bool) -> tuple[Any, float, bool]:
        steps = int(inputs.step[i])
        observation, reward, terminated, truncated = None, 0.0, False, False
        if not begun:
            observation = self.program.begin(env, jax.tree.map(lambda leaf: leaf[i], inputs.initial))
        for t in range(steps - 1 if begun else 0, steps):
            u = jax.tree.map(lambda leaf, t=t: leaf[i, t], inputs.transition)
            observation, reward, terminated, truncated, _ = self.program.step(env, self._action(inputs, i, t), u)
        return observation, reward, bool(terminated) or (bool(truncated) and steps < self.program.horizon)

    def _action(self, inputs: Inputs, i: int, t: int) -> Any:
        if self.plain_action:
            return inputs.action[i, t].item()
        return jax.tree.map(lambda leaf: leaf[i, t], inputs.action)

    def _put(self, seen: list[np.ndarray], i: int, observation: Any) -> None:
        leaves = [observation] if len(seen) == 1 else jax.tree.leaves(observation)
        if len(leaves) != len(seen):
            raise CouldaError(f"the observation has {len(leaves)} parts, but its space has {len(seen)}")
        for into, value in zip(seen, leaves, strict=True):
            if np.shape(value) != into.shape[1:]:
                raise CouldaError(
                    f"the observation has shape {np.shape(value)}, but its space says {into.shape[1:]}; pad it in "
                    "the environment, so that all are alike"
                )
            into[i] = value

    def invert(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each row of the arguments by the program's own `invert`."""
        assert self.program.invert is not None
        found = []
        for i in range(len(arguments[0])):
            if self.row is not None:
                self.row.value = i
            try:
                found.append(self.program.invert(self.program, *(leaf[i] for leaf in arguments)))
            except Exception as error:
                raise RowError(i, traceback.format_exc(), error) from error
        return [np.stack(parts) for parts in zip(*found, strict=True)]


class RowError(Exception):
    """What went wrong, in which environment."""

    def __init__(self, row: int, text: str, error: Exception):
        super().__init__(text)
        self.row, self.text = row, str(error) if isinstance(error, CouldaError) else text


def saved(inputs: Inputs) -> Path:
    """Write the inputs of one environment into a file of its own, for `replay`."""
    arrays = {
        f"{name}{i}": leaf for name in Inputs._fields for i, leaf in enumerate(jax.tree.leaves(getattr(inputs, name)))
    }
    with tempfile.NamedTemporaryFile(prefix="coulda_scenario_", suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)
    return Path(file.name)


def unsaved(program: Program, place: str | Path) -> Inputs:
    """The inputs of one environment, from a file."""
    _, action, initial, transition = program.examples
    with np.load(place, allow_pickle=False) as found:
        take = lambda name, tree: jax.tree.unflatten(
            jax.tree.structure(tree), [found[f"{name}{i}"] for i in range(len(jax.tree.leaves(tree)))]
        )
        parts = take("initial", initial), take("transition", transition), take("action", action)
        return Inputs(*parts, int(found["step0"]))


def unflattened(program: Program, arrays: Sequence[np.ndarray]) -> Inputs:
    """Inputs of their arrays."""
    _, action, initial, transition = program.examples
    return jax.tree.unflatten(jax.tree.structure(Inputs(initial, transition, action, 0)), list(arrays))
