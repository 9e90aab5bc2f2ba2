"""Which decisions mattered: the exact dynamic program, its guarantees, and the laws that every explanation obeys."""

import itertools
from dataclasses import replace
from functools import cache, partial

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.errors import CouldaError
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.intervals import Interval
from coulda.explanations import LogExplanation, Question, credit_log, explain, explain_log
from coulda.mechanisms import gumbel_coupling, inverse_cdf_coupling
from coulda.policies import UniformPolicy
from tests.explained_worlds import grid, log_of, observed, synthetic

KEY = jax.random.key(0)
COUPLINGS = {"gumbel_max": gumbel_coupling, "inverse_cdf": inverse_cdf_coupling}


@cache
def small():
    """Five episodes of one of the published worlds, every k ≤ 4, with guarantees."""
    model, log = synthetic(1, 1.0, 5)
    return explain_log(KEY, model, log, question=Question(changes=4))


# ---------------------------------------------------------------- published numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "outcomes", "improvements", "digits"),
    [
        # To one digit more the improvements are 2.154, 3.195 and 3.375 %.
        (0.0, (342.82, 350.03, 353.50, 354.09), (2.15, 3.20, 3.38), 6e-3),
        (1.0, (215.50, 225.56, 232.98, 237.57), (4.867, 8.464, 10.735), 6e-4),
    ],
)
def test_the_published_synthetic_worlds(alpha, outcomes, improvements, digits):
    """500 episodes, every k ≤ 10, exact."""
    found = []
    for seed in range(1, 11):
        model, log = synthetic(seed, alpha, 50)
        found.append(explain_log(KEY, model, log, question=Question(changes=10), guarantees=False).answers.value)
    value = np.concatenate(found)
    np.testing.assert_allclose(value.mean(0)[[0, 2, 5, 10]], outcomes, atol=6e-3)
    gains = 100 * (value / value[:, :1] - 1).mean(0)
    np.testing.assert_allclose(gains[[2, 5, 10]], improvements, atol=digits)


def test_the_published_grid_and_its_bounds():
    model, episode = grid()
    answer = explain(KEY, model, episode, question=Question(changes=10, target=100))
    assert answer.logged == -797
    assert answer.curve[-1].value == pytest.approx(438.0, abs=0.05)
    assert answer.guaranteed[-1] == pytest.approx(426.9, abs=0.05)
    assert answer.best_case[-1] == pytest.approx(462.5, abs=0.05)
    assert answer.least == 4
    assert answer.certain
    assert answer.optimal
    assert "Whatever the mechanism, 426.9 could have been had" in answer.sentence
    assert [change.step for change in answer.changes] == [0, 1, 3, 4, 5]
    assert answer.courses[-1].state.index.tolist()[:7] == [0, 4, 8, 12, 13, 14, 15]
    assert answer.policy.shape == (10, 16, 11)


# ---------------------------------------------------------------- brute force


def tiny(seed: int, zeros: bool):
    """A world of two states, three actions and three steps, and one episode in it."""
    rng = np.random.default_rng(seed)
    transition = rng.dirichlet([1, 1], (3, 2))
    if zeros:
        transition[rng.random((3, 2)) < 0.3] = [1, 0]
    reward = rng.normal(size=(3, 2, 2))
    states, actions = [int(rng.integers(2))], []
    for _ in range(3):
        actions.append(int(rng.integers(3)))
        states.append(int(rng.choice(2, p=transition[actions[-1], states[-1]])))
    return transition, reward, np.array(states), np.array(actions)


def tiny_log(transition, reward, states, actions, name="gumbel_max"):
    """The model, and a log of the episode."""
    model = observed(transition, reward, len(actions), name)
    pays = reward[actions, states[:-1], states[1:]].astype(np.float32)
    return model, log_of(model, *(x[None].astype(np.int32) for x in (states, actions)), pays[None])


