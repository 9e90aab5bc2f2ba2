"""Nothing depends on the units that rewards and observations are counted in: dollars, millions of them, or cents."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, Schema, checked_log, collect
from coulda.evaluation import FittedQ, NetworkQ, OnScenarios, compare, model_free
from coulda.explanations import Question, explain_log
from coulda.hindsight import Exact
from coulda.noise import Categorical
from coulda.planners import policy_iteration, value_iteration
from coulda.pomdp import Policy
from tests.triage import BEHAVIOR, INITIAL, REWARD, TARGET, TREAT, WAIT

KEY = jax.random.key(5)
UNITS = [1.0, 1e-6, 1e6]
EPISODES = 300


def world(unit: float, dearer: float = 1.0) -> TabularPOMDP:
    """`tests.triage`, paid in another unit; treatments, and what they lead to, may be worth more."""
    pay = unit * REWARD * np.array([1.0, dearer])[:, None, None]
    ends = [False, False, True, True]
    return TabularPOMDP(
        INITIAL, np.stack([WAIT, TREAT]), np.eye(4), pay, horizon=5, reparameterization="gumbel_max", terminal=ends
    )


def table(unit: float, dearer: float = 1.0):
    log, model = collect(jax.random.key(0), world(unit), BEHAVIOR, EPISODES), world(unit, dearer)
    methods = [*model_free(log), OnScenarios(model, Exact(model))]
    return compare(KEY, log, {"target": TARGET}, methods).estimates["target"]


@pytest.fixture(scope="module")
def usual():
    return table(1.0)


@pytest.mark.parametrize("unit", UNITS[1:])
def test_values_and_verdicts_are_the_same_in_other_units(usual, unit):
    for method, row in table(unit).items():
        assert row.value / unit == pytest.approx(usual[method].value, abs=1e-3)
        assert row.interval.width / unit == pytest.approx(usual[method].interval.width, rel=0.01)
        assert row.verdict == usual[method].verdict


@pytest.mark.parametrize("unit", UNITS)
def test_a_model_that_pays_otherwise_is_found_out_in_any_unit(usual, unit):
    """Rewards of the size of 10⁻⁶ were once equal to each other, and the wrong model was trusted."""
    found = table(unit, dearer=1.3)
    assert {usual["MB-PE"].verdict, usual["CF-PE"].verdict} == {"trust"}
    for method in ("MB-PE", "CF-PE"):
        (replayed,) = [d for d in found[method].diagnostics if d.name == "replay"]
        assert replayed.value < 0.9
        assert found[method].verdict == "do not trust"


@pytest.mark.parametrize(
    "source", [lambda _: None, pytest.param(Exact, marks=pytest.mark.slow)], ids=["exactly", "on scenarios"]
)
def test_decisions_that_mattered_matter_in_any_unit(source):
    """No decision was better by as little as 10⁻⁵, whatever the unit: none of the log's would have helped."""

    def explained(unit: float):
        model = world(unit)
        log = collect(jax.random.key(0), model, BEHAVIOR, 20)
        return explain_log(KEY, model, log, source(model), Question(changes=2))

    usual = explained(1.0)
    assert usual.answers.changed.any()
    assert " 0 of 20" not in usual.sentences[0]
    for unit in UNITS[1:]:
        found = explained(unit)
        np.testing.assert_array_equal(found.answers.changed, usual.answers.changed)
        assert found.sentences[0] == usual.sentences[0]


@pytest.mark.parametrize("unit", UNITS[1:])
def test_plans_are_worth_the_same_in_other_units(unit):
    for plan in (policy_iteration, value_iteration):
        found, usual = plan(world(unit), 0.99), plan(world(1.0), 0.99)
        np.testing.assert_allclose(found.value / unit, usual.value, atol=1e-6)


class Towards(Policy):
    unit: float = eqx.field(static=True)

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.stack([0.0, observation[0] / self.unit]))


def vectors(unit: float) -> EpisodeLog:
    """s' = .8 s_0 + a + noise, beside something that stays as it is; the reward is -s_0²."""
    rng = np.random.default_rng(0)
    state, action = np.zeros((EPISODES, 6)), rng.integers(0, 2, (EPISODES, 5))
    state[:, 0] = rng.normal(size=EPISODES)
    for t in range(5):
        state[:, t + 1] = 0.8 * state[:, t] + action[:, t] + 0.3 * rng.normal(size=EPISODES)
    seen = unit * np.stack([state, np.full_like(state, 300.1)], -1).reshape(-1, 2)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    paid = -unit * state[:, :-1].ravel() ** 2
    lengths, ended = np.full(EPISODES, 5), np.ones(EPISODES, bool)
    schema = Schema(box, gymnasium.spaces.Discrete(2))
    return checked_log(schema, seen.astype(np.float32), action.ravel(), paid.astype(np.float32), lengths, ended)


@pytest.mark.parametrize(
    "method",
    [FittedQ(), pytest.param(FittedQ(NetworkQ(width=8, updates=60, learning_rate=1e-2)), marks=pytest.mark.slow)],
    ids=["chosen", "network"],
)
def test_fitted_values_of_vectors_are_the_same_in_other_units(method):
    rows = [method.estimate(KEY, Towards(unit), vectors(unit)) for unit in UNITS]
    for row, unit in zip(rows, UNITS, strict=True):
        assert row.value / unit == pytest.approx(rows[0].value, rel=1e-4)
        assert row.verdict == rows[0].verdict
