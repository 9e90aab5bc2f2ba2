"""The loss of imitation against a direct sum, and that steps without advice do not count."""

import jax
import jax.numpy as jnp
import numpy as np

from coulda.environments import tiger
from coulda.policies import Tabular, Uniform
from coulda.pomdp import rollout
from coulda.training.imitation import imitation_loss

TABLE = np.asarray([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
MODEL = tiger(horizon=4, reparameterization="gumbel_max")


def trajectories():
    keys = jax.random.split(jax.random.key(0), 8)
    return jax.vmap(lambda key: rollout(MODEL, Uniform(3), MODEL.scenario_prior.sample(key)))(keys)


def test_the_loss_is_that_of_all_advised_actions_together():
    taken = trajectories()
    advice = jax.random.bernoulli(jax.random.key(1), 0.5, (8, 4, 3))
    assert not advice.any(-1).all()  # some steps have no answer
    terms, right = [], []
    for observation, asked in zip(np.asarray(taken.episode.observation), np.asarray(advice), strict=True):
        for t in range(4):
            if asked[t].any():
                row = TABLE[observation[t]]
                terms.append(-np.log(row[asked[t]].sum()))
                right.append(asked[t][row.argmax()])
    loss, agreement = imitation_loss(Tabular(TABLE), taken, advice)
    np.testing.assert_allclose([loss, agreement], [np.mean(terms), np.mean(right)], rtol=1e-5)


def test_without_any_advice_there_is_nothing_to_learn():
    loss, _ = imitation_loss(Tabular(TABLE), trajectories(), jnp.zeros((8, 4, 3), bool))
    assert loss == 0
