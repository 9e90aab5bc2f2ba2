"""Particles and tempering: against exact posteriors, published ones, and what they must say when they cannot answer."""

import itertools
from functools import cache

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from coulda.hindsight import Exact, Particles, Tempered
from coulda.hindsight.gaussian import smoothed_noise
from coulda.hindsight.likelihood import Evidence, seen_in, separate_rewards
from coulda.hindsight.particles import systematic
from coulda.hindsight.source import FINE, IMPOSSIBLE, NOT_A_NUMBER
from coulda.noise import Bernoulli, Independent, Normal, Uniform
from coulda.policies import AnyAction
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice, rollout
from coulda.testing import check_scenarios
from tests.inferring import draws, seen, states
from tests.zoo_pomdps import Plain, linear

KEY = jax.random.key(0)


# Rain, seen by umbrellas (Russell & Norvig): discrete noise, a density of one's own, and a day without news.


class Umbrellas(Plain):
    @property
    def initial_noise(self):
        return Uniform()

    @property
    def transition_noise(self):
        return Uniform()

    @property
    def observation_noise(self):
        return Uniform()

    def initial(self, u):
        return u < 0.5

    def transition(self, state, action, u):
        return u < jnp.where(state, 0.7, 0.3)

    def observe(self, state, u):
        return (u < jnp.where(state, 0.9, 0.2)).astype(float)

    def observation_log_prob(self, observation, state):
        chance = jnp.where(state, 0.9, 0.2)
        return jnp.log(jnp.where(observation > 0.5, chance, 1 - chance))


RAINY = np.array([0.6469, 0.8673, 0.8204, 0.3075, 0.8204, 0.8673])
WEEK = seen([np.nan, 1, 1, 0, 1, 1])


@pytest.mark.parametrize("make", [Particles, pytest.param(Tempered, marks=pytest.mark.slow)])
def test_rain_is_as_likely_as_it_was(make):
    source = make(Umbrellas())
    found = np.mean([rain(source, i) for i in range(8)], axis=0)
    # 8 runs of 1,000 particles are worth some 8 · 300: .010 each; 6 days at 4 of these, one failure in 2,500.
    assert (np.abs(found - RAINY) < 0.04).all()
    # Twin: without the third day's umbrella being missing it rains more on that day.
    other = np.mean([rain(source, i, seen([np.nan, 1, 1, 1, 1, 1])) for i in range(2)], axis=0)
    assert not (np.abs(other - RAINY) < 0.04).all()


def rain(source, seed, episode=WEEK):
    drawn, inference = draws(source, jax.random.key(seed), episode, 500)
    assert inference.reason == FINE
    return np.asarray(states(source, drawn, episode)).mean(0)


# Discrete noise and evidence that holds or does not, where all paths can be gone through.


class Parity(POMDP):
    """A bit that is flipped by chance and seen; it is over after three ones. Few of 512 paths explain what was seen."""

    horizon: int = eqx.field(static=True, default=8)
    action_mechanism: ActionMechanism = GumbelMaxChoice(1)

    @property
    def observation_space(self):
        return gymnasium.spaces.Discrete(2)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(1)

    @property
    def initial_noise(self):
        return Bernoulli(0.3)

    @property
    def transition_noise(self):
        return Bernoulli(0.3)

    def initial(self, u):
        return {"bit": u, "ones": jnp.int32(0)}

    def transition(self, state, action, u):
        bit = state["bit"] ^ u
        return {"bit": bit, "ones": state["ones"] + bit.astype(jnp.int32)}

    def observe(self, state, u):
        return state["bit"].astype(jnp.int32)

    def reward(self, state, action, next_state):
        return jnp.zeros(())

    def terminal(self, state):
        return state["ones"] >= 3


def enumerated(model, episode, chance):
    """Log p(h), by all paths."""
    paths = jnp.asarray(list(itertools.product([False, True], repeat=model.horizon + 1)))
    history, whole = seen_in(episode, jnp.int32(99)), jnp.zeros((), bool)
    agreed = jax.vmap(lambda path: Evidence.of(model).of_path(path[0], path[1:], history, whole))(paths)
    prior = jnp.where(paths, jnp.log(chance), jnp.log(1 - chance)).sum(1)
    return float(jax.scipy.special.logsumexp(prior + agreed.log_likelihood))


