"""MB-PE without hindsight: is a wrong model found out by simulating the logged behavior, and a right one left alone?"""

import re
from dataclasses import replace
from functools import cache

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, collect, fit_behavior, open_log, write_log
from coulda.episodes.behavior import fitted_behavior
from coulda.evaluation import OnScenarios, compare, evaluate
from coulda.evaluation.estimate import VERDICTS, reading_for
from coulda.evaluation.simulation import simulate
from coulda.evaluation.two_samples import energy_test
from coulda.hindsight import Exact, Prior
from coulda.noise import Categorical, Normal, Uniform
from coulda.policies import LinearGaussianPolicy, UniformPolicy
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice, LocationScaleAction, Policy
from coulda.pomdp.rollout import taken_log_probs
from tests.triage import BEHAVIOR, INITIAL, REWARD, TARGET, TREAT, WAIT, Table, triage

KEY = jax.random.key(5)


class Pump(POMDP):
    """The tutorial's: it wears while it runs, until it breaks or is serviced, and is heard with noise."""

    rate: float = 0.2
    horizon: int = eqx.field(static=True, default=20)
    action_mechanism: ActionMechanism = GumbelMaxChoice(2)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    initial_noise = Uniform(0.0, 0.5)
    transition_noise = Uniform()
    observation_noise = Normal(0.0, 0.2)

    def initial(self, u):
        return u

    def transition(self, state, action, u):
        return jnp.where(action == 1, 0.1 * u, state + self.rate * u)

    def reward(self, state, action, next_state):
        return jnp.where(action == 1, -1.0, jnp.where(next_state > 1.0, -10.0, 1.0))

    def observe(self, state, u):
        return state + u

    def terminal(self, state):
        return state > 1.0


class ServiceWhenLoud(Policy):
    """Of what is heard now, or, with a memory, of a running mean."""

    memory: float = 0.0

    def initial_carry(self):
        return jnp.float32(0)

    def __call__(self, carry, observation):
        carry = self.memory * carry + (1 - self.memory) * observation
        return carry, Categorical(logits=jnp.stack([0.0 * carry, 6 * (carry - 1)]))


class Repeating(Policy):
    """One of three actions, and the same again with probability `again`: has memory."""

    again: float

    def initial_carry(self):
        return jnp.zeros(3)

    def __call__(self, carry, observation):
        return carry, Categorical(
            logits=jnp.log(jnp.where(carry.sum() > 0, carry * self.again + (1 - carry) * (1 - self.again) / 2, 1 / 3))
        )

    def remember(self, carry, action, reward):
        return jax.nn.one_hot(action, 3)


class Drift(POMDP):
    """x' = x + a + u, in the open, with continuous actions."""

    pull: float = 1.0
    horizon: int = eqx.field(static=True, default=5)
    action_mechanism: ActionMechanism = LocationScaleAction((2,))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    initial_noise = Normal(shape=(2,))
    transition_noise = Normal(shape=(2,))

    def initial(self, u):
        return u

    def transition(self, state, action, u):
        return state + self.pull * action + 0.5 * u

    def reward(self, state, action, next_state):
        return -jnp.sum(next_state**2)

    def observe(self, state, u):
        return state


STEER = LinearGaussianPolicy(
    jnp.asarray([[-0.5, 0.2], [0.0, -0.3]]), jnp.asarray([0.1, 0.0]), jnp.log(jnp.full(2, 0.4))
)


def changed(transition=None, reward=REWARD, terminal=(False, False, True, True)) -> TabularPOMDP:
    """The triage model with other tables."""
    table = np.stack([WAIT, TREAT]) if transition is None else transition
    return TabularPOMDP(
        INITIAL, table, np.eye(4), reward, horizon=5, reparameterization="gumbel_max", terminal=terminal
    )  # fmt: skip


def blurred(share: float) -> np.ndarray:
    """Transitions of the ill that are with a probability of `share` to anywhere."""
    table = np.stack([WAIT, TREAT])
    table[:, :2] = (1 - share) * table[:, :2] + share / 4
    return table