@partial(jax.jit, static_argnums=3)
def _rows_of(transition, states, actions, name):
    def step(state, action, arrived):
        logged = transition[action, state]
        return jax.vmap(jax.vmap(lambda other: COUPLINGS[name](logged, other).given(arrived)))(transition)

    return jax.vmap(step)(states[:-1], actions, states[1:])


def rows_of(transition, states, actions, name="gumbel_max"):
    """P(s' | s, a) on the noise of each step, `[T, A, S, S]`."""
    return np.asarray(_rows_of(jnp.asarray(transition, jnp.float32), states, actions, name), float)


def every_policy(first):
    """All ways to decide by the history of states: of each history of 3 steps, the actions `[P, 4, 3]`."""
    histories = [(first,), *[(first, s) for s in range(2)], *itertools.product([first], range(2), range(2))]
    table = np.array(list(itertools.product(range(3), repeat=len(histories))))
    place = {history: i for i, history in enumerate(histories)}
    paths = list(itertools.product([first], range(2), range(2)))
    return np.stack([table[:, [place[path[: t + 1]] for t in range(3)]] for path in paths], 1), paths


def brute_force(rows, reward, states, actions, discount=1.0, cost=0.0):
    """The best return of any history policy that changes at most k decisions on every possible path, k = 0 … 3."""
    chosen, paths = every_policy(states[0])
    total, most = np.zeros(len(chosen)), np.zeros(len(chosen), int)
    for number, path in enumerate(paths):
        acts, chance = chosen[:, number], np.ones(len(chosen))
        for t in range(3):
            row = rows[t][acts[:, t], path[t]]
            # What is paid at step t is shared by all paths that agree up to it.
            paid = discount**t * (row * reward[acts[:, t], path[t]]).sum(1) - cost * (acts[:, t] != actions[t])
            total += chance * paid / 2 ** (2 - t)
            chance = chance * row[:, path[t + 1]] if t < 2 else chance
        most = np.where(chance > 0, np.maximum(most, (acts != actions).sum(1)), most)
    return [total[most <= k].max() for k in range(4)]


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.integers(0, 2**31), st.booleans(), st.sampled_from(list(COUPLINGS)))
def test_the_program_equals_brute_force_over_all_policies(seed, zeros, name):
    transition, reward, states, actions = tiny(seed, zeros)
    expected = brute_force(rows_of(transition, states, actions, name), reward, states, actions)
    model, log = tiny_log(transition, reward, states, actions, name)
    found = explain_log(KEY, model, log, question=Question(changes=3), guarantees=False)
    np.testing.assert_allclose(found.answers.value[0], expected, atol=2e-5)
    # The twin: what would happen on fresh noise is something else.
    fresh = brute_force(np.broadcast_to(transition, (3, *transition.shape)), reward, states, actions)
    assert zeros or not np.allclose(found.answers.value[0], fresh, atol=1e-3)


@hypothesis.settings(max_examples=6)
@hypothesis.given(st.integers(0, 2**31), st.sampled_from([0.3, 0.9]), st.sampled_from([0.0, 0.1]))
def test_discounted_it_equals_brute_force_too(seed, discount, cost):
    """Costs are in units of the return, and so not discounted; their expectation is what is paid for on each path."""
    transition, reward, states, actions = tiny(seed, zeros=False)
    rows = rows_of(transition, states, actions)
    expected = brute_force(rows, reward, states, actions, discount, cost)
    model, log = tiny_log(transition, reward, states, actions)
    found = explain_log(KEY, model, log, question=Question(3, cost=cost, discount=discount))
    np.testing.assert_allclose(found.answers.value[0], expected, atol=2e-5)
    assert found.answers.value[0, 0] == pytest.approx(log.discounted_returns(discount)[0])
    assert (found.answers.worst <= found.answers.value + 1e-5).all()
    assert (found.answers.value <= found.answers.best + 1e-5).all()
    # One change, step by step, is credit's too.
    worth = credit_log(KEY, model, log, UniformPolicy(3), discount=discount)[0]
    others = [np.delete(worth.gain[t], actions[t]).max() for t in range(3)]
    np.testing.assert_allclose(found.answers.single[0] + cost, others, atol=2e-5)
    # The twin: undiscounted, it is another number.
    assert not np.allclose(found.answers.value[0], brute_force(rows, reward, states, actions), atol=1e-3)


