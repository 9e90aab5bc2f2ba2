"""`--executor`: who works, for every command that has work to give out."""

from dataclasses import dataclass
from typing import Literal

from coulda.errors import CouldaError
from coulda.executors import Executor, InProcess, WorkSpec

ExecutorName = Literal["in-process", "processes", "ray"]


@dataclass(frozen=True)
class Who:
    """Who works."""

    executor: ExecutorName = "in-process"
    """Who collects episodes: this process, others on this machine, or Ray. All give the same run, bit for bit."""
    workers: int = 2
    """How many workers there are, elsewhere than in this process."""
    address: str | None = None
    """The address of a Ray cluster that runs already; by default one is started on this machine."""

    def open(self, spec: WorkSpec) -> Executor:
        """The executor for this work; close it."""
        return open_executor(self.executor, spec, self.workers, self.address)


def open_executor(name: ExecutorName, spec: WorkSpec, workers: int, address: str | None) -> Executor:
    """The executor of that name for this work; close it.

    Args:
        name: who works.
        spec: what is done.
        workers: how many there are, elsewhere than in this process.
        address: the address of a Ray cluster that runs already.
    """
    if address is not None and name != "ray":
        raise CouldaError(f"--address {address} is of a Ray cluster; add --executor ray.")
    if name == "processes":
        from coulda.executors.processes import Processes

        return Processes(spec, workers)
    if name == "ray":
        from coulda.executors.ray_cluster import Ray

        return Ray(spec, workers, address)
    return InProcess(spec)