@pytest.mark.slow
def test_the_evidence_of_discrete_noise_is_that_of_all_paths():
    """It is unbiased, and so its logarithm is too low by half of its variance: little, where moves do move."""
    model = Parity()
    episode = rollout(model, AnyAction.of(model), model.scenario_prior.sample(jax.random.key(1))).episode
    exact = enumerated(model, episode, 0.3)

    @eqx.filter_jit
    def evidence(source):
        return jax.lax.map(lambda key: source.infer_many(key, episode, 1)[1].log_evidence, jax.random.split(KEY, 40))

    found = np.asarray(evidence(Tempered(model, particles=400, moves=20)))
    ratio = np.exp(found - exact)
    assert abs(ratio.mean() - 1) < 4 * ratio.std(ddof=1) / 40**0.5  # one failure in 10,000
    assert abs(found.mean() - exact) < 0.2
    # Twins: another prior's evidence; and a population that is hardly moved.
    assert abs(ratio.mean() - np.exp(enumerated(model, episode, 0.5) - exact)) > 4 * ratio.std(ddof=1) / 40**0.5
    assert np.mean(np.asarray(evidence(Tempered(model, particles=40, moves=1)))) < exact - 0.2


def test_slots_go_to_particles_by_their_weights():
    rng = np.random.default_rng(0)
    for count in (8, 50, 200):
        weights = rng.dirichlet(np.ones(50)) * (rng.uniform(size=50) > 0.3)
        offset, upper = rng.uniform(), np.cumsum(weights / weights.sum())
        found = np.asarray(systematic(jnp.float32(offset), jnp.asarray(weights, jnp.float32), count))
        expected = np.searchsorted(upper, (np.arange(count) + offset) / count, side="right")
        assert (found != expected).sum() <= 1  # a mark on the edge of two shares may fall to either
        assert (weights[found] > 0).all()
        assert (np.diff(found) >= 0).all()


# Linear and Gaussian, where everything is known.


@cache
def hidden_line():
    model = linear(hidden=True)
    return model, rollout(model, AnyAction.of(model), model.scenario_prior.sample(jax.random.key(3))).episode


@cache
def line_means():
    """E[u | o] of the noise of states, in one row."""
    model, episode = hidden_line()
    zero = jax.tree.map(jnp.zeros_like, model.scenario_prior.sample(KEY))
    plain = rollout_observations(model, zero, episode)
    known = jnp.ones(len(plain), bool)
    found = smoothed_noise(model, episode.observation - plain, known)
    return np.concatenate([found.initial, found.transition.ravel()])


def rollout_observations(model, noise, episode):
    state, out = model.initial(noise.initial), []
    for t in range(model.horizon):
        out.append(model.observe(state, noise.observation[t]))
        state = model.transition(state, episode.action[t], noise.transition[t])
    return jnp.stack([*out, model.observe(state, noise.observation[-1])])


@pytest.mark.parametrize("make", [Particles, pytest.param(Tempered, marks=pytest.mark.slow)])
def test_in_a_linear_gaussian_model_they_agree_with_exact_inference(make):
    model, episode = hidden_line()
    source = make(model)
    means, evidence = [], []
    for seed in range(8):
        drawn, inference = draws(source, jax.random.key(seed), episode, 500)
        means.append(np.concatenate([np.ravel(drawn.initial.mean(0)), np.ravel(drawn.transition.mean(0))]))
        evidence.append(float(inference.log_evidence))
    spread = np.std(means, axis=0, ddof=1) / 8**0.5
    z = (np.mean(means, axis=0) - line_means()) / np.maximum(spread, 0.01)
    # Student with 7 degrees of freedom: 7 is passed in .0002; Bonferroni over some 16 numbers, one failure in 300.
    assert np.abs(z).max() < 7
    # Twin: the prior's mean is not it.
    assert np.abs(line_means() / np.maximum(spread, 0.01)).max() > 7
    exact = float(Exact(model).log_evidence(episode))
    assert abs(np.mean(evidence) - exact) < 5 * max(np.std(evidence, ddof=1) / 8**0.5, 0.01)


def test_the_kalman_filters_evidence_is_the_joint_gaussian_density():
    model, episode = hidden_line()
    zero = jax.tree.map(jnp.zeros_like, model.scenario_prior.sample(KEY))
    flat, restore = jax.flatten_util.ravel_pytree((zero.initial, zero.transition, zero.observation))

    def observed(row):
        initial, transition, observation = restore(row)
        noise = eqx.tree_at(
            lambda s: (s.initial, s.transition, s.observation), zero, (initial, transition, observation)
        )
        return rollout_observations(model, noise, episode).ravel()

    matrix = np.asarray(jax.jacfwd(observed)(flat), float)
    expected = stats.multivariate_normal.logpdf(episode.observation.ravel(), observed(flat), matrix @ matrix.T)
    assert np.isclose(float(Exact(model).log_evidence(episode)), expected, rtol=1e-3)


