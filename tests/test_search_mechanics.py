"""`PolicySearch` around its objective: behavior and staleness, the source's training, planners' mixture, logs."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coulda.environments import TabularPOMDP, tiger
from coulda.errors import CouldaError
from coulda.hindsight import Exact, Prior, ScenarioSource
from coulda.noise import Categorical, Normal
from coulda.planners import LinearPlanner, TabularPlanner
from coulda.planners.mixture import MIXTURES, ExpertMixture, ExpertSchedule, PlanningProblem
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Planner, Scenario, rollout
from coulda.search import PolicySearch

SGD = optax.sgd(0.1)  # one object, so that programs are shared
MODEL = tiger(horizon=3, reparameterization="gumbel_max")


def policy() -> TabularPolicy:
    return TabularPolicy(np.full((3, 3), 1 / 3))


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_behavior_policy_is_an_older_copy_and_its_staleness_is_known():
    search = PolicySearch(MODEL, MODEL, Exact(MODEL, policy()), SGD, num_episodes=4, refresh=3)
    state, staleness, policies = search.init(policy()), [], []
    for key in jax.random.split(jax.random.key(0), 5):
        policies.append(state.policy)
        state, info = search.step(key, state)
        staleness.append(int(info.staleness))
        acted = policies[len(policies) - 1 - staleness[-1]]
        assert same(state.behavior, acted)
        assert same(state.source.behavior, acted), "the source infers action noise of who acted"
    assert staleness == [0, 1, 2, 0, 1]
    assert not same(policies[0], policies[1])
    assert (state.updates, state.episodes) == (5, 20)


def test_a_step_is_a_function_of_its_key_and_state():
    search = PolicySearch(MODEL, MODEL, Prior(MODEL), SGD, num_episodes=4)
    state = search.init(policy())
    once, again, other = (search.step(jax.random.key(seed), state)[0] for seed in (1, 1, 2))
    assert same(once, again)
    assert not same(once, other)


def test_several_steps_climb_the_same_trajectories_with_the_weights_of_the_first_policy():
    search = PolicySearch(MODEL, MODEL, Prior(MODEL), SGD, num_episodes=4, steps=2)
    state, key = search.init(policy()), jax.random.key(3)
    scenarios = jax.vmap(MODEL.scenario_prior.sample)(jax.random.split(jax.random.key(0), 4))

    @jax.jit
    def by_hand(first):
        ascend = search.objective.ascent(jax.random.split(key)[0], MODEL, first, lambda *_: first, scenarios)
        climbed = [first.logits]
        for _ in range(3):
            gradient, _ = ascend(eqx.tree_at(lambda p: p.logits, first, climbed[-1]), jnp.zeros(()))
            climbed.append(climbed[-1] + 0.1 * gradient.logits)
        return climbed

    one, two, three = by_hand(state.policy)[1:]
    found = search.improve(key, state, scenarios)[0].policy.logits
    np.testing.assert_allclose(found, two, atol=1e-6)
    assert min(np.abs(found - other).max() for other in (one, three)) > 1e-4, "one step, or three, would be told apart"


TWO_DEVICES = """
import jax, numpy as np, optax
jax.config.update("jax_num_cpu_devices", 2)
from coulda.environments import tiger
from coulda.executors import InProcess
from coulda.hindsight import Prior
from coulda.policies import RecurrentPolicy, TabularPolicy
from coulda.search import PolicySearch
from coulda.learners import Impala, episodes_of

model = tiger(horizon=2, reparameterization="gumbel_max")
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None)

def compilations(learner, policy):
    state = learner.init(policy)
    compiled.clear()
    for i in range(3):
        state, _ = learner.step(jax.random.key(i), state)
        yield len(compiled)

