"""Who runs a user's own environments: worker processes, or this one. Only raw bytes of arrays travel between them.

An environment stands where its last input left it. It is asked for what follows on a whole list of inputs: where that
is one more than it has had, it takes one step; else it is begun anew, and its actions are repeated. So what is answered
depends on the inputs alone.
"""

import functools
import json
import multiprocessing
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.naming import anywhere, named

START_LIMIT = 300.0
"""Seconds for a worker to import what it needs."""
LOOK = 0.5
"""Seconds between two looks at a worker that is silent."""


class SimulatorError(CouldaError):
    """An environment that failed on a scenario, or a worker that died or hung over it."""

    def __init__(self, message: str, inputs: "Inputs | None" = None):
        super().__init__(message)
        self.inputs = inputs
        """What was put into the environment: `simulator.replay(error.inputs)` runs it alone."""


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
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise CouldaError(f"{self.name} makes a {type(env).__name__}, not a gymnasium.Env")
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
            main = sys.modules["__main__"]
            if found is None or (place == "__main__" and not hasattr(main, "__file__")):
                raise CouldaError(
                    f"worker processes cannot import `{name}` of {place}. Write it into a module, such as my.py, and "
                    "give it as my.make_env or 'my.py:make_env'; or run it in this process with workers=0"
                )


class Player:
    """Environments that are made once and used for one scenario after another."""

    def __init__(self, program: Program, row: Any = None):
        self.program, self.envs = program, []
        self.row = row
        """Tells which environment is at work: a shared number, or None."""
        observation, action, *_ = program.examples
        self.seen, self.structure = jax.tree.flatten(observation)
        self.plain_action = isinstance(action, np.ndarray) and action.ndim == 0
        self.had: list[np.ndarray] = []
        self.steps = np.zeros(0, np.int32)

    def advance(self, inputs: Inputs, ended: np.ndarray) -> list[np.ndarray]:
        """What is seen, paid and over after the last of the inputs; anything where it was over before."""
        n = len(ended)
        while len(self.envs) < n:
            self.envs.append(self.program.made())
        follows = self._follows(inputs)
        seen = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self.seen]
        reward, over = np.zeros(n, np.float32), np.ones(n, bool)
        for i in np.flatnonzero(~ended).tolist():
            if self.row is not None:
                self.row.value = i
            try:
                observation, reward[i], over[i] = self._play(i, inputs, follows[i])
                self._put(seen, i, observation)
            except Exception as error:
                self.steps = np.full(n, -1)
                raise RowError(i, traceback.format_exc(), error) from error
        self.steps = inputs.step.copy()
        return [*seen, reward, over]

    def _follows(self, inputs: Inputs) -> np.ndarray:
        """Which environments have had all of their inputs but the last."""
        n, last = len(inputs.step), int(inputs.step.max(initial=0)) - 1
        first = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(inputs.initial)]
        over_time = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves((inputs.transition, inputs.action))]
        # All are at the same step as a rule; what is at another one is played again.
        same = np.full(n, last >= 0) & (inputs.step == last + 1)
        if len(self.steps) != n:
            same[:] = False
        if same.any():
            same &= self.steps == last
            rows = [*first, *(leaf[:, :last] for leaf in over_time)]
            for new, old in zip(rows, self.had, strict=True):
                if new.shape != old.shape:
                    same[:] = False
                elif not (equal := new == old).all():
                    same &= equal.reshape(n, -1).all(1)
        self.had = [leaf.copy() for leaf in (*first, *over_time)]
        return same

    def _play(self, i: int, inputs: Inputs, follows: bool) -> tuple[Any, float, bool]:
        env, steps, begun = self.envs[i], int(inputs.step[i]), follows
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


