"""The study of trust: its truths, its logs, its generators and its summary are right."""

import itertools
import json
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.evaluation.estimate import VERDICTS
from coulda.studies import trust_held_out, trust_tuning
from coulda.studies.thresholds import Thresholds, play
from coulda.studies.trust import ORDER, Answer, Trust, World, ask, draw, read_worlds, share, summary, write_worlds
from coulda.studies.trust_worlds import Case, Tables, exact_rewards, make_log, truth_of

GENERATORS = {"A": trust_tuning, "B": trust_held_out}


def first_case(generator: str, **wanted) -> Case:
    """The first case of a generator that is of the kind wanted."""
    cases = (GENERATORS[generator].case(0, index) for index in range(300))
    return next(case for case in cases if all(case.kind[name] == value for name, value in wanted.items()))


def brute_force(case: Case) -> float:
    """E[G] of the target by running through every history of states, observations and actions."""
    world = case.environment
    start, moves = np.exp(world.initial_logits), np.exp(world.transition_logits)
    sees, acts = np.exp(world.observation_logits[-1]), np.exp(case.target.logits)
    lengths = -np.diff(np.append(case.survival, 0.0)) if case.ends != "cut off" else np.eye(case.horizon)[-1]
    total = 0.0

    def visit(state: int, step: int, chance: float, paid: float, length: int) -> None:
        nonlocal total
        if step == length or world.terminals[state]:
            total += chance * paid
            return
        for seen, action in itertools.product(range(sees.shape[1]), range(acts.shape[1])):
            does = chance * float(sees[state, seen] * acts[seen, action])
            for after in np.flatnonzero(moves[action, state]) if does > 0 else ():
                reward = float(world.rewards[action, state, after])
                visit(int(after), step + 1, does * float(moves[action, state, after]), paid + reward, length)

    for length, (state, chance) in itertools.product(range(1, case.horizon + 1), enumerate(start)):
        if chance * lengths[length - 1] > 0:
            visit(state, 0, float(chance * lengths[length - 1]), 0.0, length)
    return total


def small(case: Case, horizon: int, terminal: bool) -> Case:
    """The case with a world of three states, short enough for every history to be visited."""
    rng = np.random.default_rng(3)
    ends = np.array([False, False, terminal])
    tables = Tables(
        np.array([0.6, 0.4, 0.0]),
        rng.dirichlet(np.ones(3), (2, 3)),
        rng.dirichlet(np.ones(2), 3),
        rng.normal(size=(2, 3, 3)),
        ends,
    )
    return replace(case, environment=tables.world(horizon, "gumbel_max"), survival=np.array([1.0, 0.7, 0.2])[:horizon])


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("ends", ["clock", "cut off"])
def test_truth_of_a_finite_world_is_the_sum_over_all_histories(ends, terminal):
    drawn = first_case("A", family="pomdp", episodes=1000, horizon=20)
    case = replace(small(drawn, 3, terminal), ends=ends)
    value, error = truth_of(jax.random.key(0), case)
    assert error == 0
    assert value == pytest.approx(brute_force(case), abs=1e-5)


def test_truth_of_a_bandit_is_its_integral():
    case = first_case("A", family="contextual")
    case = replace(case, environment=replace(case.environment, limit=jnp.asarray(jnp.inf)))
    x = np.linspace(-8, 8, 160_001)
    parts = np.stack([np.ones_like(x), x, x**2, x > 0, np.sin(3 * x)])
    logits = np.asarray(case.target.weight, float) @ np.stack([np.ones_like(x), x, np.abs(x) < 1])
    acts = np.exp(logits) / np.exp(logits).sum(0)
    paid = (acts * (np.asarray(case.environment.pay, float) @ parts)).sum(0)
    exact = np.sum(paid * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)) * (x[1] - x[0])
    value, error = truth_of(jax.random.key(0), case)
    # Fails for a right truth once in 16,000 keys; the key is fixed.
    assert abs(value - exact) < 4 * error
    assert error < 0.01
    assert abs(value + 0.05 - exact) > 4 * error, "a bias of 0.05 must be seen"


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_case_is_a_function_of_seed_and_index(generator):
    make = GENERATORS[generator].case
    for index in (0, 1, 2, 4, 6, 8, 10):
        one, again, other = make(0, index), make(0, index), make(1, index)
        assert one.kind == again.kind
        leaves = [jax.tree.leaves((case.environment, case.behavior, case.target)) for case in (one, again, other)]
        assert all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1], strict=True))
        same = [a.shape == b.shape and np.array_equal(a, b) for a, b in zip(leaves[0], leaves[2], strict=False)]
        assert not all(same)


