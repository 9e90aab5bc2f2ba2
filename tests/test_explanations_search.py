"""Explanations where the noise is inferred: exact search over sequences, beams with bounds, and hidden states."""

import itertools
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.explanations import Question, explain, explain_log
from coulda.explanations.histories import by_history
from coulda.explanations.scenarios import draw, play
from coulda.explanations.search import LoggedEnd, Searching
from coulda.hindsight import Exact, ObservedStates
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.policies.trainable import LinearGaussianPolicy
from coulda.pomdp import AdditiveNoisePOMDP
from tests.explained_worlds import log_of, observed

KEY = jax.random.key(0)
END = LoggedEnd(jnp.int32(100), None)
ACTIONS = np.array([[-1.0], [0.0], [1.0]], np.float32)


class Bent(AdditiveNoisePOMDP):
    """s' = s + tanh(a - s²) / 2 + noise; far from 1 is costly."""

    initial_mean: jax.Array = eqx.field(default_factory=lambda: jnp.zeros(1))
    initial_scale: jax.Array = eqx.field(default_factory=lambda: jnp.ones(1))
    transition_scale: jax.Array = eqx.field(default_factory=lambda: 0.3 * jnp.ones(1))
    num_controls: int = eqx.field(static=True, default=1)
    horizon: int = eqx.field(static=True, default=4)

    def predict(self, state, action):
        return state + jnp.tanh(action - state**2) / 2

    def reward(self, state, action, next_state):
        return -jnp.sum((next_state - 1) ** 2) - 0.01 * jnp.sum(action**2)


@cache
def bent():
    model = Bent()
    return model, collect(jax.random.key(1), model, LinearGaussianPolicy.zero(1, 1), 2)


def brute_force(model, scenarios, episode, candidates, changes, discount=1.0):
    """The best mean return over all sequences with at most k changes, for each k."""
    every = [None, *range(len(candidates))]
    choices = [c for c in itertools.product(every, repeat=model.horizon) if sum(x is not None for x in c) <= changes]
    logged = np.asarray(episode.action)
    sequences = np.array([[logged[t] if x is None else candidates[x] for t, x in enumerate(c)] for c in choices])
    made = np.array([sum(not np.array_equal(s[t], logged[t]) for t in range(model.horizon)) for s in sequences])
    _, (_, _, reward, _) = play(model, scenarios, END, jnp.int32(model.horizon), jnp.asarray(sequences))
    means = (np.asarray(reward, float) * discount ** np.arange(model.horizon)).sum(-1).mean(1)
    return [means[made <= k].max() for k in range(changes + 1)], sequences


def test_known_noise_is_searched_exhaustively():
    model, log = bent()
    source = ObservedStates(model)
    episode = jax.tree.map(lambda leaf: leaf[0], log.padded(4))
    scenario = draw(source, jax.random.split(KEY, 1), episode)
    expected, _ = brute_force(model, scenario, episode, ACTIONS, 3)
    answer = explain(KEY, model, log[0], source, Question(3, actions=ACTIONS))
    np.testing.assert_allclose([e.value for e in answer.curve], expected, atol=1e-5)
    assert answer.curve[0].value == log.episode_returns[0]
    assert answer.optimal
    assert answer.probability is None
    assert (np.diff([e.value for e in answer.curve]) >= 0).all()
    assert len(answer.changes) <= 3
    assert answer.bound == pytest.approx([e.value for e in answer.curve])
    # The course is what the changes make of the noise: it pays what the curve says.
    assert answer.courses[-1].reward.sum() == pytest.approx(answer.curve[-1].value, abs=1e-5)
    np.testing.assert_allclose(answer.courses[0].state, log[0].observation, atol=1e-6)
    # A twin: on the noise of the other episode other sequences are best.
    other = explain(KEY, model, log[1], source, Question(3, actions=ACTIONS))
    assert other.curve[-1].value != pytest.approx(expected[-1], abs=1e-3)


