"""Numbers that are known: beliefs of the tiger, the forest's values, the regulator's gains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import LinearQuadratic, TabularPOMDP, contextual_bandit, forest, tiger
from coulda.errors import CouldaError
from coulda.hindsight.exact import filter_states
from coulda.noise import Categorical
from coulda.planners import LinearPlanner, TabularPlanner, finite_horizon, lqr, policy_iteration, value_iteration
from coulda.policies import Mixture, NoisyPolicy, TabularPolicy, UniformPolicy
from coulda.pomdp import Episode, rollout

FOREST = forest(horizon=3, reparameterization="gumbel_max")


def episode_of(observations, actions, rewards):
    steps = len(actions)
    return Episode(
        observation=jnp.asarray(observations, jnp.int32),
        action=jnp.asarray(actions, jnp.int32),
        reward=jnp.asarray(rewards, jnp.float32),
        live=jnp.ones(steps, bool),
        log_prob=jnp.zeros(steps),
    )


@pytest.mark.parametrize("kind", ["gumbel_max", "inverse_cdf"])
def test_tiger_beliefs(kind):
    """.85, .9698, .9945 after one, two, three agreeing hears: 1 / (1 + (.15/.85)^n)."""
    model = tiger(horizon=3, reparameterization=kind)
    episode = episode_of([2, 0, 0, 0], [0, 0, 0], [-1, -1, -1])
    _, log_filter = jax.jit(lambda e: filter_states(model, None, e, jnp.int32(4)))(episode)
    belief = jax.nn.softmax(log_filter, axis=1)[:, 0]
    np.testing.assert_allclose(belief, [0.5, 0.85, 0.9698, 0.9945], atol=5e-5)


def test_a_disagreeing_hear_takes_the_belief_back_and_a_reward_tells_all():
    model = tiger(horizon=3, reparameterization="gumbel_max")
    episode = episode_of([2, 0, 1, 0], [0, 0, 1], [-1, -1, 10])
    _, log_filter = jax.jit(lambda e: filter_states(model, None, e, jnp.int32(4)))(episode)
    belief = jax.nn.softmax(log_filter, axis=1)[:, 0]
    # Opening the left door paid 10: the tiger was right. It is placed anew, and what is heard then is chance.
    np.testing.assert_allclose(belief, [0.5, 0.85, 0.5, 0.5], atol=1e-5)


def test_forest_discounted():
    expected = (26.244, 29.484, 33.484)
    by_policies, by_values = policy_iteration(FOREST, 0.9), value_iteration(FOREST, 0.9)
    np.testing.assert_allclose(by_policies.value, expected, atol=1e-3)
    np.testing.assert_allclose(by_values.value, by_policies.value, atol=1e-8)
    assert jnp.array_equal(by_policies.planner.logits, by_values.planner.logits)


def test_forest_finite_horizon():
    np.testing.assert_allclose(finite_horizon(FOREST, 0.9).value[0], (2.6973, 5.9373, 9.9373), atol=1e-3)


def test_the_finite_horizon_value_is_what_its_planner_earns():
    """Exactly: the expected return of the planner by propagating its state distribution."""
    model = forest(horizon=6, reparameterization="gumbel_max")
    solution = finite_horizon(model)
    transition, reward, _ = (np.asarray(table, float) for table in model.tables())
    occupied, earned = np.array([1.0, 0, 0]), 0.0
    for table in np.exp(np.asarray(solution.planner.logits, float)):
        joint = (occupied[:, None] * table).T[:, :, None] * transition
        earned, occupied = earned + (joint * reward).sum(), joint.sum((0, 1))
    assert earned == pytest.approx(solution.value[0, 0], abs=1e-5)


def test_terminal_states_are_worth_nothing():
    model = TabularPOMDP(
        initial=[1, 0],
        transition=[[[0, 1], [1, 0]]],
        observation=np.eye(2),
        reward=[[[1.0], [5.0]]],
        horizon=4,
        reparameterization="gumbel_max",
        terminal=[False, True],
    )
    assert finite_horizon(model).value[0].tolist() == [1, 0]
    assert policy_iteration(model, 0.9).value.tolist() == [1, 0]


@pytest.mark.parametrize("discount", [0.0, 1.0, -3.0])
def test_discounts_are_checked(discount):
    with pytest.raises(CouldaError, match="discount must be between"):
        policy_iteration(FOREST, discount)


def test_scalar_regulator():
    regulator = lqr(1.0, 1.0, 1.0, 1.0, scale=0.1)
    assert float(regulator.cost[0, 0]) == pytest.approx(1.6180, abs=1e-4)
    assert float(regulator.gain[0, 0]) == pytest.approx(0.6180, abs=1e-4)


def test_the_regulators_finite_cost_is_what_its_planner_pays():
    """Without noise, and with actions that all but follow the mean, the return is -sᵀ P s."""
    A, B, Q, R = np.array([[1.0, 0.3], [0.0, 0.9]]), np.array([[0.0], [1.0]]), np.diag([1.0, 0.5]), np.eye(1)
    regulator = lqr(A, B, Q, R, scale=1e-6, horizon=5)
    start, nothing = np.array([1.0, -2.0]), np.eye(2) * 1e-8
    model = LinearQuadratic(A, B, Q, R, horizon=5, initial_mean=start, initial_scale=nothing, transition_scale=nothing)
    trajectory = jax.jit(lambda u: rollout(model, regulator.planner, u))(model.scenario_prior.sample(jax.random.key(0)))
    expected = -start @ np.asarray(regulator.cost[0], float) @ start
    assert float(trajectory.episode_return) == pytest.approx(expected, rel=1e-4)


def test_an_uncontrollable_system_is_refused():
    with pytest.raises(CouldaError, match="Riccati recursion has not settled"):
        lqr(2.0, 0.0, 1.0, 1.0, scale=0.1)


def test_a_noisy_policy_is_mixed_with_the_uniform():
    table = TabularPolicy([[1.0, 0.0, 0.0, 0.0]])
    for epsilon, expected in ((0.0, [1, 0, 0, 0]), (0.4, [0.7, 0.1, 0.1, 0.1]), (1.0, [0.25] * 4)):
        _, distribution = NoisyPolicy(table, epsilon)((), jnp.int32(0))
        np.testing.assert_allclose(distribution.probabilities, expected, atol=1e-6)
    with pytest.raises(CouldaError, match="epsilon is a probability"):
        NoisyPolicy(table, 1.5)


def test_a_mixture_is_the_weighted_mean_and_everybody_remembers():
    class Counting(UniformPolicy):
        def initial_carry(self):
            return jnp.int32(0)

        def __call__(self, carry, observation):
            return carry, Categorical(logits=jnp.where(jnp.arange(2) == 1, carry.astype(float), 0.0))

        def remember(self, carry, action, reward):
            return carry + 1

    policy = Mixture((TabularPolicy([[1.0, 0.0]]), Counting(2)), [0.75, 0.25])
    carry, distribution = policy(policy.initial_carry(), jnp.int32(0))
    np.testing.assert_allclose(distribution.probabilities, [0.875, 0.125], atol=1e-6)
    carry = policy.remember(carry, jnp.int32(1), jnp.zeros(()))
    _, distribution = policy(carry, jnp.int32(0))
    np.testing.assert_allclose(distribution.probabilities[1], 0.25 * jax.nn.sigmoid(1.0), atol=1e-6)
    with pytest.raises(CouldaError, match="one per policy"):
        Mixture((UniformPolicy(2),), [0.5, 0.5])


def test_planners_soften():
    planner = TabularPlanner([[1.0, 0.0]]).noisy(0.1)
    np.testing.assert_allclose(jnp.exp(planner.logits), [[0.95, 0.05]], atol=1e-6)
    with pytest.raises(CouldaError, match=r"\[S, A\] or \[T, S, A\]"):
        TabularPlanner([0.5, 0.5])


def test_a_linear_planner_follows_its_gain():
    planner = LinearPlanner(jnp.asarray([[2.0, 0.0]]), jnp.asarray(0.5))
    _, distribution = planner(planner.initial_carry(), jnp.asarray([1.0, 3.0]), None)
    assert distribution.mean.tolist() == [-2.0]
    assert distribution.scale.tolist() == [0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": [0.5, 0.6]}, r"initial: row \[\] is \[0.5, 0.6\], with sum 1.1"),
        ({"initial": [1.0]}, r"initial must be \[2\]"),
        ({"transition": np.ones((1, 2, 3)) / 3}, r"transition must be \[A, S, S\]"),
        ({"transition": [[[1, 0], [0.5, 0.4]]]}, r"transition: row \[0, 1\] is \[0.5, 0.4\]"),
        ({"observation": np.eye(3)}, "observation must be"),
        ({"reparameterization": "gumbel"}, "there is no default"),
        ({"terminal": [True]}, r"terminal must be \[2\]"),
    ],
)
def test_tables_are_checked(change, message):
    tables = {
        "initial": [1, 0],
        "transition": [np.eye(2)],
        "observation": np.eye(2),
        "reward": [0.0, 1.0],
        "horizon": 2,
        "reparameterization": "gumbel_max",
    }
    with pytest.raises(CouldaError, match=message):
        TabularPOMDP(**(tables | change))


def test_matrices_are_checked():
    with pytest.raises(CouldaError, match=r"Q has shape \(2, 2\); with the other matrices it must be \(1, 1\)"):
        LinearQuadratic(1, 1, np.eye(2), 1, horizon=2, initial_mean=[0.0], initial_scale=1, transition_scale=1)
    with pytest.raises(CouldaError, match="both C and observation_scale"):
        LinearQuadratic(1, 1, 1, 1, horizon=2, initial_mean=[0.0], initial_scale=1, transition_scale=1, C=1)


def test_alice_would_have_known():
    """Figure 1, left, by inverse-CDF: the outcome that was, and the one that would have been, share U_o.

    In context 0 company 0 is good for u_o ≥ .2 and company 1 for u_o ≥ .6. Where company 1 was good, company 0
    would have been good for certain; where it was bad, with probability (.6 - .2) / .6.
    """
    alice = contextual_bandit([1.0], [[[0.2, 0.8], [0.6, 0.4]]], [0.0, 1.0], reparameterization="inverse_cdf")
    from coulda.hindsight import Exact

    def would_have_been(key, outcome):
        episode = episode_of([0, 1 + outcome], [1], [outcome])
        scenario = Exact(alice).infer(key, episode)
        return rollout(alice, TabularPolicy([[1.0, 0.0]] * 3), scenario).episode_return

    keys = jax.random.split(jax.random.key(0), 4000)
    good = jax.jit(jax.vmap(lambda k: would_have_been(k, 1)))(keys)
    bad = jax.jit(jax.vmap(lambda k: would_have_been(k, 0)))(keys)
    assert bool((good == 1).all())
    # Four standard errors of a proportion of 2/3 from 4,000: false failure once in 16,000.
    assert float(bad.mean()) == pytest.approx(2 / 3, abs=4 * np.sqrt(2 / 9 / 4000))
