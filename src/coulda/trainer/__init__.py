"""The one trainer of every network: progress, logs, checkpoints, exact resume, all devices.

`loop` runs a user's pure step, `checkpoints` keeps what it reached, `logs` tells about it, `devices` spreads it.
"""

from coulda.trainer.checkpoints import Checkpoint, checkpoint_steps, load_checkpoint
from coulda.trainer.devices import join_hosts, on_all_devices, replicate, shard_batch, sum_over_devices, use_all_cores
from coulda.trainer.logs import held_out_curve, read_log
from coulda.trainer.loop import (
    Evaluate,
    NonFiniteError,
    Step,
    Stopped,
    Trained,
    TrainerConfig,
    descend,
    first_state,
    train,
)

__all__ = [
    "Checkpoint",
    "Evaluate",
    "NonFiniteError",
    "Step",
    "Stopped",
    "Trained",
    "TrainerConfig",
    "checkpoint_steps",
    "descend",
    "first_state",
    "held_out_curve",
    "join_hosts",
    "load_checkpoint",
    "on_all_devices",
    "read_log",
    "replicate",
    "shard_batch",
    "sum_over_devices",
    "train",
    "use_all_cores",
]