def test_a_discount_changes_what_is_best():
    model, log = bent()
    source, episode = ObservedStates(model), jax.tree.map(lambda leaf: leaf[0], bent()[1].padded(4))
    scenario = draw(source, jax.random.split(KEY, 1), episode)
    expected, _ = brute_force(model, scenario, episode, ACTIONS, 3, 0.5)
    answer = explain(KEY, model, log[0], source, Question(3, actions=ACTIONS, discount=0.5))
    values = [e.value for e in answer.curve]
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert values[0] == pytest.approx(log.discounted_returns(0.5)[0])
    assert answer.courses[-1].reward.sum() == pytest.approx(values[-1], abs=1e-5)
    plain, _ = brute_force(model, scenario, episode, ACTIONS, 3)
    assert not np.allclose(values, plain, atol=1e-2)
    # Where a beam gives up, what it may have missed is discounted too.
    beam = Question(3, actions=ACTIONS, discount=0.5, budget=60, largest_reward=0.0)
    narrow = explain(KEY, model, log[0], source, beam)
    assert not narrow.optimal
    assert (narrow.bound >= np.array(expected) - 1e-5).all()


def test_frozen_steps_and_costs():
    model, log = bent()
    ask = lambda **fields: explain(KEY, model, log[0], ObservedStates(model), Question(3, actions=ACTIONS, **fields))
    free, frozen, dear = ask(), ask(frozen=(0, 1)), ask(cost=0.2)
    assert {change.step for change in frozen.changes} <= {2, 3}
    assert {change.step for change in free.changes} & {0, 1}
    assert frozen.curve[-1].value <= free.curve[-1].value
    assert dear.curve[-1].value <= free.curve[-1].value - 0.2
    assert dear.curve[-1].value >= dear.logged


def test_a_beam_says_so_and_its_bound_holds():
    model, log = bent()
    ask = lambda **fields: explain(KEY, model, log[0], ObservedStates(model), Question(3, actions=ACTIONS, **fields))
    exact, beam = ask(), ask(budget=60, largest_reward=0.0)
    assert exact.optimal
    assert not beam.optimal
    values, best = np.array([[e.value for e in answer.curve] for answer in (beam, exact)])
    assert (values <= best + 1e-6).all()
    assert (values >= beam.logged).all()
    assert (beam.bound >= best - 1e-6).all()
    assert np.isfinite(beam.bound).all()
    assert "Not all ways were tried." in beam.sentence
    assert ask(budget=60).bound[-1] == np.inf


@cache
def line():
    """Five places in a row; at the last one it ends, and costs. Two episodes: one steps into it, one walks about."""
    transition = np.zeros((3, 5, 5))
    for action, move in enumerate((-1, 0, 1)):
        transition[action, range(5), np.clip(np.arange(5) + move, 0, 4)] = 1
    pay = np.array([1.0, 1.0, 1.5, 2.0, -1.0], np.float32)
    kwargs = {"first": np.eye(5)[0], "terminal": [False] * 4 + [True]}
    model = observed(transition, pay, 6, "inverse_cdf", **kwargs)
    paths = ([0, 1, 2, 3, 4], [2, 2, 2, 2]), ([0, 1, 0, 0, 1, 1, 2], [2, 0, 1, 2, 1, 2])
    arrays = ((np.array([s], np.int32), np.array([a], np.int32)) for s, a in paths)
    return model, *(log_of(model, states, actions, pay[states[:, 1:]]) for states, actions in arrays)


def searched(model, log, question):
    """On one scenario, which leaves nothing to chance here."""
    scenario, length = jax.tree.map(lambda leaf: leaf[None], model.scenario_prior.sample(KEY)), int(log.lengths[0])
    episode = jax.tree.map(lambda leaf: leaf[0], log.padded(6))
    return Searching(model, scenario, episode.action, jnp.arange(3), np.ones(6, bool), question, length, 6).run()


def test_ways_that_meet_are_merged():
    """At most 5 states a layer: any changes of 6 steps are cheap and exact. Ways that never meet would be too many."""
    model, _, log = line()
    question = Question(6, budget=2_500)
    assert question.budget < 4**6
    found = searched(model, log, question)
    exact = explain_log(KEY, model, log, question=Question(6), guarantees=False)
    assert found.optimal
    np.testing.assert_allclose(found.value, exact.answers.value[0], atol=1e-5)


