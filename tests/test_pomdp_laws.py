"""Laws that hold in every POMDP of the zoo."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import TabularPOMDP, tiger
from coulda.errors import CouldaError
from coulda.hindsight import Exact, Prior
from coulda.noise import Categorical, Point, mix
from coulda.policies import UniformPolicy
from coulda.pomdp import FinitePOMDP, Planner, Policy, as_scm, batched, change_policy, named_noise, rollout
from coulda.testing import check_policy, check_pomdp
from tests.zoo_pomdps import NAMES, pomdps

EPISODES = 64
FAST = ("bandit", "maze gumbel_max", "linear observed", "linear hidden")
"""The others differ from these in detail only, and are in the slow run for the time it takes to compile them."""


def each_of(fast):
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in NAMES]
    )


each = each_of(FAST)


@cache
def logged(name):
    """Scenarios and the behavior policy's trajectories in them."""
    specimen = pomdps()[name]
    scenarios = scenarios_of(specimen.model, seed=0)
    return scenarios, runs(specimen.model, specimen.behavior, scenarios)


def keys(seed):
    return jax.random.split(jax.random.key(seed), EPISODES)


def scenarios_of(model, seed):
    return jax.tree.map(np.asarray, _scenarios_of(model, keys(seed)))


@eqx.filter_jit
def _scenarios_of(model, keys):
    return jax.vmap(model.scenario_prior.sample)(keys)


def runs(model, actor, scenarios):
    # NumPy's from here on: every operation on JAX's arrays outside a program is compiled as one of its own.
    return jax.tree.map(np.asarray, _runs(model, actor, scenarios))


@eqx.filter_jit
def _runs(model, actor, scenarios):
    return jax.vmap(lambda u: rollout(model, actor, u))(scenarios)


def inferred(source, seed, episodes):
    return jax.tree.map(np.asarray, _inferred(source, keys(seed), episodes))


@eqx.filter_jit
def _inferred(source, keys, episodes):
    return jax.vmap(source.infer)(keys, episodes)


def assert_equal(a, b, exact=True):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if exact or not np.issubdtype(x.dtype, np.floating):
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@each_of(("linear hidden",))  # of finite models, the example of `coulda.testing` is checked
def test_the_public_checks_pass(name):
    specimen = pomdps()[name]
    check_pomdp(specimen.model)
    check_policy(specimen.behavior, specimen.model)


@each_of(("bandit", "maze gumbel_max", "linear hidden"))
def test_rollout_is_the_scm_on_the_same_noise(name):
    """Figure 1, right: under both policies, the second by the intervention I(μ → π)."""
    specimen = pomdps()[name]
    model, horizon = specimen.model, specimen.model.horizon

    @eqx.filter_jit
    def both(model, behavior, target, scenario):
        behaved = as_scm(model, behavior, horizon)
        changed = change_policy(model, target, horizon)(behaved)
        noise = named_noise(scenario, horizon)
        pairs = (behavior, behaved), (target, changed)
        return [(rollout(model, policy, scenario), scm.simulate(noise)) for policy, scm in pairs]

    scenario = jax.tree.map(lambda leaf: leaf[0], logged(name)[0])
    pairs = jax.tree.map(np.asarray, both(model, specimen.behavior, specimen.target, scenario))
    for trajectory, values in pairs:
        for t in range(1, horizon + 2):
            state = jax.tree.map(lambda leaf, t=t: leaf[t - 1], trajectory.state)
            assert_equal(values[f"S_{t}"], state, exact=False)
            assert_equal(values[f"O_{t}"], trajectory.episode.observation[t - 1], exact=False)
        for t in range(1, horizon + 1):
            assert_equal(values[f"A_{t}"], trajectory.episode.action[t - 1], exact=False)
            assert_equal(values[f"R_{t}"], trajectory.episode.reward[t - 1], exact=False)


