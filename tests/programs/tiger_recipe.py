"""A recipe of real episodes for the tests of executors: a recurrent policy in the tiger problem."""

import equinox as eqx
import jax

from coulda.environments import tiger
from coulda.executors import Work, seeded
from coulda.policies.trainable import RecurrentPolicy
from coulda.pomdp import rollout

MODEL = tiger(horizon=4, reparameterization="gumbel_max")


def episodes(seed: int = 0, batch: int = 4) -> Work:
    """Trajectories `[batch, ...]`."""

    def run(policy, key):
        scenarios = jax.vmap(MODEL.scenario_prior.sample)(jax.random.split(key, batch))
        return jax.vmap(lambda u: rollout(MODEL, policy, u))(scenarios)

    return Work(eqx.filter_eval_shape(policy, 0), seeded(seed), run)


def policy(seed: int):
    return RecurrentPolicy(jax.random.key(seed), MODEL.observation_space, MODEL.action_space, width=8)