@pytest.mark.slow
def test_somebody_decides_after_an_end_that_was_put_off():
    """Both ways of explaining agree on it, and on what it is worth: without it the last action is kept."""
    model, log, _ = line()
    stays = TabularPolicy(np.eye(3)[[1] * 5])
    for policy, expected, last in ((None, 7.0, -1.0), (stays, 10.5, 2.0)):
        question = Question(1, afterwards=policy)
        answer = explain_log(KEY, model, log, question=question, guarantees=False)[0]
        found = searched(model, log, question)
        assert [e.value for e in answer.curve] == pytest.approx([3.5, expected])
        assert found.value == pytest.approx([3.5, expected])
        assert [change.step for change in answer.changes] == np.flatnonzero(found.choice[1] >= 0).tolist() == [3]
        assert len(answer.courses[1].reward) == 6
        assert answer.courses[1].reward[-1] == last


@cache
def hidden(count=3):
    """Episodes of the tiger, each explained with two scenarios to choose by and two to score."""
    model = tiger(horizon=3, reparameterization="gumbel_max")
    log = collect(jax.random.key(5), model, UniformPolicy(3), count)
    return model, log, explain_log(KEY, model, log, Exact(model), Question(3), scenarios=4)


def drawn_for(model, log, i):
    """An episode of the tiger, and its scenarios to choose by and to score."""
    episode = jax.tree.map(lambda leaf: leaf[i], log.padded(3))
    drawn = draw(Exact(model), jax.random.split(jax.random.fold_in(KEY, i), 4), episode)
    return episode, *(jax.tree.map(lambda leaf, s=s: leaf[s], drawn) for s in (slice(2), slice(2, None)))


@pytest.mark.slow
def test_hidden_states_are_chosen_on_one_half_and_scored_on_the_other():
    model, log, found = hidden()
    for i in range(len(log)):
        episode, chosen, scored = drawn_for(model, log, i)
        best, _ = brute_force(model, chosen, episode, np.arange(3), 3)
        actions = jnp.asarray(found.answers.action[i])
        on_chosen, on_scored = (play(model, u, END, jnp.int32(3), actions)[0] for u in (chosen, scored))
        np.testing.assert_allclose(np.asarray(on_chosen).mean(1), best, atol=1e-4)
        gains = np.asarray(on_scored, float) - np.asarray(on_scored, float)[:1]
        np.testing.assert_allclose(found.gains[i], gains.mean(1), atol=1e-4)
        np.testing.assert_allclose(found.answers.probability[i], (gains > 1e-5).mean(1))
    # Nobody could have decided so: it is never below, and is no headline.
    assert (found.answers.clairvoyant >= found.answers.value - 1e-4).all()
    assert (found.answers.value[:, 0] == found.answers.logged).all()
    answer = found[0]
    assert "of the scenarios that fit the episode" in answer.sentence or answer.gain <= 1e-5
    assert answer.clairvoyant is not None


def best_by_history(model, episode, scenarios, count, changes):
    """The mean return of the best policy of the history on the first scenarios: all histories, by recursion."""
    sequences = list(itertools.product(range(3), repeat=model.horizon))
    _, (states, _, rewards, _) = play(model, scenarios, END, jnp.int32(model.horizon), jnp.asarray(sequences))
    look = jax.vmap(jax.vmap(model.observe))
    seen = np.asarray(jax.vmap(lambda state: look(state, scenarios.observation))(states))
    rewards, did = np.asarray(rewards, float), np.asarray(episode.action)

    def best(prefix, members, left):
        t = len(prefix)
        if t == model.horizon:
            return 0.0
        some = next(i for i, sequence in enumerate(sequences) if sequence[:t] == prefix)
        total = 0.0
        for observation in {int(seen[some, m, t]) for m in members}:
            alike = [m for m in members if seen[some, m, t] == observation]
            worth = []
            for action in range(3):
                if action == did[t] or left:
                    way = next(i for i, sequence in enumerate(sequences) if sequence[: t + 1] == (*prefix, action))
                    now = sum(rewards[way, m, t] for m in alike)
                    worth.append(now + best((*prefix, action), alike, left - int(action != did[t])))
            total += max(worth)
        return total

    return [best((), list(range(count)), k) / count for k in range(changes + 1)]


