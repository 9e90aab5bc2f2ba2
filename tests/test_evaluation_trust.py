"""No wrong answer may say "trust": how episodes end, vectors, numbers that are none, shapes, and contradictions."""

import math
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

from coulda.environments import tiger
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import Schema, checked_log, collect, from_frame
from coulda.errors import CouldaError
from coulda.evaluation import (
    DoublyRobust,
    Estimate,
    FittedQ,
    ImportanceSampling,
    Interval,
    LinearQ,
    OnPolicy,
    OnScenarios,
    Precision,
    compare,
    evaluate,
    model_free,
)
from coulda.evaluation.comparison import told_apart
from coulda.hindsight import Exact, Prior
from coulda.noise import Categorical
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Policy
from tests.triage import BEHAVIOR, REWARD, TARGET, Table, triage

KEY = jax.random.key(4)
EPISODES = 1000  # in every log, here and in test_evaluation_scenarios, so that they share programs


def chain(lengths, *, last: bool, flags: str | None, seed: int = 1) -> pd.DataFrame:
    """Uniform actions among three states; every step pays, so that the return is a matter of the length."""
    rng = np.random.default_rng(seed)
    move, pay = rng.dirichlet(np.ones(3), (3, 2)), rng.normal(1.15, 0.5, (3, 2))
    rows = []
    for episode, length in enumerate(lengths):
        state = int(rng.integers(3))
        for step in range(length):
            action = int(rng.integers(2))
            row = {"episode": episode, "step": step, "observation": state, "action": action, "probability": 0.5}
            rows.append(row | {"reward": pay[state, action]} | ({flags: step == length - 1} if flags else {}))
            state = int(rng.choice(3, p=move[state, action]))
        if last:
            rows.append({"episode": episode, "step": length, "observation": state})
    return pd.DataFrame(rows).astype({"observation": "Int64", "action": "Int64"})


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("flags", [None, "terminated", "truncated"])
def test_a_fixed_horizon_is_no_end_by_state(last, flags):
    """Uniform log, uniform policy: the value is the log's mean, whatever the table says of the ends."""
    log = from_frame(chain([10] * 300, last=last, flags=flags))
    estimate = FittedQ(resamples=50).estimate(KEY, UniformPolicy(2), log)
    mean, error = log.episode_returns.mean(), log.episode_returns.std() / math.sqrt(300)
    assert abs(estimate.value - mean) < 3 * error  # false failure 3e-3 with a fixed seed; ends by state would be 20 off
    assert estimate.verdict == "trust"


@pytest.mark.parametrize("flags", [None, "terminated"])
def test_lengths_that_depend_on_time_alone(flags):
    lengths = np.random.default_rng(0).integers(3, 9, 300)
    log = from_frame(chain(lengths, last=True, flags=flags))
    estimate = FittedQ(resamples=50).estimate(KEY, UniformPolicy(2), log)
    assert estimate.details["ends depend on time"]
    error = log.episode_returns.std() / math.sqrt(300)
    assert abs(estimate.value - log.episode_returns.mean()) < 3 * error
    assert estimate.verdict == "trust"


def test_ends_by_state_do_not_depend_on_time():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    assert not FittedQ(resamples=10).estimate(KEY, TARGET, log).details["ends depend on time"]