def endless() -> np.ndarray:
    """Nobody recovers or dies."""
    table = np.stack([WAIT, TREAT])
    table[:, :2, :2] += table[:, :2, 2:].sum(-1, keepdims=True) / 2
    table[:, :2, 2:] = 0
    return table


@cache
def worlds() -> dict[str, tuple[POMDP, Policy]]:
    return {
        "triage": (triage(), BEHAVIOR),
        "tiger": (tiger(horizon=4, reparameterization="gumbel_max"), UniformPolicy(3)),
        "pump": (Pump(), ServiceWhenLoud()),
        "drift": (Drift(), STEER),
    }


@cache
def logged(name: str, episodes: int = 300) -> EpisodeLog:
    world, behavior = worlds()[name]
    return collect(jax.random.key(0), world, behavior, episodes)


def without_probabilities(log: EpisodeLog) -> EpisodeLog:
    return log.with_log_prob(np.full_like(log.log_prob, np.nan), behavior="logged")


def simulated(model: POMDP, log, key=KEY, **policies: Policy):
    found = simulate(key, model, reading_for([OnScenarios(model, Prior(model))], log, policies)).diagnostics
    return max(found, key=lambda one: VERDICTS.index(one.verdict))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triage", "tiger", "pump", "drift"])
def test_a_right_model_is_left_alone(name):
    """A caution in a hundred is promised. More than three in 40 logs are seen with a probability of 5e-4 per world, and
    one "do not trust" with one of 4e-3."""
    world, behavior = worlds()[name]
    verdicts = []
    for i in range(40):
        log = collect(jax.random.key(100 + i), world, behavior, 60)
        log = log if i % 2 else without_probabilities(log)
        verdicts.append(simulated(world, log, jax.random.key(i)).verdict)
    assert verdicts.count("do not trust") == 0
    assert verdicts.count("trust") >= 37


WRONG = {
    "wears four times too slowly": ("pump", Pump(rate=0.05), r"return 1[0-9]\.\d on average, the logged ones -?\d"),
    "rewards doubled": ("triage", changed(reward=2 * REWARD), "foresees other rewards than the logged ones"),
    "transitions 30 % wrong": ("triage", changed(blurred(0.3)), "foresees other .*observations than the logged ones"),
    "never ends": ("triage", changed(endless()), "foresees other .*ends, observations than"),
    "pulls twice as hard": ("drift", Drift(pull=2.0), "foresees other rewards, observations"),
}


