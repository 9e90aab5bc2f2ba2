"""A small world with known truth for the tests of logs and estimators: a patient who recovers, or does not.

States: 0 ill, 1 worse, 2 recovered (terminal), 3 dead (terminal). Actions: 0 wait, 1 treat. Rewards on entering:
+1 recovered, -1 dead, and treating costs 0.1. Episodes have 1 to `horizon` steps.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.tabular import TabularPOMDP
from coulda.noise import Categorical
from coulda.pomdp import Policy

INITIAL = np.array([0.7, 0.3, 0.0, 0.0])
WAIT = np.array([[0.6, 0.2, 0.2, 0.0], [0.1, 0.6, 0.0, 0.3], [0, 0, 1, 0], [0, 0, 0, 1.0]])
TREAT = np.array([[0.4, 0.05, 0.5, 0.05], [0.4, 0.3, 0.2, 0.1], [0, 0, 1, 0], [0, 0, 0, 1.0]])
REWARD = np.zeros((2, 4, 4)) + np.array([0, 0, 1, -1.0]) - 0.1 * np.array([0, 1.0])[:, None, None]


def triage(horizon: int = 5, reparameterization: str = "gumbel_max", observation=None) -> TabularPOMDP:
    return TabularPOMDP(
        initial=INITIAL,
        transition=np.stack([WAIT, TREAT]),
        observation=np.eye(4) if observation is None else observation,
        reward=REWARD,
        horizon=horizon,
        reparameterization=reparameterization,
        terminal=[False, False, True, True],
    )


class Table(Policy):
    """π(a | o) from a table `[O, A]`."""

    probabilities: Array = eqx.field(converter=lambda p: jnp.asarray(p, float))

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.log(self.probabilities)[observation])


class Stubborn(Policy):
    """Repeats its last action with probability `again`, and treats at first with probability 0.5: has memory."""

    again: float = 0.8

    def initial_carry(self):
        return jnp.int32(-1)

    def __call__(self, carry, observation):
        again = jnp.where(carry < 0, 0.5, self.again)
        treat = jnp.where(carry == 1, again, 1 - again)
        return carry, Categorical(logits=jnp.log(jnp.stack([1 - treat, treat])))

    def remember(self, carry, action, reward):
        return action.astype(jnp.int32)


BEHAVIOR = Table([[0.5, 0.5], [0.6, 0.4], [0.5, 0.5], [0.5, 0.5]])
TARGET = Table([[0.3, 0.7], [0.1, 0.9], [0.5, 0.5], [0.5, 0.5]])


def exact_value(policy: Table, horizon: int = 5, model=(INITIAL, WAIT, TREAT), discount: float = 1.0) -> float:
    """E[G] by dynamic programming in float64, for the fully observed world."""
    initial, *kernels = model
    pi = np.asarray(policy.probabilities, float)
    value = np.zeros(4)
    for _ in range(horizon):
        q = np.stack([(p * (REWARD[a] + discount * value)).sum(1) for a, p in enumerate(kernels)], 1)
        value = (pi * q).sum(1) * np.array([1, 1, 0, 0])
    return float(initial @ value)


def keys(seed: int, n: int) -> Array:
    return jax.random.split(jax.random.key(seed), n)
