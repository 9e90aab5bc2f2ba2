"""MB-PE, CF-PE(t) and the table: laws, exact values, pairing, and what the verdict says of a wrong model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import collect, from_arrays, open_log, to_arrays, write_log
from coulda.errors import CouldaError
from coulda.evaluation import (
    ImportanceSampling,
    OnPolicy,
    OnScenarios,
    Precision,
    compare,
    evaluate,
    model_free,
    on_policy,
)
from coulda.evaluation.intervals import student
from coulda.evaluation.model_checks import replay
from coulda.evaluation.reading import padded_batches
from coulda.executors import InProcess
from coulda.hindsight import Exact, Prior
from coulda.policies import UniformPolicy
from coulda.pomdp import rollout
from coulda.pomdp.rollout import run_actions
from tests.test_evaluation_simulation import endless
from tests.triage import BEHAVIOR, INITIAL, REWARD, TARGET, TREAT, WAIT, Stubborn, exact_value, triage

KEY = jax.random.key(11)
MODEL = triage()
EPISODES = 1000  # in every log, here and in test_evaluation_trust, so that they share programs


@pytest.fixture(scope="module")
def log():
    return collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)


@pytest.fixture(scope="module")
def table(log):
    policies = {"target": TARGET, "behavior": BEHAVIOR, "stubborn": Stubborn()}
    return compare(KEY, log, policies, [*model_free(log), OnScenarios(MODEL, Exact(MODEL)), OnPolicy(MODEL, EPISODES)])


def test_no_hindsight_is_the_model_based_estimate(log):
    """CF-PE(0) = MB-PE, bit for bit, for the same key."""
    nothing = evaluate(KEY, MODEL, TARGET, log, Exact(MODEL).given(steps=0))
    prior = evaluate(KEY, MODEL, TARGET, log, Prior(MODEL))
    np.testing.assert_array_equal(nothing.terms, prior.terms)
    assert nothing.method == prior.method == "MB-PE"


def test_the_behavior_on_its_own_scenarios_is_the_log(log):
    """Hindsight with the behavior's action noise replays every episode, so CF-PE of μ is the logged mean."""
    estimate = evaluate(KEY, MODEL, BEHAVIOR, log, Exact(MODEL, BEHAVIOR))
    np.testing.assert_allclose(estimate.terms, log.episode_returns, atol=1e-5)
    assert estimate.method == "CF-PE"


def test_the_log_is_worked_on_in_the_pieces_that_it_has(tmp_path, log):
    """Shards are not filled up to more than the largest of them, and change nothing."""
    write_log(tmp_path / "log", log.batches(400))
    stored = open_log(tmp_path / "log")
    sizes = [(episode.reward.shape[0], count) for (episode, _), count in padded_batches(stored, MODEL.horizon)]
    assert sizes == [(400, 400), (400, 400), (400, 200)]
    of = lambda log: evaluate(KEY, MODEL, TARGET, log, Exact(MODEL)).terms
    np.testing.assert_array_equal(of(stored), of(log))


def test_progress_counts_every_episode_once(log):
    told = []
    evaluate(KEY, MODEL, TARGET, log, Exact(MODEL), advance=told.append)
    assert sum(told) == len(log)


def test_all_estimates_find_the_truth(table):
    for name, policy in (("target", TARGET), ("behavior", BEHAVIOR)):
        for method, estimate in table.estimates[name].items():
            assert estimate.interval is not None
            # 20 intervals of 95 %, so single misses are expected; twice the width is 3.9 standard errors (1e-4 each).
            assert abs(estimate.value - exact_value(policy)) < estimate.interval.width, (name, method)
            assert estimate.verdict in ("trust", "caution"), (method, estimate.reasons)
    assert set(table.estimates["target"]) == {
        "IS", "WIS", "PDIS", "WPDIS", "CIS", "DR", "WDR", "FQE", "MB-PE", "CF-PE", "on-policy",
    }  # fmt: skip


def test_relative_error_is_the_papers(table):
    estimate, truth = table.estimates["target"]["CF-PE"].value, table.truth["target"]
    assert table.error("target", "CF-PE") == pytest.approx(abs(estimate - truth) / abs(truth))
    assert table.error("target", "on-policy") == 0


def test_a_policy_does_not_differ_from_itself(log):
    table = compare(KEY, log, {"a": TARGET, "b": TARGET}, [ImportanceSampling(), OnScenarios(MODEL, Exact(MODEL))])
    for method in ("CF-PE", "MB-PE", "WIS"):
        difference = table.difference(method, "a", "b")
        assert difference.value == 0
        assert difference.interval.width == 0


