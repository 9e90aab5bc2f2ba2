"""The parts of the published protocol, each against plain loops."""

import jax
import numpy as np
import pytest

from coulda.environments.sepsis.kernel import vitals_of
from coulda.episodes import collect
from coulda.planners.dynamic_programming import policy_iteration
from coulda.studies import sepsis


@pytest.fixture(scope="module")
def log():
    world = sepsis.Sepsis(reparameterization="gumbel_max")
    return collect(jax.random.key(0), world, sepsis.behavior_planner(), 200)


def test_projecting_forgets_glucose_and_nothing_else():
    numbers = np.arange(sepsis.OBSERVED)
    seen = {}
    for number, projected in zip(numbers, sepsis.project(numbers), strict=True):
        vitals = vitals_of(number)
        rest = (int(vitals.heart_rate), int(vitals.pressure), int(vitals.oxygen), number % 8)
        assert seen.setdefault(int(projected), rest) == rest
    assert sorted(seen) == list(range(sepsis.PROJECTED))


@pytest.mark.slow
def test_counts_are_the_logs(log):
    expected = np.zeros((8, 146, 146))
    dead, left = set(), set()
    for episode in log:
        for t, action in enumerate(episode.action):
            before, after = (int(o) // 40 * 8 + int(o) % 8 for o in episode.observation[t : t + 2])
            expected[action, before, after] += 1
        {-1: dead, 1: left}.get(int(episode.reward[-1]), set()).add(int(episode.observation[-1]))
    for states, absorbing in ((dead, 144), (left, 145)):
        expected[:, absorbing, absorbing] += 1
        for o in states:
            expected[:, o // 40 * 8 + o % 8, absorbing] += 1
    np.testing.assert_array_equal(sepsis.count(log), expected)


@pytest.mark.slow
def test_the_learned_policy_is_optimal_in_the_learned_model(log):
    learned = sepsis.learn(log)
    assert set(np.unique(learned.policy)) == {0.0, 1.0}
    solution = policy_iteration(learned.model, sepsis.DISCOUNT)
    transition, reward, terminal = (np.asarray(table, float) for table in learned.model.tables())
    chosen = learned.policy.argmax(1)
    rows = transition[chosen, np.arange(146)] * ~terminal.astype(bool)[:, None]
    value = np.linalg.solve(np.eye(146) - sepsis.DISCOUNT * rows, (rows * reward[0]).sum(1))
    np.testing.assert_allclose(value, solution.value, atol=1e-5)


@pytest.mark.slow
def test_frequencies_are_probabilities(log):
    fitted = sepsis.with_frequencies(log)
    assert fitted.schema.behavior == "fitted"
    assert (fitted.log_prob <= 0).all()
    assert fitted.has_probabilities
