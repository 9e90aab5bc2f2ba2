"""Recipes of work for the tests of executors, imported by workers as a user's own would be; quick to import."""

import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from coulda.executors import Work, seeded


def counted(seed: int = 0, size: int = 2, pause: float = 0.0) -> Work:
    """Parameter times index, and some noise: small and quick, for requests by the hundred."""
    key = seeded(seed)

    def inputs(index: int):
        time.sleep(pause)
        return key(index), np.float32(index)

    def run(scale, inputs):
        key, index = inputs
        return {"product": scale * index, "noise": jax.random.normal(key, (size,))}

    return Work(jnp.float32(0), inputs, run)


def dying(folder: str, deaths: int) -> Work:
    """Kills its own process on batch 3, the first `deaths` times."""

    def inputs(index: int):
        marks = list(Path(folder).iterdir())
        if index == 3 and len(marks) < deaths:
            (Path(folder) / str(len(marks))).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.float32(index)

    return Work(jnp.float32(0), inputs, lambda scale, index: scale * index)


def failing() -> Work:
    """Refuses batch 2."""

    def inputs(index: int):
        if index == 2:
            raise ValueError("batch two is cursed")
        return np.float32(index)

    return Work(jnp.float32(0), inputs, lambda scale, index: scale * index)


def not_work() -> int:
    return 3


def hanging() -> Work:
    """Never makes batch 1."""

    def inputs(index: int):
        time.sleep(3600 * (index == 1))
        return np.float32(index)

    return Work(jnp.float32(0), inputs, lambda scale, index: scale * index)
