"""Who runs a user's own environments: worker processes, or this one. Only raw bytes of arrays travel between them."""

import json
import multiprocessing
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np

from coulda.environments.dry_run import dry_run, pilot
from coulda.environments.host_playing import Inputs, Player, Program, RowError, saved, unflattened
from coulda.errors import CouldaError
from coulda.naming import anywhere

START_LIMIT = 300.0
"""Seconds for a worker to import what it needs."""
LOOK = 0.5
"""Seconds between two looks at a worker that is silent."""
TRIALS = {"dry_run": dry_run, "pilot": pilot}
"""What is found out of a program before it is used."""


class SimulatorError(CouldaError):
    """An environment that failed on a scenario, or a worker that died or hung over it."""

    def __init__(self, message: str, inputs: "Inputs | None" = None):
        super().__init__(message)
        self.inputs = inputs
        """What was put into the environment: `simulator.replay(error.inputs)` runs it alone."""


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
        self._one_at_a_time = threading.Lock()  # Devices call by threads of their own.

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

    def tried(self, trial: str) -> list[np.ndarray]:
        """What a trial of the program finds; in the first worker, if there are any, since it may die or hang."""
        if not self.size:
            return TRIALS[trial](self.program, lambda: None)
        self.start()
        self.workers[0].ask(trial, [])
        status, found = self.workers[0].answer(self.time_limit)
        if status != "fine":
            self.close()
            _, text = found
            raise SimulatorError(text if status == "failed" else f"{self.program.name}, tried at random: {text}")
        return found

    @cached_property
    def here(self) -> Player:
        """Who plays in this process."""
        return Player(self.program)

    def _advance_here(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.here.advance(unflattened(self.program, arrays[:-1]), arrays[-1])

    def _shared(self, command: str, arrays: Sequence[np.ndarray], inputs: Inputs | None, here: Any) -> list[np.ndarray]:
        with self._one_at_a_time:
            return self._asked(command, arrays, inputs, here)

    def _asked(self, command: str, arrays: Sequence[np.ndarray], inputs: Inputs | None, here: Any) -> list[np.ndarray]:
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
                limit = time_limit if self.begun or row >= 0 else START_LIMIT
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
    player: Player | None = None
    with suppress(EOFError, OSError):
        while True:
            command, arrays = _receive(pipe)
            if command == "close":
                return
            try:
                if command in TRIALS:
                    found = TRIALS[command](program, lambda: _count(row))
                else:
                    player = player or Player(program, row)
                    found = _played(player, command, arrays)
                _send(pipe, "fine", found)
            except Exception as error:
                place, text = (error.row, error.text) if isinstance(error, RowError) else (-1, _told(error))
                _send(pipe, "failed", [np.array(place), np.frombuffer(text.encode(), np.uint8)])
            row.value = -1


def _count(row: Any) -> None:
    row.value += 1


def _played(player: Player, command: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    if command == "advance":
        return player.advance(unflattened(player.program, arrays[:-1]), arrays[-1])
    return player.invert(arrays)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, CouldaError) else traceback.format_exc()
