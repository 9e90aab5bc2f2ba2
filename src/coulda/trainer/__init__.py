"""The one trainer of every network: progress, logs, checkpoints, exact resume.

`loop` runs a user's pure step, `checkpoints` keeps what it reached, `logs` tells about it; `coulda.devices` spreads it.
"""

from coulda.trainer.checkpoints import Checkpoint, checkpoint_steps, load_checkpoint
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
    "load_checkpoint",
    "read_log",
    "train",
]