table = TabularPolicy(np.full((3, 3), 1 / 3))
search = PolicySearch(model, model, Prior(model), optax.adam(0.1), num_episodes=4)
recurrent = RecurrentPolicy(jax.random.key(0), model.observation_space, model.action_space, width=8)
impala = Impala(InProcess(episodes_of(model, recurrent, batch=4, seed=0)), optax.adam(0.1), max_staleness=1)
print(jax.local_device_count(), *compilations(search, table), *compilations(impala, recurrent))
"""


@pytest.mark.slow
def test_over_two_devices_the_first_step_compiles_for_all():
    """A state that comes back placed otherwise than it went in would have every program compiled twice."""
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, check=True)
    devices, *counts = map(int, done.stdout.split())
    assert devices == 2
    for first, second, third in (counts[:3], counts[3:]):
        assert first > 0
        assert second == third == first


class Counting(ScenarioSource):
    """A source that learns how often the tiger was left, and draws it so."""

    model: TabularPOMDP
    left: jax.Array
    seen: jax.Array
    steps: jax.Array

    def infer(self, key, episode):
        u = self.model.scenario_prior.sample(key)
        wanted = (jax.random.uniform(jax.random.fold_in(key, 1)) * self.seen >= self.left).astype(jnp.int32)
        initial = jnp.where(jnp.arange(2) == wanted, 1.0, -1.0)
        return Scenario(initial, u.transition, u.observation, u.action)


@pytest.mark.slow
def test_a_source_is_trained_online_on_privileged_pairs():
    def learn(key, source, u, episodes):
        first = jax.vmap(MODEL.initial)(u.initial).index
        assert episodes.reward.shape == (32, 3)
        counts = source.left + jnp.sum(first == 0).astype(float), source.seen + 32.0
        return eqx.tree_at(lambda s: (s.left, s.seen), source, counts)

    source = Counting(MODEL, jnp.zeros(()), jnp.zeros(()), jnp.int32(0))
    search = PolicySearch(MODEL, MODEL, source, SGD, num_episodes=32, learn=learn)
    state = search.init(policy())
    for key in jax.random.split(jax.random.key(0), 4):
        state, _ = search.step(key, state)
    assert state.source.seen == 128
    assert 40 < state.source.left < 88  # a fair coin: 4.2 standard deviations, false failure once in 40,000


@pytest.mark.slow
def test_logged_episodes_are_enough_to_improve():
    search = PolicySearch(MODEL, MODEL, Exact(MODEL), SGD, num_episodes=4)
    state = search.init(policy())
    _, log = search.collect(jax.random.key(0), state)
    scenarios = search.infer(jax.random.key(1), state, log)
    improved, _, info = search.improve(jax.random.key(2), state, scenarios)
    assert not same(improved.policy, state.policy)
    assert 1 <= info.effective_sample_size <= 10


class Knowing(Planner):
    """Opens the door without the tiger; behind the left one it has no answer."""

    def __call__(self, carry, state, observation):
        logits = jnp.log(jnp.asarray([0.0, 1.0, 0.0]))
        return carry, Categorical(logits=jnp.where(state.index == 1, logits, -jnp.inf))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_mixture_has_the_mixtures_probabilities_and_falls_back_to_the_policy(beta):
    habit = TabularPolicy([[0.2, 0.3, 0.5]] * 3)
    mixture = ExpertMixture(Knowing(), habit, jnp.asarray(beta))
    for index, expected in ((0, [0.2, 0.3, 0.5]), (1, [0.2 * (1 - beta), 0.3 + 0.7 * beta, 0.5 * (1 - beta)])):
        state = jax.tree.map(lambda leaf, i=index: leaf[i], MODEL.states(jnp.int32(-1), jnp.int32(0)))
        _, distribution = mixture(mixture.initial_carry(), state, jnp.int32(0))
        np.testing.assert_allclose(distribution.probabilities, expected, atol=1e-6)


def test_logged_probabilities_are_those_of_the_actions_that_a_mixture_takes():
    mixture = ExpertMixture(Knowing(), TabularPolicy([[0.2, 0.3, 0.5]] * 3), jnp.asarray(0.4))

    @jax.vmap
    def run(key):
        trajectory = rollout(MODEL, mixture, MODEL.scenario_prior.sample(key))
        return trajectory.state.index[0], trajectory.episode.action[0], trajectory.episode.log_prob[0]

    state, action, log_prob = (np.asarray(x) for x in run(jax.random.split(jax.random.key(0), 4000)))
    taken = action[state == 1] == 1
    np.testing.assert_allclose(np.exp(log_prob[state == 1][taken]), 0.58, atol=1e-6)
    # Three standard errors of some 2000 draws of a coin of 0.58: false failure once in 370.
    assert abs(taken.mean() - 0.58) < 0.033
    assert abs(taken.mean() - 0.3) > 0.033, "the policy alone would be told apart"


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_one_who_acts_for_whole_episodes_has_the_probabilities_of_the_two_episodes(beta):
    knowing, habit = np.array([[0.7, 0.3, 0.0], [0.9, 0.0, 0.1]]), np.array([[0.2, 0.3, 0.5]] * 3)

    @jax.jit
    @jax.vmap
    def run(key):
        u = MODEL.scenario_prior.sample(key)
        planners = [
            mixture(TabularPlanner(knowing), TabularPolicy(habit), jnp.asarray(beta)) for mixture in MIXTURES.values()
        ]
        return [rollout(MODEL, planner, u) for planner in planners]

    for mixing, found in zip(MIXTURES, run(jax.random.split(jax.random.key(0), 64)), strict=True):
        state, action, live = (
            np.asarray(x) for x in (found.state.index[:, :-1], found.episode.action, found.episode.live)
        )
        expert, alone = (np.where(live, p, 1.0).prod(1) for p in (knowing[state, action], habit[0, action]))
        log_prob = np.where(live, found.episode.log_prob, 0.0).sum(1)
        error = np.abs(np.exp(log_prob) - beta * expert - (1 - beta) * alone).max()
        # With one of the two alone it does not matter how they are mixed.
        assert (error < 1e-6) == (mixing == "episode" or beta in (0, 1))


def test_beta_decays_exponentially_in_episodes():
    schedule = ExpertSchedule(Knowing(), 0.8, time_constant=100.0)
    problems = [PlanningProblem(policy(), None, jnp.int32(0), jnp.int32(n)) for n in (0, 100, 1000)]
    betas = [schedule(problem).beta for problem in problems]
    np.testing.assert_allclose(betas, 0.8 * np.exp([0.0, -1.0, -10.0]), rtol=1e-5)


class Told(Planner):
    """Opens the door that it was told to."""

    door: jax.Array

    def __call__(self, carry, state, observation):
        return carry, Categorical(logits=jnp.where(jnp.arange(3) == self.door, 0.0, -jnp.inf))


@pytest.mark.parametrize("honest", [True, False])
def test_an_expert_may_search_on_the_host_for_each_scenario(honest):
    model, asked = tiger(horizon=1, reparameterization="gumbel_max"), []

    def experts(scenarios):
        tigers = np.asarray(jax.vmap(model.initial)(scenarios.initial).index)
        asked.append(set(tigers))
        doors = jnp.asarray(2 - tigers if honest else 1 + tigers)
        return eqx.Partial(lambda doors, number: Told(doors[number]), doors)

    planner = ExpertSchedule(experts, 1.0, time_constant=1e9)
    search = PolicySearch(model, model, Prior(model), SGD, planner, num_episodes=8)
    _, info = search.step(jax.random.key(0), search.init(policy()))
    assert asked == [{0, 1}], "once a step, for all of its scenarios"
    assert info.objective.planner_return == (10 if honest else -100)


def test_mistakes_are_named():
    with pytest.raises(CouldaError, match="num_episodes must be at least 1; got 0"):
        PolicySearch(MODEL, MODEL, Prior(MODEL), SGD, num_episodes=0)
    with pytest.raises(CouldaError, match="steps must be at least 1; got 0"):
        PolicySearch(MODEL, MODEL, Prior(MODEL), SGD, steps=0)
    with pytest.raises(CouldaError, match=r"beta is a probability.*1\.5"):
        ExpertSchedule(Knowing(), 1.5)
    with pytest.raises(CouldaError, match="time_constant"):
        ExpertSchedule(Knowing(), 1.0, time_constant=0.0)
    with pytest.raises(CouldaError, match="mixing is 'day'; name one of"):
        ExpertSchedule(Knowing(), mixing="day")
    gaussian = LinearPlanner(jnp.ones((1, 1)), jnp.ones(()))
    with pytest.raises(CouldaError, match="only discrete actions can be mixed; expert and policy gave a Normal"):
        ExpertMixture(gaussian, UniformPolicy(2), jnp.asarray(0.5))((jnp.int32(0), ()), jnp.ones(1), jnp.ones(1))
    assert isinstance(gaussian(jnp.int32(0), jnp.ones(1), None)[1], Normal)