@cache
def quadratic_log(n: int = 2000):
    """x ~ N(0, 1), r = a x², acting with probability .9 or .1 by |x| < 1: always acting is worth 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    likely = np.where(np.abs(x) < 1, 0.9, 0.1)
    action = (rng.random(n) < likely).astype(int)
    schema = Schema(spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2))
    taken = np.log(np.where(action == 1, likely, 1 - likely))
    seen = np.repeat(x, 2)[:, None].astype(np.float32)
    return checked_log(schema, seen, action, action * x**2, np.ones(n, int), np.ones(n, bool), taken)


class Always(Policy):
    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.array([-jnp.inf, 0.0]))


def test_a_regression_is_chosen_and_a_wrong_one_is_found_out():
    log = quadratic_log()
    chosen = FittedQ(resamples=50).estimate(KEY, Always(), log)
    assert chosen.details["regression"] == "QuadraticQ"
    assert 1.0 in chosen.interval
    wrong = FittedQ(LinearQ(), resamples=50).estimate(KEY, Always(), log)
    assert wrong.value < 0.6
    assert wrong.verdict == "do not trust"
    assert "its own errors add up to" in wrong.reasons


def test_numbers_that_are_none_are_named_and_never_trusted():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    methods = [*model_free(log), OnScenarios(triage(), Exact(triage())), OnPolicy(triage(), EPISODES)]
    sometimes = Table([[0.5, 0.5], [np.nan, np.nan], [0.5, 0.5], [0.5, 0.5]])
    for estimate in compare(KEY, log, {"policy": sometimes}, methods).estimates["policy"].values():
        assert (estimate.status, estimate.verdict) == ("not finite", "do not trust")
        assert "NaN" in estimate.explanation
    broken = eqx.tree_at(lambda model: model.rewards, triage(), jnp.asarray(REWARD, float).at[:, :, 3].set(jnp.inf))
    methods = [OnScenarios(broken, Prior(broken)), OnPolicy(broken, EPISODES)]
    for estimate in compare(KEY, log, {"policy": TARGET}, methods).estimates["policy"].values():
        assert estimate.status == "not finite"
        assert "the reward of step" in estimate.explanation


def test_weights_beyond_numbers_are_told_from_missing_support():
    n, steps = 40, 400
    schema, action = Schema(spaces.Discrete(1), spaces.Discrete(2)), np.zeros(n * steps, int)
    log = lambda p: checked_log(
        schema, np.zeros(n * (steps + 1), int), action, np.ones(n * steps), np.full(n, steps), np.ones(n, bool),
        np.full(n * steps, np.log(p)),
    )  # fmt: skip
    policy = TabularPolicy([[0.5, 0.5]])
    tiny = ImportanceSampling("ordinary").estimate(KEY, policy, log(0.01))
    assert tiny.status == "not finite"
    assert "than a number can hold" in tiny.explanation
    vanished = ImportanceSampling("weighted").estimate(KEY, TabularPolicy([[0.05, 0.95]]), log(0.99))
    assert vanished.value == pytest.approx(steps)
    assert vanished.status == "ok"


def test_what_the_cap_takes_away_is_told():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    capped = {d.name: d for d in ImportanceSampling("capped", cap=1.0).estimate(KEY, TARGET, log).diagnostics}
    assert capped["cap"].verdict == "do not trust"
    assert {d.name: d.verdict for d in ImportanceSampling("capped", cap=1e6).estimate(KEY, TARGET, log).diagnostics}[
        "cap"
    ] == "trust"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (TabularPolicy([[1.0, 0, 0]]), "its table has 1 rows"),
        (TabularPolicy([[1.0, 0, 0]] * 2), "its table has 2 rows"),
        (TabularPolicy([[1.0, 0]] * 3), "knows 2 actions, but there are 3"),
        (TabularPolicy([[1.0, 0, 0, 0]] * 3), "knows 4 actions, but there are 3"),
        (3, "is a int, not a Policy"),
    ],
)
def test_shapes_come_before_numbers(policy, message):
    model = tiger(horizon=3, reparameterization="gumbel_max")
    log = collect(jax.random.key(0), model, UniformPolicy(3), 20)
    with pytest.raises(CouldaError, match=message):
        compare(KEY, log, {"policy": policy}, [ImportanceSampling(), OnScenarios(model, Prior(model))])


def test_a_log_must_fit_the_model():
    log = collect(jax.random.key(0), tiger(horizon=3, reparameterization="gumbel_max"), UniformPolicy(3), 20)
    with pytest.raises(CouldaError, match="an episode of 3 steps, but TabularPOMDP ends after 2"):
        evaluate(KEY, tiger(horizon=2, reparameterization="gumbel_max"), UniformPolicy(3), log)
    with pytest.raises(CouldaError, match=r"knows 3 actions, but there are 2|observations are"):
        evaluate(KEY, triage(), UniformPolicy(3), log)


def test_a_row_that_is_not_there_is_not_another_row():
    _, distribution = TabularPolicy([[1.0, 0.0]])((), jnp.int32(1))
    assert jnp.isnan(distribution.logits).all()


def row(method: str, low: float, high: float) -> Estimate:
    return Estimate(method, (low + high) / 2, Interval(low, high, 0.95, "student"), np.full(40, (low + high) / 2), 40.0)


def test_trusted_estimates_that_contradict_each_other_say_so():
    found = told_apart(
        {e.method: e for e in (row("WIS", 4.9, 5.1), row("FQE", 3.2, 3.3), row("CF-PE(3)", 4.8, 5.2))}, 1.0
    )
    assert found["FQE"].verdict == "do not trust"
    assert "FQE says 3.25 (3.2 to 3.3) and WIS says 5 (4.9 to 5.1)" in found["FQE"].reasons
    assert found["WIS"].verdict == "trust"  # it takes less for granted
    assert found["CF-PE(3)"].verdict == "caution"  # neither it nor FQE does
    near = told_apart({e.method: e for e in (row("WIS", 4.9, 5.1), row("FQE", 5.0, 5.2))}, 1.0)
    assert {e.verdict for e in near.values()} == {"trust"}
    # They overlap, and differ by 0.18, which is more than √(0.1² + 0.12²).
    apart = told_apart({e.method: e for e in (row("WIS", 4.9, 5.1), row("FQE", 5.05, 5.3))}, 1.0)
    assert [e.verdict for e in apart.values()] == ["trust", "caution"]
    # What single precision cannot tell apart is no contradiction, however narrow the intervals.
    exact = told_apart({e.method: e for e in (row("DR", 5.0, 5.0), row("FQE", 4.99999, 4.99999))}, 1.0)
    assert {e.verdict for e in exact.values()} == {"trust"}
    # In small units it is told apart.
    small = told_apart({e.method: e for e in (row("DR", 5e-6, 5e-6), row("FQE", 4e-6, 4e-6))}, 5e-6)
    assert [e.verdict for e in small.values()] == ["trust", "do not trust"]
    equals = told_apart({e.method: e for e in (row("WIS", 4.9, 5.1), row("IS", 5.05, 5.3))}, 1.0)
    assert {e.verdict for e in equals.values()} == {"trust"}


@pytest.mark.slow
def test_wrong_observation_probabilities_are_found_and_a_small_log_cannot_tell():
    rng = np.random.default_rng(0)
    move, see = rng.dirichlet(np.ones(4), (2, 4)), rng.dirichlet(np.full(4, 0.5), 4)
    pay = rng.choice([-1.0, 1.0], (2, 4, 4))
    make = lambda see: TabularPOMDP(np.full(4, 0.25), move, see, pay, horizon=5, reparameterization="gumbel_max")
    world, uniform = make(see), Table(np.full((4, 2), 0.5))
    log = collect(jax.random.key(0), world, uniform, EPISODES)
    mismatch = lambda model, log: {d.name: d for d in evaluate(KEY, model, uniform, log, Exact(model)).diagnostics}
    assert mismatch(world, log)["mismatch"].verdict == "trust"
    blurred = mismatch(make(0.4 * see + 0.6 / 4), log)["mismatch"]
    assert blurred.verdict != "trust"
    assert "observations deviate" in blurred.sentence
    few = mismatch(world, log[:25])["mismatch"]
    assert few.verdict == "caution"
    assert "too small to tell" in few.sentence


@pytest.mark.slow
def test_one_episode_with_several_scenarios_has_no_nan():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 1)
    estimate = evaluate(KEY, triage(), TARGET, log, Exact(triage()), precision=Precision(scenarios=4))
    assert all(np.isfinite(value) for value in estimate.details.values() if not isinstance(value, str))


def test_values_say_what_they_think_of_the_log_itself():
    log = quadratic_log()
    found = {d.name: d for d in FittedQ(resamples=50).estimate(KEY, Always(), log).diagnostics}
    assert found["log itself"].verdict == "trust"
    assert "for the log itself, whose mean is" in found["log itself"].sentence
    robust = {d.name for d in DoublyRobust().estimate(KEY, Always(), log).diagnostics}
    assert "log itself" in robust
