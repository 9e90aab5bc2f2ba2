"""`Processes`: workers on this machine, started anew when they die."""

import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from coulda.executors.executor import TIMEOUT, Executor, WorkError, told_of_hanging
from coulda.executors.work import WorkSpec
from coulda.executors.worker import Hello, Reply, Request, hello, receive, send
from coulda.storage import load_tree, save_tree


class Processes(Executor):
    """Each worker is a process of its own, with a thread here that waits for it.

    A worker that dies is started anew and its request repeated, which makes the same batch. A batch whose worker dies
    `max_deaths` times in a row is given up: it may well be what kills them. So is one that takes longer than `timeout`
    seconds once those before it are made.
    """

    def __init__(
        self,
        spec: WorkSpec,
        num_workers: int = 2,
        capacity: int | None = None,
        max_deaths: int = 10,
        timeout: float = TIMEOUT,
    ):
        super().__init__(spec.build(), 4 * num_workers if capacity is None else capacity)
        self.max_deaths, self.timeout, self._hello = max_deaths, timeout, hello(spec)
        self._threads, self._mine = ThreadPoolExecutor(num_workers, "coulda-worker"), threading.local()
        self._workers: set[_Process] = set()
        self._lock, self._closed = threading.Lock(), False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that were started and did not die."""
        with self._lock:
            return [worker.process.pid for worker in self._workers]

    def _encode(self, parameters: Any) -> bytes:
        return save_tree(parameters)

    def _start(self, version: int, parameters: bytes, index: int) -> Future[bytes]:
        return self._threads.submit(self._make, version, parameters, index)

    def _finish(self, ticket: Future[bytes]) -> Any:
        try:
            data = ticket.result(self.timeout)
        except TimeoutError as error:
            raise WorkError(told_of_hanging(self.timeout)) from error
        return load_tree(data, self.work.value)

    def _make(self, version: int, parameters: bytes, index: int) -> bytes:
        """In a thread: ask its worker, and a new one if that dies."""
        code = None
        for _ in range(self.max_deaths):
            worker = self._worker()
            try:
                reply = worker.ask(version, parameters, index)
            except (EOFError, OSError):
                code = self._bury(worker)
                continue
            if reply.value is None:
                raise WorkError(f"batch {index} of version {version} failed in a worker:\n{reply.error}")
            return reply.value
        raise WorkError(
            f"batch {index} of version {version}: its worker died {self.max_deaths} times, at last with exit code "
            f"{code}; -9 is often a lack of memory: use fewer workers or smaller batches"
        )

    def _worker(self) -> "_Process":
        worker = getattr(self._mine, "worker", None)
        with self._lock:
            if self._closed:
                raise WorkError("the executor was closed")
            if worker not in self._workers:
                worker = self._mine.worker = _Process(self._hello)
                self._workers.add(worker)
        return worker

    def _bury(self, worker: "_Process") -> int:
        with self._lock:
            self._workers.discard(worker)
        return worker.close()

    def close(self) -> None:
        """End all workers; what they were working on is lost."""
        super().close()
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._workers):
            self._bury(worker)
        self._threads.shutdown()


class _Process:
    """A worker and the pipes to it."""

    def __init__(self, greeting: Hello):
        # A session of its own: Ctrl-C is for the trainer, which may want a last batch before it saves.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coulda.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        self._greeting, self._version = greeting, None

    def ask(self, version: int, parameters: bytes, index: int) -> Reply:
        """Send a request and wait for the reply; `EOFError` or `OSError` where the worker dies over it."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        if self._greeting is not None:
            send(stdin, self._greeting)  # pyright: ignore[reportArgumentType]
            self._greeting = None
        send(stdin, Request(version, index, None if version == self._version else parameters))  # pyright: ignore[reportArgumentType]
        reply = receive(stdout, Reply)  # pyright: ignore[reportArgumentType]
        self._version = None if reply.value is None else version
        return reply

    def close(self) -> int:
        """End the process, and return its exit code."""
        self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what was not yet written cannot be any more
                continue
        return code
