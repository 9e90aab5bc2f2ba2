"""Credit: what each decision was worth against the policy's own, which is the case of one change."""

import jax
import numpy as np
import pytest

from coulda.environments import forest
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.explanations import Question, credit, credit_log, draw_curve, explain
from coulda.hindsight import Exact, ObservedStates
from coulda.policies import TabularPolicy, UniformPolicy
from tests.explained_worlds import grid
from tests.test_explanations import small
from tests.test_explanations_search import bent

KEY = jax.random.key(0)


def test_the_best_single_change_is_the_case_of_one_change():
    model, episode = grid()
    found = credit(KEY, model, episode, UniformPolicy(4))
    answer = explain(KEY, model, episode, question=Question(1))
    assert found.gain.max() == pytest.approx(answer.gain, rel=1e-5)
    step, action = np.unravel_index(found.gain.argmax(), found.gain.shape)
    assert answer.changes == ((step, episode.action[step], action),)
    np.testing.assert_allclose(found.effect, -found.gain.mean(1), rtol=1e-5)
    assert (found.low == found.effect).all()
    assert found.effect.argmin() == 2  # into the trap
    # Who does the same has nothing to answer for; another policy has: the twin.
    same = credit(KEY, model, episode, TabularPolicy(np.eye(4)[[1, 1, 2, 0, 0, 0, 0] + [0] * 9]))
    np.testing.assert_allclose(same.effect, 0, atol=1e-3)
    assert np.abs(found.effect).max() > 100


def test_scenarios_agree_with_the_exact_ones():
    """Within 4.5 standard errors at each of 15 steps: fails once in 10,000 times. The interval is paired.

    Another episode has another noise, and other credits: the twin.
    """
    model = forest(horizon=5, reparameterization="gumbel_max")
    log = collect(KEY, model, UniformPolicy(2), 3)
    exact = credit_log(KEY, model, log, UniformPolicy(2))
    drawn = credit_log(KEY, model, log, UniformPolicy(2), Exact(model), scenarios=400)
    assert [len(one.effect) for one in exact] == log.lengths.tolist()
    errors = [(one.high - one.low) / 2 / 1.97 for one in drawn]
    for one, other, error in zip(exact, drawn, errors, strict=True):
        assert (np.abs(other.effect - one.effect) <= 4.5 * error + 1e-5).all()
    assert max(error.max() for error in errors) > 0
    assert (np.abs(drawn[1].effect - exact[2].effect) > 4.5 * errors[1] + 1e-5).any()


def test_what_cannot_be_credited_is_refused():
    model, log = bent()
    with pytest.raises(CouldaError, match="credit is for discrete actions"):
        credit(KEY, model, log[0], UniformPolicy(2), ObservedStates(model))
    model, episode = grid()
    with pytest.raises(CouldaError, match="scenarios is 1; draw at least 2"):
        credit(KEY, model, episode, UniformPolicy(4), Exact(model), scenarios=1)


def test_the_figure_is_drawn(tmp_path):
    draw_curve(small(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
