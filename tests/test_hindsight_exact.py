"""Corollary 3 and the posteriors behind it: exactly where noise can be enumerated, else by statistics."""

import itertools
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import TabularPOMDP, tiger
from coulda.errors import CouldaError
from coulda.hindsight import Exact, Prior
from coulda.hindsight.exact import filter_states, finite_noise
from coulda.hindsight.gaussian import gaussian_noise, smoothed_noise
from coulda.noise import Categorical
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Planner, Scenario, rollout
from tests.zoo_pomdps import Steering, linear

# A hidden bit that is seen through noise, moved by actions, and paid late. Every probability is a multiple of 1/3:
# then six values (k + 1/2) / 6 of each uniform number *are* the distribution, for the prior and for every posterior,
# since an interval of length 1/3, 2/3 or 1 is filled evenly by six points, and so is every third of it.
THIRDS = TabularPOMDP(
    initial=[1 / 3, 2 / 3],
    transition=[[[2 / 3, 1 / 3], [1 / 3, 2 / 3]], [[1 / 3, 2 / 3], [0, 1]]],
    observation=[[2 / 3, 1 / 3], [1 / 3, 2 / 3]],
    reward=[[[0.0, 2.0], [0.0, 2.0]], [[-1.0, 3.0], [-1.0, 3.0]]],
    horizon=2,
    reparameterization="inverse_cdf",
)
GRID = (np.arange(6) + 0.5) / 6
PATHS = jnp.asarray(list(itertools.product(range(2), repeat=3)))
BEHAVIOR, TARGET = TabularPolicy([[1, 0], [0, 1]]), TabularPolicy([[0, 1], [1, 0]])


def every_scenario():
    """All values of U_s1, U_s2, U_s3, U_o1, U_o2; policies are deterministic, and o_3 comes after the last action."""
    values = np.array(list(itertools.product(GRID, repeat=5)), np.float32)
    n = len(values)
    return Scenario(
        initial=jnp.asarray(values[:, 0]),
        transition=jnp.asarray(values[:, 1:3]),
        observation=jnp.asarray(np.column_stack([values[:, 3:5], np.full(n, 0.5)])),
        action=jnp.full((n, 2), 0.5),
    )


@eqx.filter_jit
def plays(policy, scenarios):
    return jax.vmap(lambda u: rollout(THIRDS, policy, u))(scenarios)


@jax.jit
def counterfactual_values(episode, scenarios):
    """E[G of the target | h], exactly: over every hidden path by its probability, and every value of the noise.

    And the same with the wrong posterior: hidden paths by the prior and the actions alone, as if nothing had been seen.
    """
    states, _ = filter_states(THIRDS, None, episode, jnp.int32(3))

    def along(path):
        chosen = jax.tree.map(lambda leaf: leaf[jnp.arange(3), path], states)
        posterior = jax.vmap(lambda u: finite_noise(THIRDS, chosen, episode, u))(scenarios)
        value = jax.vmap(lambda u: rollout(THIRDS, TARGET, u).episode_return)(posterior).mean()
        return value, jnp.stack([jnp.exp(_path_log_prob(chosen, episode)), _prior(path, episode)])

    value, weights = jax.vmap(along)(PATHS)
    return value @ weights / weights.sum(0)


def _prior(path, episode):
    log_prob = THIRDS.initial_logits[path[0]]
    for t in range(2):
        log_prob += THIRDS.transition_logits[episode.action[t], path[t], path[t + 1]]
    return jnp.exp(log_prob)


def _path_log_prob(states, episode):
    log_prob = THIRDS.initial_log_prob(jax.tree.map(lambda leaf: leaf[0], states))
    for t in range(3):
        state = jax.tree.map(lambda leaf, t=t: leaf[t], states)
        log_prob += THIRDS.observation_log_prob(episode.observation[t], state)
        if t < 2:
            following = jax.tree.map(lambda leaf, t=t: leaf[t + 1], states)
            log_prob += THIRDS.transition_log_prob(state, episode.action[t], following)
            paid = THIRDS.reward(state, episode.action[t], following)
            log_prob += jnp.where(paid == episode.reward[t], 0.0, -jnp.inf)
    return log_prob


@cache
def evaluate_by_enumeration():
    """CF-PE over all histories of the behavior policy, each with its probability; by a wrong posterior; the truth."""
    scenarios = every_scenario()
    # The last observation is evidence as well: both of its values, each with half of the grid's weight.
    logged = []
    for u in GRID:
        full = eqx.tree_at(lambda s: s.observation, scenarios, scenarios.observation.at[:, 2].set(u))
        logged.append(plays(BEHAVIOR, full).episode)
    episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *logged)
    history = np.column_stack([episodes.observation, episodes.action, episodes.reward])
    _, first, counts = np.unique(history, axis=0, return_index=True, return_counts=True)
    values = [counterfactual_values(jax.tree.map(lambda leaf, i=i: leaf[i], episodes), scenarios) for i in first]
    counterfactual, wrong = counts / len(history) @ np.asarray(values)
    return counterfactual, wrong, float(plays(TARGET, scenarios).episode_return.mean())


