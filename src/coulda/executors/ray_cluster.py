"""`Ray`: workers on a cluster, or on a local one that is started for them (extra `ray`)."""

import os
import secrets
import socket
import sys
from typing import Any

import msgspec

from coulda.errors import CouldaError
from coulda.executors.executor import TIMEOUT, Executor, WorkError, told_of_hanging
from coulda.executors.work import WorkSpec
from coulda.executors.worker import Hello, Request, Worker, hello
from coulda.extras import require
from coulda.storage import load_tree, save_tree

ANSWER = 10.0
"""Seconds in which a cluster must take up a connection."""


class Ray(Executor):
    """Each worker is a Ray actor, which Ray restarts where it can, and whose requests Ray repeats.

    Parameters go through the object store, once per version and node. Requests go to the workers in turn. A batch
    whose worker died `max_deaths` times is given up, and so is one that took longer than `timeout`.

    Args:
        spec: the recipe; its function must be importable where the workers run.
        num_workers: actors, of one CPU each.
        address: the address of a cluster that runs already, such as "auto"; by default one is started here, without
            a dashboard, and stopped by `close`. Where Ray is connected already, that connection is used.
        capacity: batches in flight; four per worker by default.
        max_deaths: of its worker, after which a batch is given up: it may well be what kills it.
        timeout: seconds that a batch may take once those before it are made; also its worker's start.
    """

    def __init__(
        self,
        spec: WorkSpec,
        num_workers: int = 2,
        address: str | None = None,
        capacity: int | None = None,
        max_deaths: int = 10,
        timeout: float = TIMEOUT,
    ):
        # First, since Ray forks to start a cluster, which is best done before JAX starts its threads.
        self._connected_here = connect(address, num_cpus=num_workers)
        self._ray = require("ray", extra="ray")
        super().__init__(spec.build(), 4 * num_workers if capacity is None else capacity)
        self.max_deaths, self.timeout = max_deaths, timeout
        actor = self._ray.remote(_Actor).options(num_cpus=1, max_restarts=-1, max_task_retries=max_deaths - 1)
        greeting = msgspec.msgpack.encode(hello(spec))
        self.actors = [actor.remote(greeting) for _ in range(num_workers)]
        self._turn = 0

    def _encode(self, parameters: Any) -> Any:
        return self._ray.put(save_tree(parameters))

    def _start(self, version: int, parameters: Any, index: int) -> Any:
        actor = self.actors[self._turn % len(self.actors)]
        self._turn += 1
        return actor.run.remote(version, parameters, index)

    def _finish(self, ticket: Any) -> Any:
        errors = self._ray.exceptions
        try:
            data = self._ray.get(ticket, timeout=self.timeout)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, CouldaError) else error
            raise WorkError(f"a batch failed in a worker:\n{cause}") from error
        except errors.GetTimeoutError as error:
            raise WorkError(told_of_hanging(self.timeout)) from error
        except errors.RayError as error:
            raise WorkError(
                f"a batch was given up, its worker died {self.max_deaths} times: {str(error).splitlines()[0]}; a lack "
                "of memory is often why: use fewer workers or smaller batches"
            ) from error
        return load_tree(data, self.work.value)

    def close(self) -> None:
        """Let the actors go; also the cluster, if it was started or joined here."""
        super().close()
        for actor in self.actors:
            self._ray.kill(actor)
        if self._connected_here:
            self._ray.shutdown()


def connect(address: str | None, num_cpus: int) -> bool:
    """Join the cluster at `address`, or start one of `num_cpus` here; False where Ray is connected already."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None and "RAY_AUTH_MODE" not in os.environ:
        _invent_token()
    ray = require("ray", extra="ray")
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address is None:
        here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(address="local", num_cpus=num_cpus, **here, **quiet)
    else:
        _check_answers(address)
        ray.init(address=address, **quiet)
    return True


def _invent_token() -> None:
    """A secret that this process and its children alone know: whoever reaches a cluster can run code on it."""
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # Ray reads its mode when it is imported; later it takes to tokens by itself where it starts a cluster.
    if "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"


def _check_answers(address: str) -> None:
    """Refuse an address behind which nothing listens: Ray would wait for it without end."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # such as "auto", which Ray looks up
    try:
        socket.create_connection((host, int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise CouldaError(
            f"no Ray cluster answers at {address} ({error}); start it, or leave out the address"
        ) from None


class _Actor:
    """A `Worker` that Ray may hold: made of plain bytes, so that Ray can make it again."""

    def __init__(self, greeting: bytes):
        self._worker = Worker(msgspec.msgpack.decode(greeting, type=Hello))

    def run(self, version: int, parameters: bytes, index: int) -> bytes:
        """A batch, as safetensors."""
        return self._worker.run(Request(version, index, parameters))

    def pid(self) -> int:
        """The id of the actor's process."""
        return os.getpid()