FAST = ("never ends", "pulls twice as hard")
"""One with numbered and one with continuous states; the others are in the slow run."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[] if what in FAST else [pytest.mark.slow]) for what in WRONG]
)
def test_a_wrong_model_is_warned_of_and_told_why(what):
    name, model, sentence = WRONG[what]
    found = simulated(model, logged(name, 1000))
    assert found.verdict == "do not trust", found
    assert found.value < 1e-4
    assert "the model is wrong about the world" in found.sentence
    assert re.search(sentence, found.sentence), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("flagged", [True, False])
def test_cut_episodes_are_compared_as_far_as_they_go(flagged):
    """Two steps of five, told to be cut off, are no contradiction; told to have ended of themselves they are one."""
    short = collect(jax.random.key(3), triage(horizon=2), BEHAVIOR, 300)
    log = replace(short, terminated=short.terminated | flagged)
    assert simulated(triage(), log).verdict == ("do not trust" if flagged else "trust")


@pytest.mark.slow
def test_a_behavior_with_memory_is_not_held_against_the_model():
    """The fitted behavior is another one, and so are its episodes, whatever the model; in the table it is known."""
    world = worlds()["tiger"][0]
    double = eqx.tree_at(lambda model: model.rewards, world, 2 * world.rewards)
    stubborn = Repeating(0.95)
    log = collect(jax.random.key(1), world, stubborn, 300)
    for known in (log, without_probabilities(log)):
        for model in (world, double):
            found = simulated(model, known)
            assert found.verdict == "caution"
            assert "The behavior is not a function of the observation" in found.sentence
    assert simulated(world, log, stubborn=stubborn).verdict == "trust"
    assert simulated(double, log, stubborn=stubborn).verdict == "do not trust"


@pytest.mark.slow
def test_where_states_are_hidden_and_probabilities_missing_the_behavior_may_be_to_blame():
    world, _ = worlds()["tiger"]
    double = eqx.tree_at(lambda model: model.rewards, world, 2 * world.rewards)
    assert simulated(double, logged("tiger")).verdict == "do not trust"
    unknown = simulated(double, without_probabilities(logged("tiger")))
    assert unknown.verdict == "caution"
    assert "or the behavior knew more than the observation" in unknown.sentence
    # Where the observation is the state there is nothing more to know.
    assert simulated(changed(reward=2 * REWARD), without_probabilities(logged("triage"))).verdict == "do not trust"


@pytest.mark.slow
def test_only_where_there_is_no_hindsight_and_once_for_all_policies():
    wrong, log = changed(reward=2 * REWARD), logged("triage")
    policies = {"target": TARGET, "behavior": BEHAVIOR}
    named = lambda estimate: [d for d in estimate.diagnostics if d.name == "simulation"]
    for method in (OnScenarios(wrong, Prior(wrong)), OnScenarios(wrong, Exact(wrong).given(0))):
        rows = compare(KEY, log, policies, [method]).estimates
        first, second = (named(rows[name]["MB-PE"]) for name in policies)
        assert len(first) == 1
        assert first == second
        assert rows["target"]["MB-PE"].verdict == "do not trust"
    rows = compare(KEY, log, policies, [OnScenarios(wrong, Exact(wrong))]).estimates["target"]
    assert not any(named(estimate) for estimate in rows.values())
    assert len(named(evaluate(KEY, wrong, TARGET, log, Prior(wrong)))) == 1


@pytest.mark.slow
def test_a_stored_log_says_the_same(tmp_path):
    write_log(tmp_path / "log", logged("triage").batches(70))
    assert simulated(triage(), open_log(tmp_path / "log")) == simulated(triage(), logged("triage"))


@pytest.mark.slow
def test_a_log_need_not_have_seen_all_actions():
    world, _ = worlds()["tiger"]
    log = collect(jax.random.key(2), world, Table([[0.5, 0.5, 0.0]] * 3), 100)
    seen = replace(log, schema=replace(log.schema, action_space=gymnasium.spaces.Discrete(2)))
    assert simulated(world, seen).verdict == "trust"


def test_the_fitted_behavior_is_the_one_of_fit_behavior():
    log = logged("pump")
    policy = fitted_behavior(log)
    taken = jax.vmap(lambda episode: taken_log_probs(policy, episode))(log.padded())
    live = np.asarray(log.padded().live)
    np.testing.assert_allclose(np.asarray(taken)[live], fit_behavior(log).log_prob, atol=1e-5)


def test_the_fitted_behavior_of_continuous_actions_is_the_policy_that_acted():
    """1,500 steps: standard errors are 0.4 / √1500 = 0.01 of unit observations, and four of them are allowed."""
    policy = fitted_behavior(logged("drift"), penalty=0.0)
    weight = np.asarray(policy.weights[:-1] / policy.scale[:, None]).T
    np.testing.assert_allclose(weight, STEER.weight, atol=0.04)
    np.testing.assert_allclose(np.exp(policy.log_scale[-1]), np.full(2, 0.4), atol=0.03)


def test_the_energy_test_keeps_its_level_and_finds_a_difference():
    """Of 40 tests at 5 %, 9 or more are below with a probability of 1.3e-4 for each kind."""
    rng = np.random.default_rng(0)
    kinds = {
        "normal": lambda n: rng.normal(size=(n, 1)),
        "coin": lambda n: (rng.random((n, 1)) < 0.2).astype(float),
        "vectors": lambda n: rng.normal(size=(n, 3)),
    }
    for name, draw in kinds.items():
        chances = np.array([energy_test(rng, draw(40), draw(80)) for _ in range(40)])
        assert (chances < 0.05).sum() < 9, name
        # The twin: half a standard deviation in one column.
        shift = 0.5 * draw(1000).std(0) * (np.arange(draw(1).shape[1]) == 0)
        assert np.median([energy_test(rng, draw(200) + shift, draw(400)) for _ in range(5)]) < 1e-3, name