def test_the_worst_is_the_worst_of_all_mechanisms():
    """Two steps of two states: all extreme SCMs are enumerated, and every policy is held against each."""
    for seed in range(8):
        transition, reward, states, actions = (x[..., :2, :] if x.ndim > 2 else x for x in tiny(seed, False))
        transition, reward = transition[:2], reward[:2]
        states, actions = states[:3], actions[:2] % 2
        extremes = [_extremes(transition, states[t], actions[t], states[t + 1]) for t in range(2)]
        first = list(itertools.product(*extremes[0][states[0]]))  # a row for each action
        second = list(itertools.product(*extremes[1][0], *extremes[1][1]))
        best_worst, best_best = -np.inf, -np.inf
        for a, b0, b1 in itertools.product(range(2), repeat=3):
            values = []
            for rows in first:
                for later in second:
                    then = [later[b0] @ reward[b0, 0], later[2 + b1] @ reward[b1, 1]]
                    values.append(rows[a] @ (reward[a, states[0]] + then))
            best_worst, best_best = max(best_worst, min(values)), max(best_best, max(values))
        model, log = tiny_log(transition, reward, states, actions)
        found = explain_log(KEY, model, log, question=Question(changes=2)).answers
        np.testing.assert_allclose([found.worst[0, 2], found.best[0, 2]], [best_worst, best_best], atol=2e-5)


def _extremes(transition, state, action, arrived):
    """By state, by action: the two extreme rows that a compatible SCM may have."""
    chance, found = transition[action, state, arrived], []
    for s in range(2):
        found.append([])
        for a in range(2):
            if (s, a) == (state, action):
                rows = [np.eye(2)[arrived]]
            else:
                high = np.minimum(1, transition[a, s] / chance)
                rows = [np.array([high[0], 1 - high[0]]), np.array([1 - high[1], high[1]])]
            found[-1].append(rows)
    return found


# ---------------------------------------------------------------- laws, each with a twin that fails


def log_is_first(found: LogExplanation):
    assert (found.answers.value[:, 0] == found.answers.logged).all()
    assert not found.answers.changed[:, 0].any()


def monotone(found: LogExplanation):
    assert (np.diff(found.answers.value, axis=1) >= 0).all()


def never_below_the_log(found: LogExplanation):
    assert (found.answers.value >= found.answers.logged[:, None]).all()


def at_most_k(found: LogExplanation):
    assert (found.answers.changed.sum(-1) <= np.arange(found.answers.value.shape[1])).all()


def within_the_bounds(found: LogExplanation):
    assert (found.answers.worst <= found.answers.value + 1e-3).all()
    assert (found.answers.value <= found.answers.best + 1e-3).all()


def twin(**fields):
    return lambda found: replace(found, answers=found.answers._replace(**fields))


LAWS = {
    log_is_first: lambda found: twin(value=found.answers.value + 1e-13 * found.answers.value)(found),
    monotone: lambda found: twin(value=found.answers.value[:, ::-1])(found),
    never_below_the_log: lambda found: twin(value=found.answers.value - 1e-6)(found),
    at_most_k: lambda found: twin(changed=found.answers.changed[:, ::-1])(found),
    within_the_bounds: lambda found: twin(worst=found.answers.best, best=found.answers.worst)(found),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law):
    found = small()
    law(found)
    with pytest.raises(AssertionError):
        law(LAWS[law](found))