def test_pairing_narrows_the_difference(table):
    truth = exact_value(TARGET) - exact_value(BEHAVIOR)
    difference = table.difference("CF-PE", "target", "behavior")
    assert abs(difference.value - truth) < difference.interval.width
    assert difference.variance_ratio > 2
    a, b = (table.estimates[name]["CF-PE"].terms for name in ("target", "behavior"))
    unpaired = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a)) * 2 * 1.9623
    assert difference.interval.width == pytest.approx(unpaired / np.sqrt(difference.variance_ratio), rel=1e-3)


def test_flips_are_the_episodes_that_cross(table, log):
    flips = table.flips("target", "CF-PE", threshold=0.0)
    would = table.estimates["target"]["CF-PE"].terms
    expected = {i for i in range(len(log)) if (log.episode_returns[i] >= 0) != (would[i] >= 0)}
    assert {i for i, _, _ in flips} == expected
    assert len(expected) > 10
    sizes = [abs(after - before) for _, before, after in flips]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_more_scenarios_narrow_the_part_that_they_can(log):
    one, many = (evaluate(KEY, MODEL, TARGET, log, Exact(MODEL), precision=Precision(scenarios=m)) for m in (1, 8))
    assert many.interval.width < one.interval.width
    between, within = (many.details[f"variance {part}"] for part in ("between episodes", "within an episode"))
    assert many.terms.var(ddof=1) == pytest.approx(between + within / 8, rel=1e-6)
    assert between > 0
    assert within > 0


def test_a_repeated_last_observation_is_no_evidence(log):
    """An array log lacks the last observation. Taken as evidence the repeated one would be impossible."""
    arrays = from_arrays(**to_arrays(log), observation_space=MODEL.observation_space, action_space=MODEL.action_space)
    estimate = evaluate(KEY, MODEL, TARGET, arrays, Exact(MODEL))
    found = {d.name: d for d in estimate.diagnostics}
    assert found["replay"].value == 1
    assert estimate.verdict == "caution"
    assert "lacks the observation" in estimate.reasons


@pytest.mark.slow
def test_a_value_that_unseen_ends_move_is_not_blamed_on_the_noise(log):
    arrays = from_arrays(**to_arrays(log), observation_space=MODEL.observation_space, action_space=MODEL.action_space)
    rows = compare(KEY, arrays, {"target": TARGET}, [OnScenarios(MODEL, Exact(MODEL))]).estimates["target"]
    moved = next(d for d in rows["CF-PE"].diagnostics if d.name == "hindsight")
    assert moved.verdict != "trust"
    assert "does not know how episodes ended" in moved.sentence
    assert "hindsight" not in {d.name for d in rows["MB-PE"].diagnostics}
    assert {"simulation", "one step ahead"} & {d.name for d in rows["MB-PE"].diagnostics}
    assert rows["MB-PE"].verdict == "trust"


def test_a_model_says_what_it_predicts_for_the_log_and_is_known_no_better(table, log):
    for method in ("MB-PE", "CF-PE"):
        row = table.estimates["target"][method]
        itself = next(d for d in row.diagnostics if d.name == "log itself")
        assert itself.verdict == "trust"
        assert f"for the log itself, whose mean is {log.episode_returns.mean():.4g}" in itself.sentence
        halves = [student(terms, 0.95).width / 2 for terms in (row.terms, log.episode_returns)]
        assert row.interval.width / 2 == pytest.approx(np.hypot(*halves), rel=1e-4)