def test_counterfactual_evaluation_is_unbiased_exactly():
    """Corollary 3: the mean over histories of E[G^π | h] is E[G^π]."""
    counterfactual, _, truth = evaluate_by_enumeration()
    assert counterfactual == pytest.approx(truth, abs=1e-4)


def test_counterfactual_evaluation_with_a_wrong_posterior_is_biased():
    """The twin: hidden paths that ignore the evidence."""
    _, wrong, truth = evaluate_by_enumeration()
    assert abs(wrong - truth) > 0.02


def test_the_filter_is_the_probability_of_the_history():
    """log p(h) of the source, against a sum over all hidden paths, and all histories sum to one."""
    scenarios = every_scenario()
    episodes = plays(BEHAVIOR, scenarios).episode
    source = Exact(THIRDS).given(steps=2)
    log_evidence = np.asarray(jax.jit(jax.vmap(source.log_evidence))(episodes))
    history = np.column_stack([episodes.observation[:, :2], episodes.action[:, :1], episodes.reward[:, :1]])
    _, first, counts = np.unique(history, axis=0, return_index=True, return_counts=True)
    np.testing.assert_allclose(np.exp(log_evidence[first]), counts / len(history), atol=1e-5)


def test_an_impossible_episode_has_no_evidence():
    model = tiger(horizon=2, reparameterization="gumbel_max")
    episode = jax.tree.map(lambda leaf: leaf[0], _log_of(model, UniformPolicy(3), 1, seed=0).episode)
    odd = eqx.tree_at(lambda e: e.reward, episode, episode.reward + 0.5)
    log_evidence = eqx.filter_jit(lambda source, e: source.log_evidence(e))
    assert bool(jnp.isfinite(log_evidence(Exact(model), episode)))
    assert float(log_evidence(Exact(model), odd)) == -jnp.inf
    assert float(log_evidence(Exact(model).given(0), odd)) == 0.0


def _evaluate(source, model, policy, episodes, seed):
    keys = jax.random.split(jax.random.key(seed), episodes.action.shape[0])
    return np.asarray(_returns(source, model, policy, keys, episodes))


@eqx.filter_jit
def _returns(source, model, policy, keys, episodes):
    return jax.vmap(lambda k, e: rollout(model, policy, source.infer(k, e)).episode_return)(keys, episodes)


def _log_of(model, actor, n, seed):
    return _log(model, actor, jax.random.split(jax.random.key(seed), n))


@eqx.filter_jit
def _log(model, actor, keys):
    return jax.vmap(lambda key: rollout(model, actor, model.scenario_prior.sample(key)))(keys)