@each
def test_replaying_an_episode_with_its_inferred_noise_returns_it(name):
    specimen = pomdps()[name]
    _, trajectories = logged(name)
    source = Exact(specimen.model, behavior=specimen.behavior)
    replayed = runs(specimen.model, specimen.behavior, inferred(source, 1, trajectories.episode)).episode
    episode, live = trajectories.episode, trajectories.episode.live
    seen = np.concatenate([np.ones((EPISODES, 1), bool), live], axis=1)
    exact = isinstance(specimen.model, FinitePOMDP)
    np.testing.assert_array_equal(replayed.live, live)
    assert_equal(replayed.observation[seen], episode.observation[seen], exact)
    assert_equal(replayed.action[live], episode.action[live], exact)
    if specimen.observes_reward:
        assert_equal(replayed.reward, episode.reward, exact)


@each
def test_fresh_noise_does_not_replay(name):
    """The twin of the replay: with the prior's noise some episode must differ."""
    specimen = pomdps()[name]
    _, trajectories = logged(name)
    replayed = runs(specimen.model, specimen.behavior, scenarios_of(specimen.model, seed=1)).episode
    assert not np.array_equal(replayed.observation, trajectories.episode.observation)


@each
def test_hindsight_of_nothing_is_the_prior(name):
    """t = 0 is MB-PE, for the same key exactly."""
    specimen = pomdps()[name]
    episodes = logged(name)[1].episode
    source = Exact(specimen.model, behavior=specimen.behavior).given(steps=0)
    assert_equal(inferred(source, 5, episodes), scenarios_of(specimen.model, seed=5))


def test_the_prior_is_the_prior():
    specimen = pomdps()["tiger"]
    episodes = logged("tiger")[1].episode
    assert_equal(inferred(Prior(specimen.model).given(0), 5, episodes), scenarios_of(specimen.model, seed=5))
    with pytest.raises(CouldaError, match="conditioned on nothing"):
        Prior(specimen.model).given(3)


@each
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_nothing_past_the_history_is_used(name, steps):
    """h_t is o_1 … o_t, a_1 … a_{t-1}, r_1 … r_{t-1}: the rest is put in from other episodes, to no effect."""
    specimen = pomdps()[name]
    if steps > specimen.model.horizon:
        pytest.skip("the episode is shorter")
    episodes = logged(name)[1].episode
    other = jax.tree.map(lambda leaf: np.roll(leaf, 1, axis=0), episodes)
    ended = (episodes.length < steps) | (other.length < steps)

    def splice(kept):
        return lambda a, b: np.concatenate([a[:, :kept], b[:, kept:]], axis=1)

    spliced = eqx.tree_at(
        lambda e: (e.observation, e.action, e.reward, e.live, e.log_prob),
        episodes,
        (
            jax.tree.map(splice(steps), episodes.observation, other.observation),
            splice(max(steps - 1, 0))(episodes.action, other.action),
            splice(max(steps - 1, 0))(episodes.reward, other.reward),
            splice(steps)(episodes.live, other.live),
            other.log_prob,
        ),
    )
    source = Exact(specimen.model, behavior=specimen.behavior).given(steps=steps)
    a, b = inferred(source, 2, episodes), inferred(source, 2, spliced)
    same = jax.tree.map(lambda leaf: leaf[~ended], (a, b))
    assert_equal(*same)
    if steps == 2:  # and the twin: a longer history does use what differs
        longer = source.given(steps=specimen.model.horizon + 1)
        a, b = inferred(longer, 2, episodes), inferred(longer, 2, other)
        assert any(not np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@each_of(("maze gumbel_max", "linear hidden"))
def test_action_noise_is_afresh_without_the_behavior_policy(name):
    specimen = pomdps()[name]
    episodes = logged(name)[1].episode
    fresh = scenarios_of(specimen.model, seed=3).action
    without = inferred(Exact(specimen.model), 3, episodes).action
    known = inferred(Exact(specimen.model, behavior=specimen.behavior), 3, episodes).action
    assert_equal(fresh, without)
    assert not np.array_equal(known, without)


def test_mix_draws_action_noise_afresh():
    """Corollary 2, by name."""
    specimen = pomdps()["tiger"]
    scenario = jax.tree.map(lambda leaf: leaf[0], logged("tiger")[0])
    mixed = mix(Point(scenario), specimen.model.scenario_prior, inferred=("initial", "transition", "observation"))
    drawn = mixed.sample(jax.random.key(9))
    assert_equal(drawn.transition, scenario.transition)
    assert not np.array_equal(drawn.action, scenario.action)


@pytest.mark.parametrize("name", ["maze gumbel_max", "linear hidden"])
def test_vmap_is_a_loop_and_jit_is_eager(name):
    specimen = pomdps()[name]
    scenarios, trajectories = logged(name)
    for i in (0, 7):
        alone = rollout(
            specimen.model, specimen.behavior, jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), scenarios)
        )
        assert_equal(alone, jax.tree.map(lambda leaf, i=i: leaf[i], trajectories), exact=False)