@pytest.mark.parametrize("generator", GENERATORS)
def test_three_hundred_cases_are_of_all_kinds(generator):
    kinds = [GENERATORS[generator].case(0, index).kind for index in range(300)]
    counted = {name: Counter(kind[name] for kind in kinds) for name in kinds[0]}
    wanted = {
        "acts": {"uniform", "memoryless", "memory"},
        "support": {"near", "middle", "far"},
        "ends": {"fixed", "state", "clock", "state and clock", "cut off"},
        "flags": {"honest", "absent", "truncated"},
        "last_observation": {"logged", "repeated"},
        "probabilities": {"given", "fitted"},
        "rewards": {"plain", "normal", "student", "rare"},
        "hindsight": {True, False},
        "episodes": {100, 300, 1000, 3000, 10_000},
        "belief": {"none", "right", "endless", "initial", "rewards", "dynamics"}
        | {f"{what} {size}%" for what in ("transition", "observation") for size in (10, 30, 60)},
        "family": set(GENERATORS[generator].FAMILIES),
    }
    for name, values in wanted.items():
        assert {value: counted[name][value] for value in values if counted[name][value] < 3} == {}, name
    assert {1, 20, 100} <= set(counted["horizon"])
    finite = sum(kind["family"] in ("mdp", "pomdp") for kind in kinds)
    assert 100 < finite < 200


def test_a_clock_ends_episodes_as_often_as_it_says():
    case = first_case("A", family="mdp", ends="clock", episodes=1000)
    lengths = make_log(jax.random.key(0), replace(case, flags="honest", probabilities="given")).lengths
    reached = np.array([(lengths > step).mean() for step in range(case.horizon)])
    # Four standard errors at every step, at most 20 of them: fails once in 800 keys; the key is fixed.
    assert np.abs(reached - case.survival).max() < 4 * 0.5 / np.sqrt(1000)
    assert np.abs(reached - case.survival**2).max() > 4 * 0.5 / np.sqrt(1000), "another clock must be seen"


def test_logs_are_as_a_table_without_flags_or_last_row_would_be():
    case = first_case("A", family="mdp", ends="state", episodes=1000)
    case = replace(case, probabilities="given", last_observation="logged", flags="honest", rewards="plain")
    key = jax.random.key(0)
    honest = make_log(key, case)
    assert honest.terminated.any()
    ended_early = honest.lengths < case.horizon
    assert honest.terminated[ended_early].all()
    assert make_log(key, replace(case, flags="absent")).terminated.all()
    assert not make_log(key, replace(case, flags="truncated")).terminated.any()
    without = make_log(key, replace(case, last_observation="repeated"))
    last = np.cumsum(without.lengths + 1) - 1
    assert without.schema.last_observation == "repeated"
    assert (without.observation[last] == without.observation[last - 1]).all()
    assert (np.delete(without.observation, last) == np.delete(honest.observation, last)).all()
    assert (honest.observation[last] != honest.observation[last - 1]).any()


def test_noise_of_a_limited_world_is_inferred_and_no_episode_is_over_at_once():
    world = first_case("A", family="linear", ends="state").environment
    u = 3 * jax.random.normal(jax.random.key(0), (2000, 2))
    states = jax.vmap(world.initial)(u)
    assert not jax.vmap(world.terminal)(states).any()
    assert (jnp.abs(world.initial_mean[0] + world.initial_scale[0] * u[:, 0]) > world.limit).any()
    np.testing.assert_allclose(jax.vmap(world.initial_posterior)(states, u)[:, 1], u[:, 1], atol=1e-3)
    near = jnp.abs(u[:, 0]) < 3
    np.testing.assert_allclose(jax.vmap(world.initial_posterior)(states, u)[near, 0], u[near, 0], atol=1e-2)


def answer(method: str, value: float | None, half: float, verdict: str, status: str = "ok") -> Answer:
    limits = (None, None) if value is None else (value - half, value + half)
    return Answer(method, value, *limits, status, verdict, ())


def world(index: int, *answers: Answer) -> World:
    return World("A", 0, index, {"family": "mdp"}, 1.0, 0.0, answers, "", 1.0)


