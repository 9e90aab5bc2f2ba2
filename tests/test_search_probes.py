"""The probe ladder: small worlds, each isolating one way for a search to fail, each with a twin that fails."""

from functools import cache

import jax
import numpy as np
import optax
import pytest

from coulda.environments import TabularPOMDP, contextual_bandit
from coulda.hindsight import Exact, Prior
from coulda.planners.dynamic_programming import finite_horizon
from coulda.planners.mixture import ExpertSchedule
from coulda.policies import TabularPolicy
from coulda.recipes.worlds import hidden_bit_model
from coulda.search import PolicySearch, ReturnWeightedRegression

ADAM = optax.adam(0.3)  # one object, so that searches that differ in numbers only share their programs


def run(search: PolicySearch, policy: TabularPolicy, steps: int = 60, seed: int = 0):
    """The policy's probabilities `[O, A]` after so many steps, and every step's info."""
    state, infos = search.init(policy), []
    for key in jax.random.split(jax.random.key(seed), steps):
        state, info = search.step(key, state)
        infos.append(info)
    return np.asarray(jax.nn.softmax(state.policy.logits)), infos


def searching(environment, model=None, source=None, **options) -> PolicySearch:
    model = environment if model is None else model
    # Where the model is right every source gives the same distribution of scenarios (Lemma 1): take the cheapest.
    source = Prior(model) if source is None else source
    return PolicySearch(environment, model, source, ADAM, **options)


# One step: context c pays for action a == c. The optimum is 1; a policy that learns nothing has 1/2.


@cache
def one_step() -> TabularPOMDP:
    outcome = np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
    return contextual_bandit([0.5, 0.5], outcome, [0.0, 1.0], reparameterization="gumbel_max")


@pytest.mark.parametrize(("temperature", "learns"), [(1.0, True), (1e6, False)])
def test_one_step_reward(temperature, learns):
    search = searching(one_step(), objective=ReturnWeightedRegression(temperature=temperature))
    probabilities, _ = run(search, TabularPolicy(np.full((4, 2), 0.5)))
    value = (probabilities[0, 0] + probabilities[1, 1]) / 2
    assert (value > 0.95) == learns
    # The twin has all weights equal: the gradient is noise of mean zero, and π wanders round where it began.


# Two steps: 1 is paid at the end for action 1 and then 0. One who sees the step gets 1; one who does not must play
# the same p at both steps, which earns p (1 - p), at most 1/4.


@cache
def two_steps(see_the_step: bool) -> TabularPOMDP:
    begin, good, bad, paid, end = range(5)
    transition = np.zeros((2, 5, 5))
    for action, state, following in [(0, begin, bad), (1, begin, good), (0, good, paid), (1, good, end)]:
        transition[action, state, following] = 1
    transition[:, bad, end] = transition[:, paid, paid] = transition[:, end, end] = 1
    observation = np.eye(3)[[0, 1, 1, 2, 2]] if see_the_step else np.eye(3)[[0, 0, 0, 2, 2]]
    return TabularPOMDP(
        np.eye(5)[begin], transition, observation, np.eye(5)[paid], horizon=2, reparameterization="gumbel_max"
    )


@pytest.mark.slow
@pytest.mark.parametrize("see_the_step", [True, False])
def test_two_step_reward(see_the_step):
    probabilities, _ = run(searching(two_steps(see_the_step)), TabularPolicy(np.full((3, 2), 0.5)), steps=80)
    value = probabilities[0, 1] * probabilities[1 if see_the_step else 0, 0]
    assert value > 0.9 if see_the_step else 0.15 < value <= 0.25


# A hidden bit, revealed after the action: 1 is paid for guessing it. It is 1 with probability 0.9 in the environment
# and 0.1 in the model. Nothing is seen before the guess, so the best guess is always 1, worth 0.9; one who trusts the
# model's prior guesses 0, worth 0.1. Only hindsight can know.


@pytest.mark.parametrize("normalization", ["scenario", pytest.param("batch", marks=pytest.mark.slow)])
def test_a_hidden_bit_revealed_late(normalization):
    environment, model = hidden_bit_model(0.9), hidden_bit_model(0.1)
    hindsight = Exact(model)
    values = {}
    for name, source in {"CF-GPS": hindsight, "GPS-like": hindsight.given(1), "MB-PS": Prior(model)}.items():
        search = searching(environment, model, source, objective=ReturnWeightedRegression(normalization=normalization))
        guess_one = run(search, TabularPolicy(np.full((3, 2), 0.5)))[0][0, 1]
        values[name] = 0.9 * guess_one + 0.1 * (1 - guess_one)
    assert values["CF-GPS"] == pytest.approx(0.9, abs=0.05)
    assert values["GPS-like"] == pytest.approx(0.1, abs=0.05), "the first observation tells nothing"
    assert values["MB-PS"] == pytest.approx(0.1, abs=0.05)


# Support: a policy that can never do as its planner does has nothing to learn from it; it says so and stays.


@pytest.mark.parametrize("supported", [False, True])
def test_support_mismatch_is_reported(supported):
    table = np.full((4, 2), 0.5)
    table[:2] = [[0.02, 0.98], [0.98, 0.02]] if supported else [[0.0, 1.0], [1.0, 0.0]]
    expert = finite_horizon(one_step()).planner
    search = searching(one_step(), planner=expert, objective=ReturnWeightedRegression(num_rollouts=2))
    probabilities, infos = run(search, TabularPolicy(table), steps=30)
    assert all(float(info.objective.planner_return) == 1 for info in infos), "the expert is always right"
    assert all(float(info.objective.unsupported) == (not supported) for info in infos)
    assert (infos[0].objective.effective_sample_size > 0) == supported
    value = (probabilities[0, 0] + probabilities[1, 1]) / 2
    assert value > 0.9 if supported else value == 0
    assert np.isfinite(probabilities).all()


@pytest.mark.slow
def test_an_expert_helps_where_chance_alone_finds_nothing():
    # Fifteen steps without a mistake pay 1: by chance once in 2¹⁵. (With the ratio the expert's luck is weighed away.)
    states = 17
    transition = np.zeros((2, states, states))
    transition[1, range(15), range(1, 16)] = transition[0, range(15), 16] = 1
    transition[:, 15, 15] = transition[:, 16, 16] = 1
    chain = TabularPOMDP(
        np.eye(states)[0],
        transition,
        np.eye(states),
        np.eye(states)[15],
        horizon=15,
        reparameterization="inverse_cdf",
        terminal=np.arange(states) >= 15,
    )
    reached = {}
    for beta in (0.5, 0.0):
        planner = ExpertSchedule(finite_horizon(chain).planner, beta, time_constant=400.0)
        objective = ReturnWeightedRegression(temperature=0.2, ratio=False)
        search = searching(chain, planner=planner, objective=objective, num_episodes=4)
        probabilities, _ = run(search, TabularPolicy(np.full((states, 2), 0.5)), steps=60)
        reached[beta] = probabilities[:15, 1].prod()
    assert reached[0.5] > 0.9
    assert reached[0.0] < 0.01