@pytest.mark.slow
def test_a_policy_of_the_history_listens():
    """It equals the best of all on the scenarios to choose by, and is no worse there than the best sequence.

    Whether one may listen matters: with the logged observation alone there is nothing to hear, which is the twin.
    """
    model, log, found = hidden()
    listened = False
    for i in range(len(log)):
        episode = jax.tree.map(lambda leaf, i=i: leaf[i], log.padded(3))
        drawn = draw(Exact(model), jax.random.split(jax.random.key(i), 12), episode)
        returns = by_history(model, episode, drawn, Question(2), 3, 8)
        expected = best_by_history(model, episode, drawn, 8, 2)
        np.testing.assert_allclose(returns[:, :8].mean(1), expected, atol=1e-4)
        fixed, _ = brute_force(model, jax.tree.map(lambda leaf: leaf[:8], drawn), episode, np.arange(3), 2)
        assert (returns[:, :8].mean(1) >= np.array(fixed) - 1e-4).all()
        # Before a change all scenarios show what was logged.
        np.testing.assert_allclose(expected[:2], fixed[:2], atol=1e-4)
        listened |= expected[2] > fixed[2] + 0.1
        # Those that had no part in the choice follow it.
        clairvoyant = best_by_history(model, episode, jax.tree.map(lambda leaf: leaf[8:9], drawn), 1, 2)
        assert (returns[:, 8] <= np.array(clairvoyant) + 1e-4).all()
    assert listened
    assert found[0].by_history[0].value == found[0].logged
    assert found.frame()["by history"].notna().all()


@pytest.mark.slow
def test_flattery_by_choosing_and_scoring_on_the_same_scenarios():
    """With 2 scenarios to choose by, the best of all sequences looks better there than on others, on the average.

    Over 30 episodes of the tiger: 30 differences of mean about 10 and deviation about 30; fixed key.
    """
    model, log, found = hidden(30)
    flattered = []
    for i in range(len(log)):
        _, chosen, _ = drawn_for(model, log, i)
        returns = np.asarray(play(model, chosen, END, jnp.int32(3), jnp.asarray(found.answers.action[i]))[0])
        flattered.append(float(returns.mean(1)[-1] - returns.mean(1)[0]))
    apart = np.array(flattered) - found.gains[:, -1]
    assert apart.mean() > 2 * apart.std(ddof=1) / np.sqrt(len(apart))


def test_bad_input_is_refused_before_the_search():
    model, log = bent()
    with pytest.raises(CouldaError, match="say with actions= which of them to try"):
        explain(KEY, model, log[0], ObservedStates(model))
    with pytest.raises(CouldaError, match="give a source of scenarios, such as ObservedStates"):
        explain(KEY, model, log[0], question=Question(1, actions=ACTIONS))
    with pytest.raises(CouldaError, match="scenarios is 1; draw at least 4"):
        explain(KEY, model, log[0], ObservedStates(model), Question(1, actions=ACTIONS), scenarios=1)
    richer = replace(log, reward=log.reward + 1)
    with pytest.raises(CouldaError, match="cannot have produced episode 0: on its inferred noise the logged actions"):
        explain_log(KEY, model, richer, ObservedStates(model), Question(1, actions=ACTIONS))
    model, log, _ = hidden()
    with pytest.raises(CouldaError, match=r"the state is hidden\. Give a source of scenarios"):
        explain_log(KEY, model, log, question=Question(1))
    wrong = replace(log, reward=log.reward * 0 + 3)
    with pytest.raises(CouldaError, match="cannot have produced episode 0: its observations and rewards"):
        explain_log(KEY, model, wrong, Exact(model), Question(1), scenarios=4)
