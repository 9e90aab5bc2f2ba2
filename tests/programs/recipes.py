"""Recipes of work for the tests of executors, imported by workers as a user's own would be."""

import os
import signal
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from coulda.environments import tiger
from coulda.executors import Work, seeded
from coulda.policies.trainable import Recurrent
from coulda.pomdp import rollout


def tiger_episodes(seed: int = 0, batch: int = 4, horizon: int = 4) -> Work:
    """Trajectories `[batch, ...]` of a recurrent policy in the tiger problem."""
    model = tiger(horizon=horizon, reparameterization="gumbel_max")

    def run(policy, key):
        scenarios = jax.vmap(model.scenario_prior.sample)(jax.random.split(key, batch))
        return jax.vmap(lambda u: rollout(model, policy, u))(scenarios)

    policy = Recurrent(jax.random.key(0), model.observation_space, model.action_space, width=8)
    return Work(eqx.filter_eval_shape(lambda: policy), seeded(seed), run)


def policy(seed: int):
    model = tiger(horizon=4, reparameterization="gumbel_max")
    return Recurrent(jax.random.key(seed), model.observation_space, model.action_space, width=8)


def counted(seed: int = 0, size: int = 2, pause: float = 0.0) -> Work:
    """Parameter times index, and some noise: small and quick, for requests by the hundred."""

    def inputs(index: int):
        import time

        time.sleep(pause)
        return seeded(seed)(index), np.float32(index)

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
