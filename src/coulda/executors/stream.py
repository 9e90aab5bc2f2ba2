"""`Stream`: batches for a learner whose actors lag behind it by a stated number of updates."""

from collections.abc import Sequence
from typing import Any

from coulda.errors import CouldaError
from coulda.executors.executor import Batch, Executor


class Stream:
    """The batches of update v, made by the parameters of version max(v - staleness, 0).

    A learner of version v (after v updates) is given batches v·width … (v + 1)·width - 1. Actors work ahead: with
    `staleness=1` they make the next batches while the learner learns, with 0 they wait for its parameters. How far
    behind a batch is does not depend on who was quick, so that a run is the same on any executor, and a run that is
    resumed the same as one that was not: working ahead is only a prefetch.

    Args:
        executor: who works; its capacity must hold (staleness + 1) · width batches.
        staleness: how many updates old the behavior policy is.
        width: batches per update; requests to that many workers at once.
    """

    def __init__(self, executor: Executor, staleness: int = 0, width: int = 1):
        if staleness < 0 or width < 1:
            raise CouldaError(f"staleness is {staleness} and width {width}; they must be at least 0 and 1")
        if (needed := (staleness + 1) * width) > executor.capacity:
            raise CouldaError(
                f"staleness {staleness} and width {width} keep {needed} batches in flight, but the executor's "
                f"capacity is {executor.capacity}; give it capacity={needed}"
            )
        self.executor, self.staleness, self.width = executor, staleness, width
        self._requested = self._taken = 0

    def next(self, version: int, behaviors: Sequence[Any]) -> list[Batch]:
        """The batches of update `version`, `width` of them: a pure function of its arguments.

        Args:
            version: how many updates the learner has made.
            behaviors: parameters of versions max(version - staleness, 0) … `version`: all that is needed to go on
                after a resume, so keep them in the training state. There may be more in front, which are not used.
        """
        if len(behaviors) < (needed := min(version, self.staleness) + 1):
            raise CouldaError(f"{len(behaviors)} behaviors are given, but update {version} needs the last {needed}")
        if version != self._taken:
            self._forget(version)
        for update in range(self._requested, version + self.staleness + 1):
            made_by = max(update - self.staleness, 0)
            self.executor.publish(made_by, behaviors[made_by - version - 1])
            for index in range(update * self.width, (update + 1) * self.width):
                self.executor.request(index)
        self._requested, self._taken = version + self.staleness + 1, version + 1
        return [self.executor.next() for _ in range(self.width)]

    def _forget(self, version: int) -> None:
        """Drop what was made ahead for another future: the learner was resumed, or goes back."""
        while self.executor.in_flight:
            self.executor.next()
        self._requested = version