# What is asked of every source.


class Ends(Plain):
    """Two fields of noise, one of them a coin; it is over above 3, and pays for being below 0."""

    action_mechanism: ActionMechanism = GumbelMaxChoice(2)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(2)

    @property
    def transition_noise(self):
        return Independent({"push": Normal(), "coin": Uniform()})

    def transition(self, state, action, u):
        return state + jnp.where(u["coin"] < 0.5, 1.0, 0.0) + u["push"] * jnp.where(action == 1, 0.5, 1.0)

    def reward(self, state, action, next_state):
        return jnp.where(next_state < 0, 1.0, 0.0)

    def terminal(self, state):
        return state > 3


@pytest.mark.slow
def test_particles_keep_the_laws_of_sources():
    """The same key gives the same draw, only h_t is seen, and t = 0 is the prior bit for bit."""
    check_scenarios(Particles(Ends(), particles=200, moves=3), Ends())


@pytest.mark.slow
def test_tempered_keeps_the_laws_of_sources():
    check_scenarios(Tempered(Ends(), particles=40, moves=3), Ends())


@cache
def short_episode():
    """An episode that ends, and its length."""
    model = Ends()
    keys = jax.random.split(jax.random.key(1), 64)
    play = lambda key: rollout(model, AnyAction.of(model), model.scenario_prior.sample(key)).episode
    episodes = jax.jit(jax.vmap(play))(keys)
    index = int(np.flatnonzero((np.asarray(episodes.length) >= 2) & (np.asarray(episodes.length) <= 4))[0])
    return jax.tree.map(lambda leaf: leaf[index], episodes)


@pytest.mark.slow
def test_inferred_scenarios_replay_ends_rewards_and_observations():
    """The evidence is what comes back."""
    model, episode = Ends(), short_episode()
    source = Particles(model, AnyAction.of(model))
    assert source.evidence.names == ("observations", "ends", "rewards")
    drawn, inference = draws(source, KEY, episode, 50)
    again = jax.jit(jax.vmap(lambda u: rollout(model, source.behavior, u).episode))(drawn)
    assert inference.reason == FINE
    assert (np.asarray(again.live) == np.asarray(episode.live)).all()
    assert (np.asarray(again.action) == np.asarray(episode.action)).all(where=np.asarray(episode.live))
    assert (np.asarray(again.reward) == np.asarray(episode.reward)).all()
    seen = 1 + int(episode.length)
    assert np.allclose(again.observation[:, :seen], np.asarray(episode.observation)[:seen], atol=1e-3)


@pytest.mark.slow
def test_a_log_that_was_cut_short_says_nothing_of_its_end():
    """Where no particle can be at its end; else the end is evidence, which is the twin."""
    episode = seen([0.0, -4.0, -5.0, -4.0, 0.0, 0.0])
    episode = eqx.tree_at(lambda e: e.live, episode, jnp.asarray([True, True, False, False, False]))
    source = Particles(Ends(), particles=200, moves=0)
    assert (
        draws(source, KEY, eqx.tree_at(lambda e: e.reward, episode, jnp.asarray([1.0, 1, 0, 0, 0])), 1)[1].reason
        == FINE
    )
    high = eqx.tree_at(lambda e: e.observation, episode, jnp.asarray([2.0, 2.8, 3.5, 0, 0, 0]))
    drawn, _ = draws(source, KEY, high, 100)
    assert (np.asarray(states(source, drawn, high))[:, 2] > 3).all()


@pytest.mark.parametrize("make", [Particles, pytest.param(Tempered, marks=pytest.mark.slow)])
def test_what_cannot_have_happened_has_a_reason_and_no_nan(make):
    never = eqx.tree_at(lambda e: e.reward, short_episode(), short_episode().reward.at[0].set(5.0))
    drawn, inference = draws(make(Ends(), particles=50, moves=2), KEY, never, 3)
    assert inference.reason == IMPOSSIBLE
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(drawn))


def test_a_density_that_is_no_number_has_a_reason_and_gives_none():
    drawn, inference = draws(Particles(Broken(), particles=50, moves=2), KEY, WEEK, 3)
    assert (inference.reason, int(inference.step)) == (NOT_A_NUMBER, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(drawn))


class Broken(Umbrellas):
    def observation_log_prob(self, observation, state):
        return jnp.where(state, jnp.nan, super().observation_log_prob(observation, state))


def test_rewards_are_evidence_where_they_take_separate_values():
    assert separate_rewards(Ends())
    assert not separate_rewards(linear(hidden=True))