@pytest.mark.slow
def test_counterfactual_evaluation_with_gumbels_is_unbiased():
    """Corollary 3 by statistics: CF-PE and MB-PE of the tiger agree; with another model's posterior they do not."""
    model = tiger(horizon=3, reparameterization="gumbel_max")
    n = 20_000
    # Listen, then open the door on the other side of what was heard; the log was made by a uniform policy.
    target = TabularPolicy([[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    episodes = _log_of(model, UniformPolicy(3), n, seed=1).episode
    prior = _evaluate(Prior(model), model, target, episodes, seed=2)
    hindsight = _evaluate(Exact(model), model, target, episodes, seed=3)
    error = np.sqrt(prior.var() / n + hindsight.var() / n)
    # Four standard errors: false failure once in 16,000.
    assert abs(hindsight.mean() - prior.mean()) < 4 * error
    wrong = tiger(horizon=3, reparameterization="gumbel_max", accuracy=0.5)
    biased = _evaluate(Exact(wrong), model, target, episodes, seed=3)
    assert abs(biased.mean() - prior.mean()) > 4 * error


class Physician(Planner):
    """Opens the door without the tiger at once, with probability .9: its actions tell where the tiger is."""

    def __call__(self, carry, state, observation):
        probabilities = jnp.where(jnp.arange(3) == 2 - state.index, 0.9, 0.05)
        return carry, Categorical(logits=jnp.log(probabilities))


@eqx.filter_jit
def _first_state(source, keys, episodes):
    return jax.vmap(lambda k, e: source.model.initial(source.infer(k, e).initial).index)(keys, episodes)


@pytest.mark.slow
def test_a_planners_actions_are_evidence_of_what_it_saw():
    """A log made by someone who sees more is confounded: the posterior is right with the planner given, else not."""
    model = tiger(horizon=1, reparameterization="gumbel_max")
    # Without rewards, so that nothing but the action tells where the tiger was.
    model = eqx.tree_at(lambda m: m.rewards, model, jnp.zeros_like(model.rewards))
    log = _log_of(model, Physician(), 10_000, seed=1)
    keys = jax.random.split(jax.random.key(5), 10_000)
    opened_left = np.asarray(log.episode.action[:, 0]) == 1
    told = np.asarray(_first_state(Exact(model, behavior=Physician()), keys, log.episode))[opened_left]
    untold = np.asarray(_first_state(Exact(model), keys, log.episode))[opened_left]
    # The tiger was right with probability .9 / (.9 + .05). Four standard errors: false failure once in 16,000.
    assert told.mean() == pytest.approx(18 / 19, abs=4 * np.sqrt(18 / 19 / 19 / told.size))
    assert untold.mean() == pytest.approx(0.5, abs=0.05)


HIDDEN = linear(hidden=True)
SHAPES = jax.eval_shape(HIDDEN.scenario_prior.sample, jax.random.key(0))


def _scenario(u):
    """All noise of states and observations from one vector."""
    shapes = SHAPES.initial, SHAPES.transition, SHAPES.observation
    parts = jnp.split(u, np.cumsum([shape.size for shape in shapes])[:-1])
    return Scenario(
        *(p.reshape(s.shape) for p, s in zip(parts, shapes, strict=True)), action=jnp.zeros(SHAPES.action.shape)
    )


def _flat(scenario):
    return jnp.concatenate([jnp.ravel(x) for x in (scenario.initial, scenario.transition, scenario.observation)])


@jax.jit
@jax.jacfwd
def _jacobian(u, episode, length):
    return _flat(gaussian_noise(HIDDEN, episode, length, _scenario(u))[0])


@cache
def _observation_matrix():
    """M with o = M u + constant, `[T + 1, all noise]`."""

    def observations(u):
        noise = _scenario(u)
        state, seen = HIDDEN.initial_scale @ noise.initial, []
        for t in range(HIDDEN.horizon + 1):
            seen.append(HIDDEN.observe(state, noise.observation[t]))
            if t < HIDDEN.horizon:
                state = HIDDEN.A @ state + HIDDEN.transition_scale @ noise.transition[t]
        return jnp.concatenate(seen)

    size = SHAPES.initial.size + SHAPES.transition.size + SHAPES.observation.size
    return np.asarray(jax.jit(jax.jacfwd(observations))(jnp.zeros(size)), float)


def test_smoothing_is_the_gaussian_conditional_mean():
    """E[u | o] by Kalman smoothing, against one dense linear solve over all noise and all observations."""
    matrix, residual = _observation_matrix(), np.random.default_rng(0).normal(size=4)
    smooth = jax.jit(lambda o, seen: _flat(smoothed_noise(HIDDEN, o, seen)))
    for seen in (np.arange(4) < 4, np.arange(4) < 2, np.array([True, False, False, True])):
        rows = matrix[seen]
        expected = rows.T @ np.linalg.solve(rows @ rows.T, residual[seen])
        found = smooth(jnp.asarray(residual[:, None], jnp.float32), jnp.asarray(seen))
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("length", [0, 2, 4])
def test_gaussian_draws_have_the_posterior_covariance(length):
    """A draw is J u⁺ + constant of a fresh u⁺, so its covariance J Jᵀ is known: I - Mᵀ(M Mᵀ)⁻¹M of what was seen."""
    episode = jax.tree.map(lambda leaf: leaf[0], _log_of(HIDDEN, Steering(0.4, 1, 1), 1, seed=0).episode)
    rows = _observation_matrix()[:length]

    jacobian = np.asarray(_jacobian(jnp.zeros(rows.shape[1]), episode, jnp.int32(length)), float)
    expected = np.eye(rows.shape[1]) - rows.T @ np.linalg.solve(rows @ rows.T, rows)
    np.testing.assert_allclose(jacobian @ jacobian.T, expected, atol=2e-5)


def test_what_exact_cannot_do_is_refused():
    class Strange(Steering):
        pass

    with pytest.raises(CouldaError, match="no exact posterior is known for Strange"):
        Exact(Strange(0.1, 1, 1))
    with pytest.raises(CouldaError, match="only policies are exact"):
        Exact(linear(hidden=True), behavior=Physician())
    with pytest.raises(CouldaError, match="0 or more steps"):
        Exact(THIRDS).given(-1)
