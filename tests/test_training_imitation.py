"""The loss of imitation against a direct sum, and that steps without advice do not count."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from coulda.environments import contextual_bandit, tiger
from coulda.learners.imitation import Imitation, imitation_loss
from coulda.noise import Categorical
from coulda.planners import finite_horizon
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Planner, rollout

TABLE = np.asarray([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
MODEL = tiger(horizon=4, reparameterization="gumbel_max")


def trajectories():
    keys = jax.random.split(jax.random.key(0), 8)
    return jax.vmap(lambda key: rollout(MODEL, UniformPolicy(3), MODEL.scenario_prior.sample(key)))(keys)


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
    loss, agreement = imitation_loss(TabularPolicy(TABLE), taken, advice)
    np.testing.assert_allclose([loss, agreement], [np.mean(terms), np.mean(right)], rtol=1e-5)


def test_without_any_advice_there_is_nothing_to_learn():
    loss, _ = imitation_loss(TabularPolicy(TABLE), trajectories(), jnp.zeros((8, 4, 3), bool))
    assert loss == 0


def learned(expert_of):
    """DAgger in a bandit of two contexts, whose best actions are 1 and 0."""
    outcome = np.array([[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]])
    bandit = contextual_bandit([0.5, 0.5], outcome, [0.0, 1.0], reparameterization="gumbel_max")
    planner = expert_of(bandit)
    everywhere = lambda number: planner
    imitation = Imitation(bandit, lambda scenarios: everywhere, optax.adam(0.3), 32, 5)
    state = imitation.init(TabularPolicy(np.full((4, 2), 0.5)))
    for key in jax.random.split(jax.random.key(0), 40):
        state, info = imitation.step(key, state)
    return state, info


def test_dagger_learns_what_the_expert_does():
    state, info = learned(lambda bandit: finite_horizon(bandit).planner)
    assert int(state.updates) == 40
    assert info.agreement == 1
    assert info.answered == 1
    assert info.loss < 0.05


def test_an_expert_without_answers_teaches_nothing():
    class Silent(Planner):
        def __call__(self, carry, state, observation):
            return carry, Categorical(logits=jnp.full(2, -jnp.inf))

    state, info = learned(lambda bandit: Silent())
    assert info.answered == 0
    np.testing.assert_array_equal(state.policy.logits, TabularPolicy(np.full((4, 2), 0.5)).logits)
