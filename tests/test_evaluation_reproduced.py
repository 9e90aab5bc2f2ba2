"""Wrong answers that were once printed with "trust", each as it was found; see also `test_evaluation_trust`."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from gymnasium import spaces

from coulda.cli.evaluate import Evaluate
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, Schema, checked_log, collect
from coulda.errors import CouldaError
from coulda.evaluation import Estimate, FittedQ, ImportanceSampling, OnScenarios, Precision, compare, evaluate
from coulda.evaluation.estimate import plain
from coulda.hindsight import Exact, Prior
from coulda.policies import TabularPolicy
from coulda.studies import sepsis, trust_tuning
from coulda.studies.trust_worlds import exact_rewards, make_log, truth_of
from tests.triage import BEHAVIOR, TARGET, Table, triage

KEY = jax.random.key(7)


def numbered(observation: np.ndarray, action: np.ndarray, reward: np.ndarray, taken: np.ndarray) -> EpisodeLog:
    """A log of episodes of equal length, `[N, T]` each, in which the last observation is that before it."""
    n, steps = action.shape
    schema = Schema(spaces.Discrete(int(observation.max()) + 1), spaces.Discrete(2), last_observation="repeated")
    seen = np.concatenate([observation, observation[:, -1:]], 1)
    columns = (x.ravel() for x in (seen, action, reward))
    return checked_log(schema, *columns, np.full(n, steps), np.ones(n, bool), np.log(taken).ravel())


def test_a_cap_that_biases_by_a_third_is_not_trusted():
    """A graph of four layers (COBS): up pays 1 and down -1, and one step in four slips."""
    rng, n, steps = np.random.default_rng(0), 20_001, 4  # beyond 20,000 nothing is resampled, which takes long
    up = rng.random((n, steps)) < 0.8
    pays = np.where(up ^ (rng.random((n, steps)) < 0.25), 1.0, -1.0)
    place = np.concatenate([np.zeros((n, 1)), pays[:, :-1] > 0], 1).astype(int)
    log = numbered(place, up.astype(int), pays, np.where(up, 0.8, 0.2))
    mostly_down, truth = TabularPolicy([[0.8, 0.2]] * 2), 4 * (2 * 0.35 - 1)
    capped = ImportanceSampling("capped").estimate(KEY, mostly_down, log)
    assert capped.value > 0.8 * truth
    assert capped.verdict == "do not trust"
    assert "The cap takes" in capped.reasons


def test_a_hundred_thousand_steps_are_no_missing_support():
    """Each weight is 0.99^1e5 or so, e^-1000, which no number holds; all are alike, and WIS is the logged mean."""
    n, steps = 3, 100_000
    log = numbered(np.zeros((n, steps), int), np.zeros((n, steps), int), np.ones((n, steps)), np.full((n, steps), 1.0))
    found = ImportanceSampling("weighted").estimate(KEY, TabularPolicy([[0.99, 0.01]]), log)
    assert found.status == "ok"
    assert found.value == pytest.approx(steps)
    ordinary = ImportanceSampling("ordinary").estimate(KEY, TabularPolicy([[0.99, 0.01]]), log)
    assert ordinary.verdict == "do not trust"
    assert "never takes" not in ordinary.reasons


@pytest.mark.parametrize("kind", ["ordinary", "weighted", "per_decision", "weighted_per_decision", "capped"])
def test_a_probability_of_next_to_nothing_is_never_trusted(kind):
    action = np.random.default_rng(0).integers(0, 2, (200, 1))
    taken = np.full((200, 1), 0.5)
    taken[3] = 1e-300
    log = numbered(np.zeros((200, 1), int), action, action.astype(float), taken)
    found = ImportanceSampling(kind).estimate(KEY, TabularPolicy([[0.4, 0.6]]), log)
    assert found.verdict == "do not trust"
    json.dumps(plain(found), allow_nan=False)


def test_no_scenarios_are_refused_before_anything_runs(tmp_path: Path):
    arguments = [str(tmp_path / "none"), "--policy", "tests.triage:TARGET", "--num-scenarios", "0"]
    with pytest.raises(CouldaError, match="draw at least 1"):
        tyro.cli(Evaluate, args=arguments).run()


def test_of_actions_that_are_equally_good_the_first_is_kept():
    """As `policy_iteration` says; the published code takes the last improvement, and its policy is another."""
    transition = np.broadcast_to(np.eye(2), (3, 2, 2))
    reward = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(sepsis.policy_iteration(transition, reward).argmax(-1), [1, 0])


def broken(where: str) -> TabularPOMDP:
    """The ward with a NaN or an infinity in a rare transition, in the first state, in what is seen or in a reward."""
    model = triage()
    table, value = {
        "transition": (lambda m: m.transition_logits, model.transition_logits.at[1, 0].set(jnp.nan)),
        "initial": (lambda m: m.initial_logits, model.initial_logits * jnp.nan),
        "reward": (lambda m: m.rewards, model.rewards.at[1, 0, 2].set(jnp.nan)),
    }[where]
    return eqx.tree_at(table, model, value)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["transition", "initial", "reward"])
def test_a_model_with_numbers_that_are_none_is_not_trusted(where):
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 100)
    model = broken(where)
    rows = compare(KEY, log, {"policy": TARGET}, [OnScenarios(model, Prior(model))]).estimates["policy"]
    assert {row.verdict for row in rows.values()} == {"do not trust"}


@pytest.mark.slow
@pytest.mark.parametrize("logits", [[np.nan, 0.5], [np.inf, 0.5], [np.inf, np.inf]])
def test_a_policy_with_logits_that_are_none_is_not_trusted(logits):
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 100)
    with np.errstate(invalid="ignore"):
        policy = Table(np.exp(np.tile(logits, (4, 1))))
    methods = [ImportanceSampling("ordinary"), FittedQ(resamples=10), OnScenarios(triage(), Prior(triage()))]
    rows = compare(KEY, log, {"policy": policy}, methods).estimates["policy"]
    assert {row.verdict for row in rows.values()} == {"do not trust"}


def hidden_world(seed: int, wrong: str = "", amount: float = 0.0) -> TabularPOMDP:
    """A random POMDP of four states with rewards of ±1, and the same with tables that are mixed with the uniform."""
    rng = np.random.default_rng(seed)
    move, see = rng.dirichlet(np.ones(4), (2, 4)), rng.dirichlet(np.full(4, 0.5), 4)
    pay = rng.choice([-1.0, 1.0], (2, 4, 4))
    mixed = lambda table, name: (1 - amount) * table + amount / 4 if wrong == name else table
    move, see = mixed(move, "transitions"), mixed(see, "observations")
    return TabularPOMDP(np.full(4, 0.25), move, see, pay, horizon=5, reparameterization="gumbel_max")


def asked(seed: int, model: TabularPOMDP, episodes: int) -> tuple[Estimate, float]:
    """CF-PE of a policy that was not logged, and the truth."""
    world = hidden_world(seed)
    acts = np.random.default_rng(seed + 1000).dirichlet(np.ones(2), 4)
    log = collect(jax.random.key(seed), world, Table(np.full((4, 2), 0.5)), episodes)
    found = evaluate(KEY, model, TabularPolicy(acts), log, Exact(model), precision=Precision(scenarios=4))
    return found, float(exact_rewards(world, acts).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "amount", "episodes"), [("", 0.0, 1000), ("observations", 0.6, 1000), ("transitions", 0.3, 200)]
)
def test_thirty_hidden_worlds(wrong, amount, episodes):
    """Of wrong observations 23 were trusted, 8 of them off; of wrong transitions in small logs 10 of 53 were.

    Right models may be warned of in 1 of 30 (their level is 0.01; five or more happen once in 1e5 runs).
    """
    rows = [asked(seed, hidden_world(seed, wrong, amount), episodes) for seed in range(30)]
    trusted = [(row, truth) for row, truth in rows if row.verdict == "trust"]
    off = [row.value for row, truth in trusted if truth not in row.interval]
    if not wrong:
        assert len(trusted) >= 25
        assert len(off) <= 4  # of 30 intervals of 95 %: more happen once in 60 runs; the keys are fixed
    elif wrong == "observations":
        assert len(trusted) <= 3
        assert len(off) <= 1
    else:
        assert len(off) <= 2


@pytest.mark.slow
def test_fitted_values_of_a_store_are_right_or_not_trusted():
    """The regression was linear by default, and said 89.7 (86.6 to 92.9), trust, where 96.7 was right."""
    cases = (trust_tuning.case(0, index) for index in range(12, 400, 20))
    fixed = [case for case in cases if case.ends == "fixed" and case.rewards == "plain"][:4]
    for number, case in enumerate(fixed):
        key_log, key_truth = jax.random.split(jax.random.fold_in(KEY, number))
        found = FittedQ(resamples=50).estimate(KEY, case.target, make_log(key_log, case))
        truth, _ = truth_of(key_truth, case)
        assert found.verdict != "trust" or truth in found.interval