def test_summary_of_rows_made_by_hand():
    worlds = [
        world(0, answer("IS", 1.0, 0.1, "trust"), answer("FQE", 1.05, 0.1, "trust")),
        world(1, answer("IS", 1.12, 0.1, "trust"), answer("FQE", 1.3, 0.1, "trust")),
        world(2, answer("IS", 1.18, 0.1, "caution"), answer("FQE", 1.05, 0.1, "caution")),
        world(3, answer("IS", None, 0.0, "do not trust", "no support"), answer("FQE", 1.0000001, 0.0, "trust")),
    ]
    found = summary(worlds)
    weights, fitted = found["estimators"]["IS"], found["estimators"]["FQE"]
    assert weights["verdicts"] == {"trust": 0.5, "caution": 0.25, "do not trust": 0.25}
    assert weights["statuses"] == {"no support": 1, "ok": 3}
    assert [weights["coverage"][verdict]["share"] for verdict in VERDICTS] == [0.5, 0.0, None]
    # 0.12 is 2.35 standard errors of 0.1 / 1.96; 0.3 is nearly six, and three half-widths.
    assert weights["trusted and off by three standard errors"]["share"] == 0
    assert fitted["trusted and off by three standard errors"]["share"] == pytest.approx(1 / 3)
    assert fitted["off by three standard errors and trusted"]["share"] == 0.25
    assert fitted["trusted and off by two half-widths"]["share"] == pytest.approx(1 / 3)
    assert fitted["coverage"]["trust"]["of"] == 3, "an exact answer without a width is right"
    assert fitted["right that are trusted"]["share"] == pytest.approx(2 / 3)
    assert found["estimators"]["all"]["right that are trusted"]["share"] == 0.75
    assert [(row["world"], row["method"]) for row in found["wrong and trusted"]] == [(1, "FQE")]
    assert found["bar"] == {
        "coverage given trust": {"IS": False, "FQE": False, "all": False},
        "far off and trusted": False,
        "right and trusted": True,
    }


def test_the_bar_is_met_by_answers_that_are_right():
    found = summary([world(index, answer("WIS", 1.0, 0.1, "trust")) for index in range(20)])
    assert found["bar"] == {
        "coverage given trust": {"WIS": True, "all": True},
        "far off and trusted": True,
        "right and trusted": True,
    }


def test_shares_have_intervals():
    # Clopper and Pearson's for 8 of 10: 0.444 to 0.975.
    found = share([True] * 8 + [False] * 2)
    assert (found["share"], found["of"]) == (0.8, 10)
    assert (found["low"], found["high"]) == (pytest.approx(0.4439, abs=1e-4), pytest.approx(0.9748, abs=1e-4))
    assert share([])["share"] is None


def test_what_was_asked_is_not_asked_again(tmp_path):
    pytest.importorskip("matplotlib")
    asked = [world(index, answer("WIS", 1.0, 0.1, "trust")) for index in range(2)]
    write_worlds(tmp_path / "A.jsonl", asked)
    assert read_worlds(tmp_path / "A.jsonl") == asked
    found = Trust(worlds=2, out=tmp_path).run()
    assert found["worlds"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"A.jsonl", "A.json", "A.md", "A.svg"}
    row = (tmp_path / "A.md").read_text().splitlines()[2]
    assert row.startswith("| WIS | 2 | 100% | 0% | 0% | 100.0 % of 2 | – | – | 0.0 % of 2 |")
    text = draw(found)
    assert text == (tmp_path / "A.svg").read_text()
    assert "WIS" in text
    assert read_worlds(tmp_path / "none.jsonl") == []


def test_worlds_that_are_played_in_numpy_return_what_their_tables_say():
    case = first_case("A", family="pomdp", horizon=10)
    pi = np.exp(np.asarray(case.target.logits, float))
    acts = np.broadcast_to(pi, (pi.shape[1] + 1, *pi.shape))
    played = play(np.random.default_rng(0), case.environment, acts, 20_000).reward.sum(1)
    # Four standard errors: fails once in 16,000 seeds; the seed is fixed.
    limit = 4 * played.std() / np.sqrt(len(played))
    assert abs(played.mean() - exact_rewards(case.environment, pi).sum()) < limit
    other = exact_rewards(case.environment, pi[:, ::-1]).sum()
    assert abs(played.mean() - other) > limit, "another policy must be seen"


@pytest.mark.slow
def test_thresholds_are_measured_and_written(tmp_path):
    found = Thresholds(worlds=20, out=tmp_path / "powers.json").run()
    told = json.loads((tmp_path / "powers.json").read_text())
    assert told["models"] == found["models"]
    answers = found["intervals of what is trusted"]
    assert answers["both"]["share"] >= max(answers["bca"]["share"], answers["student"]["share"])
    assert sum(band["of"] for band in found["spread"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_world_of_each_family_can_be_asked(generator):
    families = GENERATORS[generator].FAMILIES
    for family in set(families):
        found = ask(generator, 0, families.index(family))
        assert found.refused == ""
        assert found == ask(generator, 0, families.index(family)).__replace__(seconds=found.seconds)
        assert {one.method for one in found.answers} <= set(ORDER)
        assert np.isfinite(found.truth)