class Pool:
    """Workers that share the rows of each call; with none of them, this process does it.

    Workers are started by the first call, and end with the pool or with this process.
    """

    def __init__(self, program: Program, workers: int, time_limit: float):
        if workers < 0:
            raise CouldaError(f"workers is {workers}; give 0, for this process, or more")
        if not time_limit > 0:
            raise CouldaError(f"time_limit is {time_limit}; it is in seconds, and more than 0")
        if workers:
            program.check_importable()
            if isinstance(program.make_env, str):
                program = program._replace(make_env=anywhere(program.make_env))
        self.program, self.size, self.time_limit = program, workers, time_limit
        self.workers: list[_Worker] = []
        self.here = Player(program)

    def __repr__(self) -> str:
        program = self.program
        return f"Pool({program.name}, {program.horizon}, {jax.tree.map(np.shape, program.examples)})"

    def advance(self, inputs: Inputs, ended: np.ndarray) -> list[np.ndarray]:
        """See `Player.advance`."""
        most = int(inputs.step.max(initial=0))
        cut = lambda tree: jax.tree.map(lambda leaf: leaf[:, :most], tree)
        inputs = Inputs(inputs.initial, cut(inputs.transition), cut(inputs.action), inputs.step)
        return self._shared("advance", (*jax.tree.leaves(inputs), ended), inputs, self._advance_here)

    def invert(self, *arguments: np.ndarray) -> list[np.ndarray]:
        """See `Player.invert`."""
        return self._shared("invert", arguments, None, self.here.invert)

    def _advance_here(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.here.advance(unflattened(self.program, arrays[:-1]), arrays[-1])

    def _shared(self, command: str, arrays: Sequence[np.ndarray], inputs: Inputs | None, here: Any) -> list[np.ndarray]:
        if not self.size:
            try:
                return here(arrays)
            except RowError as error:
                raise self._failure(error.row, error.text, inputs) from error.__cause__
        self.start()
        shares = np.array_split(np.arange(len(arrays[0])), self.size)
        try:
            busy = [(worker, share) for worker, share in zip(self.workers, shares, strict=True) if len(share)]
            for worker, share in busy:
                worker.ask(command, [array[share] for array in arrays])
            parts = []
            for worker, share in busy:
                status, found = worker.answer(self.time_limit)
                if status != "fine":
                    row, text = found
                    raise self._failure(None if row is None else int(share[row]), text, inputs)
                parts.append(found)
        except BaseException:
            self.close()
            raise
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _failure(self, row: int | None, text: str, inputs: Inputs | None) -> SimulatorError:
        if row is None or inputs is None:
            return SimulatorError(f"{self.program.name}: {text}")
        one = inputs.row(row)
        place = saved(one)
        return SimulatorError(
            f"{self.program.name} failed at step {one.step} of scenario {row} of a batch of {len(inputs.step)}: "
            f"{text}\nIts noise and actions are in {place}; simulator.replay({str(place)!r}) runs it alone, in this "
            "process.",
            one,
        )

    def start(self) -> None:
        """Start the workers, where they are not."""
        if not self.workers and self.size:
            context = multiprocessing.get_context("spawn")
            self.workers = [_Worker(context, i, self.program) for i in range(self.size)]
            for worker in self.workers:
                weakref.finalize(self, worker.close)

    def close(self) -> None:
        """End the workers; they are started anew when they are needed."""
        for worker in self.workers:
            worker.close()
        self.workers = []


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


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, context: Any, index: int, program: Program):
        self.index, self.begun = index, False
        self.row = context.RawValue("i", -1)
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.row, program), daemon=True)
        self.process.start()
        other.close()

    def ask(self, command: str, arrays: list[np.ndarray]) -> None:
        with suppress(OSError):  # It is gone, which `answer` will tell.
            _send(self.pipe, command, arrays)

    def answer(self, time_limit: float) -> tuple[str, Any]:
        """What it found; or in which row it failed, died or hung, and a text."""
        row, since = self.row.value, time.monotonic()
        try:
            while not self.pipe.poll(LOOK):
                if self.row.value != row:
                    row, since = self.row.value, time.monotonic()
                limit = time_limit if self.begun else START_LIMIT
                if time.monotonic() - since > limit:
                    self.process.kill()
                    where = "in your environment" if row >= 0 else "before it began"
                    text = (
                        f"worker {self.index} hung {where}: no answer in {limit:g} s, and was ended. Raise time_limit"
                    )
                    return "hung", (row if row >= 0 else None, f"{text} where a step may take as long")
            self.begun = True
            status, found = _receive(self.pipe)
        except (EOFError, OSError):
            return "died", self._death()
        if status == "failed":
            row = int(found[0])
            return status, (row if row >= 0 else None, bytes(found[1]).decode())
        return status, found

    def _death(self) -> tuple[int | None, str]:
        self.process.join(timeout=5)
        row = self.row.value
        return row if row >= 0 else None, (
            f"worker {self.index} died with exit code {self.process.exitcode}. A negative code is a signal: -9 is "
            "often too little memory, -11 a crash in native code. If it died at once, write your script's own part "
            "under `if __name__ == '__main__':`, so that workers can import the rest."
        )

    def close(self) -> None:
        """End it; it may be gone already."""
        with suppress(OSError):
            _send(self.pipe, "close", [])
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _send(pipe: Connection, command: str, arrays: Sequence[np.ndarray]) -> None:
    header = [command, [(array.dtype.str, array.shape) for array in arrays]]
    pipe.send_bytes(json.dumps(header).encode())
    for array in arrays:
        pipe.send_bytes(np.ascontiguousarray(array).tobytes())


def _receive(pipe: Connection) -> tuple[str, list[np.ndarray]]:
    command, forms = json.loads(pipe.recv_bytes())
    return command, [np.frombuffer(pipe.recv_bytes(), dtype).reshape(shape) for dtype, shape in forms]


def _serve(pipe: Connection, row: Any, program: Program) -> None:
    """The worker: answers each command until it is told to stop, or the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe.
    player = Player(program, row)
    with suppress(EOFError, OSError):
        while True:
            command, arrays = _receive(pipe)
            if command == "close":
                return
            try:
                if command == "advance":
                    found = player.advance(unflattened(program, arrays[:-1]), arrays[-1])
                else:
                    found = player.invert(arrays)
                _send(pipe, "fine", found)
            except Exception as error:
                place, text = (error.row, error.text) if isinstance(error, RowError) else (-1, traceback.format_exc())
                _send(pipe, "failed", [np.array(place), np.frombuffer(text.encode(), np.uint8)])
            row.value = -1