def test_free_changes_are_the_best_policy_on_the_same_noise():
    """k = T without a cost: backward induction over states alone. With a cost it is not."""
    transition, reward, states, actions = tiny(4, False)
    value = np.zeros(2)
    for row in rows_of(transition, states, actions)[::-1]:
        value = np.einsum("ask,ask->as", row, reward + value).max(0)
    model, log = tiny_log(transition, reward, states, actions)
    free, dear = (explain_log(KEY, model, log, question=Question(3, cost=cost), guarantees=False) for cost in (0, 0.1))
    assert free.answers.value[0, 3] == pytest.approx(value[states[0]], abs=1e-5)
    assert dear.answers.value[0, 3] < free.answers.value[0, 3] - 0.05


def test_what_is_frozen_or_not_allowed_stays():
    """Without the restriction both are used: the twin."""
    model, log = synthetic(1, 1.0, 5)
    steps, actions = (0, 3, 18), (1, 4)
    asked = Question(4, frozen=steps, actions=actions)
    found = explain_log(KEY, model, log, question=asked, guarantees=True).answers
    assert not found.changed[:, :, steps].any()
    assert np.isin(found.action[found.changed], actions).all()
    free = small().answers
    assert free.changed[:, :, steps].any()
    assert not np.isin(free.action[free.changed], actions).all()
    assert (found.value <= free.value + 1e-4).all()