def wrong_model() -> TabularPOMDP:
    """Believes that what was treated cannot get worse; the logged episodes say otherwise."""
    treat = np.array([[0.4, 0.05, 0.5, 0.05], [0.7, 0.0, 0.3, 0.0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    return TabularPOMDP(
        INITIAL, np.stack([WAIT, treat]), np.eye(4), REWARD,
        horizon=5, reparameterization="gumbel_max", terminal=[False, False, True, True],
    )  # fmt: skip


def test_scenarios_that_do_not_replay_the_log_are_reported(log):
    wrong = wrong_model()
    estimate = evaluate(KEY, wrong, TARGET, log, Exact(wrong))
    replay = next(d for d in estimate.diagnostics if d.name == "replay")
    assert replay.value < 0.99
    assert estimate.verdict in ("caution", "do not trust")
    assert "reproduce" in replay.sentence
    right = evaluate(KEY, MODEL, TARGET, log, Exact(MODEL))
    assert next(d for d in right.diagnostics if d.name == "replay").value == 1
    assert right.verdict == "trust"


@pytest.mark.slow
def test_partially_observed_worlds():
    """Observations tell ill from worse with 80 %; hindsight still is unbiased (Corollary 1)."""
    blurred = np.array([[0.8, 0.2, 0, 0], [0.2, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    world = triage(observation=blurred)
    log = collect(jax.random.key(2), world, BEHAVIOR, EPISODES)
    truth = on_policy(jax.random.key(3), world, TARGET, EPISODES)
    found = evaluate(KEY, world, TARGET, log, Exact(world))
    # The standard error of the difference is 0.044; four of them, false failure 6e-5.
    assert abs(found.value - truth.value) < 0.18
    # The twin: scenarios of a wrong prior are worth 0.23 less.
    biased = eqx.tree_at(lambda m: m.initial_logits, world, jnp.log(jnp.array([0.02, 0.98, 1e-30, 1e-30])))
    assert evaluate(KEY, biased, TARGET, log, Prior(biased)).value < truth.value - 0.15


def test_terms_do_not_depend_on_how_the_log_is_cut(log):
    whole = evaluate(KEY, MODEL, TARGET, log, Exact(MODEL))
    pieces = log.batches

    class Cut(type(log)):
        def batches(self, size=4096):
            return pieces(min(size, 400))

    cut = Cut(*(getattr(log, name) for name in log.__dataclass_fields__))
    np.testing.assert_array_equal(evaluate(KEY, MODEL, TARGET, cut, Exact(MODEL)).terms, whole.terms)


def verdicts(estimate) -> dict[str, str]:
    return {d.name: d.verdict for d in estimate.diagnostics}


def test_a_model_that_believes_in_other_noise_is_found_out(log):
    """First states of the model are mostly bad ones; hindsight corrects it, and says so of both estimates."""
    biased = eqx.tree_at(lambda m: m.initial_logits, MODEL, jnp.log(jnp.array([0.1, 0.9, 1e-30, 1e-30])))
    # Eight scenarios per episode: hindsight then moves the value by seven standard errors.
    precision = Precision(scenarios=8)
    methods = [OnScenarios(biased, Exact(biased))]
    table = compare(KEY, log, {"target": TARGET}, methods, precision=precision).estimates["target"]
    for method in ("MB-PE", "CF-PE"):
        assert verdicts(table[method])["mismatch"] == "do not trust"
        assert verdicts(table[method])["hindsight"] != "trust"
    assert abs(table["CF-PE"].value - exact_value(TARGET)) < abs(table["MB-PE"].value - exact_value(TARGET))
    # The twin: the right model.
    right = compare(KEY, log, {"target": TARGET}, [OnScenarios(MODEL, Exact(MODEL))]).estimates["target"]
    assert right["MB-PE"].verdict == right["CF-PE"].verdict == "trust"


def test_thin_support_of_an_estimated_model(log):
    def support(some):
        table = compare(KEY, log, {"target": TARGET}, [OnScenarios(MODEL, Exact(MODEL), estimated_from=some)])
        return next(d for d in table.estimates["target"]["MB-PE"].diagnostics if d.name == "support")

    assert (support(log).value, support(log).verdict) == (1.0, "trust")
    assert support(log[:4]).verdict == "do not trust"


class Picky(TabularPOMDP):
    """Calls a scenario malformed where its first Gumbel is large."""

    def malformed(self, scenario):
        return scenario.initial[0] > 1.0


@pytest.mark.slow
def test_malformed_scenarios_are_counted(log):
    """The model itself says which are: their share is the Gumbel's tail, 1 - exp(-exp(-1))."""
    tables = INITIAL, np.stack([WAIT, TREAT]), np.eye(4), REWARD
    terminal = [False, False, True, True]
    picky = Picky(*tables, horizon=5, reparameterization="gumbel_max", terminal=terminal)
    estimate = evaluate(KEY, picky, TARGET, log, Prior(picky))
    found = next(d for d in estimate.diagnostics if d.name == "malformed")
    # 1000 draws of probability 0.308: four standard errors are 0.058 (6e-5).
    assert abs(found.value - (1 - np.exp(-np.exp(-1)))) < 0.058
    assert found.verdict == "do not trust"


def test_an_executor_makes_the_same_table_and_no_other(log):
    """Its work is built from the same objects, or is refused with the name of what differs."""
    method, policies = OnScenarios(MODEL, Exact(MODEL)), {"target": TARGET}
    expected = compare(KEY, log, policies, [method]).estimates["target"]
    with InProcess(method.work(log, policies, Precision())) as executor:
        found = compare(KEY, log, policies, [method], executor=executor).estimates["target"]
        for name in expected:
            np.testing.assert_array_equal(found[name].terms, expected[name].terms)
        others = {
            "scenarios per episode": (log, policies, method, Precision(scenarios=2)),
            "policies": (log, {"target": BEHAVIOR}, method, Precision()),
            "log": (log[:-1], policies, method, Precision()),
            "sources": (log, policies, OnScenarios(MODEL, Exact(MODEL).given(2)), Precision()),
            "model and sources": (log, policies, OnScenarios(wrong_model(), Exact(wrong_model())), Precision()),
        }
        for what, (logged, named, other, precision) in others.items():
            with pytest.raises(CouldaError, match=f"not built from the same {what} as this call"):
                compare(KEY, logged, named, [other], precision=precision, executor=executor)


def test_where_observation_noise_is_fresh_what_was_logged_must_be_possible():
    model = tiger(horizon=3, reparameterization="gumbel_max")
    scenario, other = map(jax.jit(model.scenario_prior.sample), jax.random.split(jax.random.key(0)))
    episode = jax.jit(lambda u: rollout(model, UniformPolicy(3), u).episode)(scenario)
    masked = eqx.tree_at(lambda s: s.observation, scenario, other.observation)
    made = lambda u: run_actions(model, u, episode.action)
    agreed = eqx.filter_jit(lambda u, exactly: replay(model, made(u), episode, jnp.int32(9), exactly=exactly))
    assert agreed(scenario, True).agrees == agreed(scenario, True).steps
    assert agreed(masked, False).agrees == agreed(masked, False).steps  # the same states, seen with other noise
    assert agreed(masked, True).agrees < agreed(masked, True).steps


def test_what_is_counted_in_small_units_must_come_out_as_logged_too():
    """Half of each number is another number, be they of the size of 1 or of 10⁻⁶; float32's rounding is none."""
    model = tiger(horizon=3, reparameterization="gumbel_max")
    trajectory = jax.jit(lambda key: rollout(model, UniformPolicy(3), model.scenario_prior.sample(key)))(KEY)
    logged = np.float32([[0.0, 3.0], [-0.2, np.nan], [0.7, 0.0], [0.1, 2.0]])

    @eqx.filter_jit
    def agreed(unit, times):
        seen, paid = unit * logged, unit * trajectory.episode.reward
        episode = eqx.tree_at(lambda e: (e.observation, e.reward), trajectory.episode, (seen, paid))
        made = trajectory.state, times * seen, times * paid
        found = replay(model, made, episode, jnp.int32(9), exactly=True)
        return found.agrees / found.steps

    for unit in np.float32([1000.0, 1.0, 1e-6]):
        assert agreed(unit, np.float32(1 + 1e-5)) == 1
        assert agreed(unit, np.float32(0.5)) == 0


def test_beside_something_large_what_is_small_must_come_out_as_logged_too():
    """A sentinel among readings: only what follows it at once may be its rounding; the twin is off everywhere else."""
    model = tiger(horizon=3, reparameterization="gumbel_max")
    trajectory = jax.jit(lambda key: rollout(model, UniformPolicy(3), model.scenario_prior.sample(key)))(KEY)
    logged = np.float32([[0.5], [1e6], [0.5], [0.25]])
    episode = eqx.tree_at(lambda e: e.observation, trajectory.episode, jnp.asarray(logged))

    @eqx.filter_jit
    def agreed(seen):
        made = trajectory.state, seen, episode.reward
        return replay(model, made, episode, jnp.int32(9), exactly=True).agrees

    assert agreed(logged) == 4
    assert agreed(logged + np.float32([[0.0], [0.0], [1.0], [0.0]])) == 4  # 1 of 10⁶
    assert agreed(logged + np.float32([[1.0], [0.0], [0.0], [1.0]])) == 2
    assert agreed(np.full_like(logged, np.inf)) == 0


def test_a_model_that_goes_on_where_the_log_ended_is_not_trusted():
    """Nothing that is seen or paid tells of the end, so that a model without one explains every step of the log."""

    def blind(transition):
        cost, unseen = REWARD * (np.abs(REWARD) < 0.5), np.ones((4, 1))
        ends = [False, False, True, True]
        return TabularPOMDP(
            INITIAL, transition, unseen, cost, horizon=5, reparameterization="gumbel_max", terminal=ends
        )

    right, wrong = blind(np.stack([WAIT, TREAT])), blind(endless())
    log = collect(jax.random.key(3), right, UniformPolicy(2), EPISODES)
    for model, verdict in ((right, "trust"), (wrong, "do not trust")):
        rows = compare(KEY, log, {"uniform": UniformPolicy(2)}, [OnScenarios(model, Exact(model))]).estimates["uniform"]
        for row in rows.values():
            (ends,) = [d for d in row.diagnostics if d.name == "ends"]
            assert (ends.verdict, ends.value == 1) == (verdict, verdict == "trust")
