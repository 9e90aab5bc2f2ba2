"""`Learner`: training on a Ray actor of its own, which Ray restarts and which resumes from its newest checkpoint."""

from typing import Any

import msgspec

from coulda.executors.executor import WorkError
from coulda.executors.ray_cluster import connect
from coulda.executors.work import WorkSpec
from coulda.extras import require
from coulda.naming import named


class Learner:
    """Runs `function(**settings)` on an actor, and again from the start of it whenever the actor's process dies.

    The function trains with `coulda.trainer.train(..., folder=…, resume=True)`, and so goes on from the newest
    checkpoint, bit for bit. What it returns is plain data. The folder must be one that every node can write to, where
    Ray may restart the actor on another.

    Args:
        recipe: names the function, with its settings.
        address: the address of the cluster; see `Ray`.
        max_deaths: of the actor, after which training is given up: what it has is in its checkpoints.
    """

    def __init__(self, recipe: WorkSpec, address: str | None = None, max_deaths: int = 100):
        self._connected_here = connect(address, num_cpus=1)
        self._ray = require("ray", extra="ray")
        self.max_deaths = max_deaths
        actor = self._ray.remote(_LearnerActor).options(num_cpus=1, max_restarts=-1, max_task_retries=max_deaths - 1)
        self._actor = actor.remote()
        self._running = self._actor.train.remote(msgspec.json.encode(recipe))

    def done(self) -> bool:
        """Whether training has come to its end."""
        return bool(self._ray.wait([self._running], timeout=0)[0])

    def result(self) -> Any:
        """Wait for the end of training, and return what the function returned."""
        try:
            return msgspec.json.decode(self._ray.get(self._running))
        except self._ray.exceptions.RayActorError as error:
            told = f"the learner died {self.max_deaths} times and was given up; its checkpoints are as they were"
            raise WorkError(told) from error

    def close(self) -> None:
        """End the actor; its checkpoints remain."""
        self._ray.kill(self._actor)
        if self._connected_here:
            self._ray.shutdown()


class _LearnerActor:
    """Nothing but the checkpoints on disk outlives it, so it holds nothing."""

    def train(self, recipe: bytes) -> bytes:
        """Train from the newest checkpoint to the end."""
        spec = msgspec.json.decode(recipe, type=WorkSpec)
        return msgspec.json.encode(named(spec.function)(**spec.settings))
