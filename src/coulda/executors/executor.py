"""`Executor`: the protocol; `InProcess`: the default; `gather`: many batches of one version."""

import abc
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from coulda.errors import CouldaError
from coulda.executors.work import Work, WorkSpec

TIMEOUT = 1800.0
"""Seconds after which a worker counts as hanging: far more than a batch takes, compilation and a new start included."""


class WorkError(CouldaError):
    """Work on a batch failed; the message names the batch and says what the worker said."""


@dataclass(frozen=True)
class Batch:
    """What was asked for: batch `index`, made with the parameters of `version`."""

    version: int
    index: int
    value: Any
    """What `Work.run` returned."""


class Executor(abc.ABC):
    """Makes batches of the newest published version, and gives them out in the order of the requests.

    What is given out depends on the requests alone, never on who was quick. `capacity` bounds the batches that are
    asked for and not yet taken, and so the memory; one more request is refused. An executor of your own has `_encode`,
    `_start` and `_finish`.
    """

    def __init__(self, work: Work, capacity: int):
        if capacity < 1:
            raise CouldaError(f"capacity is {capacity}; it must be at least 1")
        self.work, self.capacity = work, capacity
        self._published: tuple[int, Any] | None = None
        self._requests: deque[tuple[int, int, Any]] = deque()

    def publish(self, version: int, parameters: Any) -> None:
        """Requests from now on are for this version."""
        self._published = version, self._encode(parameters)

    def request(self, index: int) -> None:
        """Ask for batch `index` of the published version. Returns at once."""
        if self._published is None:
            raise CouldaError(f"batch {index} was requested before any parameters; publish(version, parameters) first")
        if self.in_flight >= self.capacity:
            raise CouldaError(f"{self.in_flight} batches are in flight, which is the capacity; take one with next()")
        version, parameters = self._published
        self._requests.append((version, index, self._start(version, parameters, index)))

    def next(self) -> Batch:
        """The batch that was requested first of those not yet taken. Waits for it."""
        if not self._requests:
            raise CouldaError("no batch is in flight; request(index) first")
        version, index, ticket = self._requests.popleft()
        return Batch(version, index, self._finish(ticket))

    @property
    def in_flight(self) -> int:
        """How many batches were requested and not yet taken."""
        return len(self._requests)

    @abc.abstractmethod
    def _encode(self, parameters: Any) -> Any:
        """Parameters as `_start` wants them; asked once per version."""

    @abc.abstractmethod
    def _start(self, version: int, parameters: Any, index: int) -> Any:
        """Begin to make a batch, and return a ticket for it."""

    @abc.abstractmethod
    def _finish(self, ticket: Any) -> Any:
        """The value that the ticket is for."""

    def close(self) -> None:
        """Let all workers go, and forget what is in flight."""
        self._requests.clear()

    def __enter__(self) -> Self:
        """The executor itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class InProcess(Executor):
    """This process does the work, one vmapped batch after the other, on all devices that the work splits it over."""

    def __init__(self, work: Work | WorkSpec, capacity: int = 64):
        super().__init__(work.build() if isinstance(work, WorkSpec) else work, capacity)

    def _encode(self, parameters: Any) -> Any:
        return parameters

    def _start(self, version: int, parameters: Any, index: int) -> Any:  # noqa: ARG002
        # JAX returns before it is done, so the batch is made while the caller goes on.
        return self.work(parameters, index)

    def _finish(self, ticket: Any) -> Any:
        return ticket


def told_of_hanging(timeout: float) -> str:
    """What is said of a worker that does not answer."""
    return f"a worker did not answer in {timeout:g} seconds; give more with timeout=, or ask for smaller batches"


def check_made_of(executor: "Executor", expected: Mapping[str, str]) -> None:
    """Refuse an executor whose work was built from other things than the call that uses it."""
    found = executor.work.made_of
    other = [name for name, digest in expected.items() if found.get(name) != digest]
    if other:
        raise CouldaError(
            f"the executor's work was not built from the same {' and '.join(other)} as this call; build both from the "
            "same objects"
        )


def gather(executor: Executor, indices: Iterable[int]) -> Iterator[Batch]:
    """Batches of the published version in the order of `indices`, with as many in flight as the capacity allows."""
    remaining = iter(indices)
    for index in itertools.islice(remaining, executor.capacity - executor.in_flight):
        executor.request(index)
    while executor.in_flight:
        yield executor.next()
        for index in itertools.islice(remaining, 1):
            executor.request(index)