def test_chunks_are_the_whole():
    specimen = pomdps()["maze gumbel_max"]
    scenarios, trajectories = logged("maze gumbel_max")
    run = eqx.filter_jit(lambda u: batched(lambda s: rollout(specimen.model, specimen.behavior, s), u, chunk_size=10))
    assert_equal(run(scenarios), trajectories)


def test_terminal_states_absorb():
    """The table would lead out of the terminal state with a reward; `rollout` does not go, and `as_scm` agrees."""
    model = TabularPOMDP(
        initial=[1, 0, 0],
        transition=[[[0, 1, 0], [0, 0, 1], [1, 0, 0]]],
        observation=np.eye(3),
        reward=[[[1.0], [2.0], [4.0]]],
        horizon=4,
        reparameterization="inverse_cdf",
        terminal=[False, True, False],
    )
    trajectory = rollout(model, UniformPolicy(1), model.scenario_prior.sample(jax.random.key(0)))
    assert trajectory.state.index.tolist() == [0, 1, 1, 1, 1]
    assert trajectory.episode.live.tolist() == [True, False, False, False]
    assert trajectory.episode.reward.tolist() == [1, 0, 0, 0]
    assert int(trajectory.episode.length) == 1


class Blind(TabularPOMDP):
    """The tiger with its sound turned off and its reward too: the state is there, and no policy can know it."""

    def observe(self, state, u):
        return jnp.zeros_like(super().observe(state, u))

    def reward(self, state, action, next_state):
        return jnp.zeros(())


class Knowing(Planner):
    """Opens the door without the tiger: needs the state."""

    def __call__(self, carry, state, observation):
        return carry, Categorical(logits=jnp.where(jnp.arange(3) == 2 - state.index, 0.0, -9.0))


def _blind_actions(actor):
    base = tiger(horizon=6, reparameterization="gumbel_max")
    blind = object.__new__(Blind)
    for field in base.__dataclass_fields__:
        object.__setattr__(blind, field, getattr(base, field))
    scenarios = scenarios_of(base, seed=0)
    # The same action noise in every episode, so that only the hidden state can make a difference.
    scenarios = eqx.tree_at(
        lambda s: s.action, scenarios, np.broadcast_to(scenarios.action[:1], scenarios.action.shape)
    )
    return runs(blind, actor, scenarios).episode.action


def test_the_hidden_state_never_reaches_a_policy():
    for policy in (pomdps()["tiger"].behavior, pomdps()["tiger"].target):
        actions = _blind_actions(policy)
        assert (actions == actions[:1]).all()


def test_the_leak_test_catches_a_leak():
    """A planner sees the state, and the same test finds it out."""
    actions = _blind_actions(Knowing())
    assert not (actions == actions[:1]).all()


def test_a_policy_is_never_called_with_a_state():
    class TwoArguments(Policy):
        def __call__(self, *arguments):
            assert len(arguments) == 2, arguments
            return arguments[0], Categorical(logits=jnp.zeros(3))

    model = tiger(horizon=2, reparameterization="inverse_cdf")
    rollout(model, TwoArguments(), model.scenario_prior.sample(jax.random.key(0)))
