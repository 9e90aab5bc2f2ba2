"""Who works: one protocol for "give me batch i of parameter version v", in this process, in others, or on Ray.

A batch is a pure function of (recipe, parameters, index). So a batch that was lost is made again and is the same,
and all executors return the same bits.

| file          | what it holds                                                     |
|---------------|-------------------------------------------------------------------|
| `work`        | `Work`, and the recipe from which a worker builds it              |
| `executor`    | the protocol, `InProcess`, and `gather` over many batches         |
| `stream`      | batches for a learner, of a stated staleness                      |
| `worker`      | the other side of the two below                                   |
| `processes`   | `Processes`: workers on this machine                              |
| `ray_cluster` | `Ray`: workers on many (extra `ray`)                              |
| `learner`     | a learner on a Ray actor of its own, resumed from its checkpoints |
"""

from coulda.executors.executor import Batch, Executor, InProcess, WorkError, check_made_of, gather
from coulda.executors.learner import Learner
from coulda.executors.processes import Processes
from coulda.executors.ray_cluster import Ray
from coulda.executors.stream import Stream
from coulda.executors.work import Work, WorkSpec, fingerprint, seeded

__all__ = [
    "Batch",
    "Executor",
    "InProcess",
    "Learner",
    "Processes",
    "Ray",
    "Stream",
    "Work",
    "WorkError",
    "WorkSpec",
    "check_made_of",
    "fingerprint",
    "gather",
    "seeded",
]
