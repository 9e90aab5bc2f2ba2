"""Explanations where the noise is inferred: exact search over sequences, beams with bounds, and hidden states."""

import itertools
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import TabularPOMDP, tiger
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.explanations import Question, explain, explain_log
from coulda.explanations.scenarios import draw, play
from coulda.explanations.search import LoggedEnd
from coulda.hindsight import Exact, ObservedStates
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.policies.trainable import LinearGaussianPolicy
from coulda.pomdp import AdditiveNoisePOMDP

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


def brute_force(model, scenarios, episode, candidates, changes):
    """The best mean return over all sequences with at most k changes, for each k."""
    every = [None, *range(len(candidates))]
    choices = [c for c in itertools.product(every, repeat=model.horizon) if sum(x is not None for x in c) <= changes]
    logged = np.asarray(episode.action)
    sequences = np.array([[logged[t] if x is None else candidates[x] for t, x in enumerate(c)] for c in choices])
    made = np.array([sum(not np.array_equal(s[t], logged[t]) for t in range(model.horizon)) for s in sequences])
    returns, _ = play(model, scenarios, END, jnp.int32(model.horizon), jnp.asarray(sequences))
    means = np.asarray(returns, float).mean(1)
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


def test_ways_that_meet_are_merged():
    """A walk on a line of 5 places has at most 5 states a layer: 12 steps of any changes are cheap, and exact."""
    transition = np.zeros((3, 5, 5))
    for action, move in enumerate((-1, 0, 1)):
        transition[action, range(5), np.clip(np.arange(5) + move, 0, 4)] = 1
    reward = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    first = np.array([1.0, 0, 0, 0, 0])
    kwargs = {"horizon": 12, "reparameterization": "inverse_cdf"}
    model = TabularPOMDP(first, transition, np.eye(5), reward, **kwargs)
    log = collect(KEY, model, UniformPolicy(3), 1)
    answer = explain(KEY, model, log[0], Exact(model), Question(12, budget=2_000_000), scenarios=4)
    exact = explain(KEY, model, log[0], question=Question(12))
    assert answer.optimal
    np.testing.assert_allclose([e.value for e in answer.curve], [e.value for e in exact.curve], atol=1e-5)


def test_somebody_decides_after_an_end_that_was_put_off():
    """Both ways of explaining agree on it, and on what it is worth: without it the last action is kept."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0], transition[1, 0], transition[:, 1] = [0, 1], [1, 0], [0, 1]  # 0 kills, 1 does not
    kwargs = {"horizon": 4, "reparameterization": "inverse_cdf", "terminal": [False, True]}
    model = TabularPOMDP([1, 0], transition, np.eye(2), np.array([1.0, -1.0]), **kwargs)
    log = collect(KEY, model, TabularPolicy([[1, 0], [1, 0]]), 1)
    assert log.lengths[0] == 1
    for policy, expected in ((None, 0.0), (TabularPolicy([[0, 1], [0, 1]]), 4.0)):
        for source in (None, Exact(model)):
            answer = explain(KEY, model, log[0], source, Question(1, afterwards=policy), scenarios=4)
            assert [e.value for e in answer.curve] == pytest.approx([-1, expected])
            assert len(answer.changes) == 1
            assert len(answer.courses[1].reward) == (2 if policy is None else 4)


@cache
def hidden():
    model = tiger(horizon=3, reparameterization="gumbel_max")
    return model, collect(jax.random.key(3), model, UniformPolicy(3), 3)


def test_hidden_states_are_chosen_on_one_half_and_scored_on_the_other():
    model, log = hidden()
    source, scenarios = Exact(model), 16
    found = explain_log(KEY, model, log, source, Question(2), scenarios=scenarios)
    for i in range(len(log)):
        episode = jax.tree.map(lambda leaf, i=i: leaf[i], log.padded(3))
        drawn = draw(source, jax.random.split(jax.random.fold_in(KEY, i), scenarios), episode)
        chosen, scored = (jax.tree.map(lambda leaf, s=s: leaf[s], drawn) for s in (slice(8), slice(8, None)))
        best, _ = brute_force(model, chosen, episode, np.arange(3), 2)
        actions = found.answers.action[i]
        on_chosen, _ = play(model, chosen, END, jnp.int32(3), jnp.asarray(actions))
        on_scored, _ = play(model, scored, END, jnp.int32(3), jnp.asarray(actions))
        np.testing.assert_allclose(np.asarray(on_chosen).mean(1), best, atol=1e-4)
        gains = np.asarray(on_scored, float) - np.asarray(on_scored, float)[:1]
        np.testing.assert_allclose(found.gains[i], gains.mean(1), atol=1e-4)
        np.testing.assert_allclose(found.answers.probability[i], (gains > 1e-5).mean(1))
        # Nobody could have decided so: it is never below, and is no headline.
        assert (found.answers.clairvoyant[i] >= found.answers.value[i] - 1e-4).all()
    assert (found.answers.value[:, 0] == found.answers.logged).all()
    answer = found[0]
    assert "of the scenarios that fit the episode" in answer.sentence or answer.gain <= 1e-5
    assert answer.clairvoyant is not None


def test_flattery_by_choosing_and_scoring_on_the_same_scenarios():
    """With 2 scenarios to choose by, the best of all sequences looks better there than on others, on the average.

    Over 30 episodes of the tiger: 30 differences of mean about 10 and deviation about 30; fixed key.
    """
    model, _ = hidden()
    log = collect(jax.random.key(5), model, UniformPolicy(3), 30)
    source = Exact(model)
    found = explain_log(KEY, model, log, source, Question(3), scenarios=4)
    flattered = []
    for i in range(len(log)):
        episode = jax.tree.map(lambda leaf, i=i: leaf[i], log.padded(3))
        drawn = draw(source, jax.random.split(jax.random.fold_in(KEY, i), 4), episode)
        returns, _ = play(model, jax.tree.map(lambda leaf: leaf[:2], drawn), END, jnp.int32(3), found.answers.action[i])
        flattered.append(float(np.asarray(returns).mean(1)[-1] - np.asarray(returns).mean(1)[0]))
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
    model, log = hidden()
    with pytest.raises(CouldaError, match=r"the state is hidden\. Give a source of scenarios"):
        explain_log(KEY, model, log, question=Question(1))
    wrong = replace(log, reward=log.reward * 0 + 3)
    with pytest.raises(CouldaError, match="cannot have produced episode 0: its observations and rewards"):
        explain_log(KEY, model, wrong, Exact(model), Question(1), scenarios=4)