def test_an_episode_that_ended_may_have_gone_on_and_one_that_was_cut_off_not():
    """Death at step 1 is put off by the other action: then the steps after the logged end count."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0], transition[1, 0], transition[:, 1] = [0.1, 0.9], [0.9, 0.1], [0, 1]
    model = observed(transition, np.array([1.0, -1.0]), 4, terminal=[False, True])
    states, actions = np.array([[0, 1]], np.int32), np.array([[0]], np.int32)
    died = explain_log(KEY, model, log_of(model, states, actions, np.array([[-1.0]], np.float32)), question=Question(1))
    assert died.answers.value[0, 0] == -1
    # With 1 - 1/9 the other action saves the patient, who is then treated as before for three steps more.
    alive = [0.0]
    for _ in range(3):
        alive.append(0.1 * (1 + alive[-1]) - 0.9)
    assert died.answers.value[0, 1] == pytest.approx(8 / 9 * (1 + alive[-1]) - 1 / 9, abs=1e-5)
    cut = log_of(model, np.array([[0, 0]], np.int32), actions, np.array([[1.0]], np.float32))
    found = explain_log(KEY, model, cut, question=Question(1)).answers
    np.testing.assert_array_equal(found.value[0], [1, 1])


# ---------------------------------------------------------------- what it says


def test_a_gain_that_some_mechanism_denies_may_not_have_helped():
    """One step. Whoever fared badly would have fared well by inverse CDF, whose order turns around with the labels.

    Of the bad outcome, with chance 0.4, the other action has 0.5: some mechanism sends all of the bad cases to it.
    With a chance of 0.3 it has not enough for all of them, and a part is saved whatever the mechanism: the twin.
    """
    for chance, certain in ((0.5, False), (0.3, True)):
        transition = np.zeros((2, 4, 4))
        transition[0, 0], transition[1, 0] = [0, 0.3, 0.3, 0.4], [0, chance / 2, 1 - chance, chance / 2]
        transition[:, 1:] = np.eye(4)[1:]
        kwargs = {"reparameterization": "inverse_cdf", "terminal": [False, True, True, True]}
        model = observed(transition, np.array([0.0, -1.0, 1.0, -1.0]), 1, **kwargs)
        states, actions, rewards = np.array([[0, 3]], np.int32), np.zeros((1, 1), np.int32), np.array([[-1.0]])
        log = log_of(model, states, actions, rewards.astype(np.float32))
        answer = explain_log(KEY, model, log, question=Question(1))[0]
        assert answer.gain > 0.1
        assert answer.certain is certain
        assert ("may not have helped" in answer.sentence) is not certain


def estimate_of(verdict):
    said = (Diagnostic("mismatch", 1.0, verdict, "The transitions are not the model's."),)
    return Estimate("CF-PE", 0.0, Interval(0, 0, 0.95, "student"), np.zeros(2), 2.0, diagnostics=said)


@pytest.mark.parametrize("verdict", ["trust", "caution", "do not trust"])
def test_the_verdict_is_inherited_from_evaluation(verdict):
    model, log = tiny_log(*tiny(4, False))
    found = explain_log(KEY, model, log, question=Question(3), trust=estimate_of(verdict), guarantees=False)
    assert found[0].verdict == found.curve[-1].verdict == verdict
    if verdict != "trust":
        assert "The transitions are not the model's." in found[0].reasons
    assert small()[0].verdict == "caution"  # nobody asked


def test_over_a_log():
    found = small()
    assert [e.value for e in found.curve] == pytest.approx(found.answers.value.mean(0))
    assert found.improvements[0].value == 0
    assert found.improvements[-1].interval.low > 0
    for what in ("step", "state", "action"):
        counts = found.most_changed(what)
        assert sum(n for _, n in counts) == found.answers.changed[:, -1].sum()
        assert counts == sorted(counts, key=lambda pair: -pair[1])
    target = float(found.answers.logged.min()) + 1
    saved = found.saved(target, k=4)
    assert [s.episode for s in saved] == [found.answers.logged.argmin()]
    assert saved[0].logged < target <= saved[0].would
    assert saved[0].changes == found.changes(saved[0].episode, 4)
    frame = found.frame()
    assert len(frame) == 5 * 5
    assert frame.value.to_numpy() == pytest.approx(found.answers.value.ravel())
    plain = found.plain()
    assert plain["episodes"][0]["curve"][0] == found.answers.logged[0]
    assert found.sentences[0].startswith("With at most 4 other decisions 5 of 5 episodes")
    with pytest.raises(CouldaError, match="what is 'day'"):
        found.most_changed("day")


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"changes": -1}, "changes is -1; it must be 0 or more"),
        ({"changes": 21}, "changes is 21, but the longest episode has 20 steps"),
        ({"actions": (3, 10)}, r"action 10 is outside Discrete\(10\)"),
        ({"actions": ()}, "actions is empty"),
        ({"frozen": (20,)}, "frozen step 20 is none of the steps 0 … 19"),
        ({"cost": -1.0}, "cost is -1.0; a change costs 0 or more"),
        ({"target": float("nan")}, "target is nan"),
        ({"budget": 10**12}, "a budget of 1,000,000,000,000 model steps would take hours"),
    ],
)
def test_bad_questions_are_refused_before_any_work(fields, message):
    model, log = synthetic(1, 1.0, 5)
    with pytest.raises(CouldaError, match=message):
        explain_log(KEY, model, log, question=Question(**fields))


def test_bad_logs_are_refused_before_any_work():
    model, log = synthetic(1, 0.0, 2)
    repeated = replace(log, schema=replace(log.schema, last_observation="repeated"))
    with pytest.raises(CouldaError, match="lacks the observation after each last action"):
        explain_log(KEY, model, repeated)
    wrong = replace(log, observation=np.roll(log.observation, 1))
    with pytest.raises(CouldaError, match="cannot have produced episode 0: at step 0 action"):
        explain_log(KEY, model, wrong)
    richer = replace(log, reward=log.reward + (np.arange(len(log.reward)) == 25))
    with pytest.raises(CouldaError, match="cannot have produced episode 1: at step 5 it pays"):
        explain_log(KEY, model, richer)
    episode = log[0]
    short = replace_observation(episode, episode.observation[:-1])
    with pytest.raises(CouldaError, match="20 steps and 20 observations; the one after the last action is missing"):
        explain(KEY, model, short)


def replace_observation(episode, observation):
    return type(episode)(observation, episode.action, episode.reward, episode.live, episode.log_prob)
