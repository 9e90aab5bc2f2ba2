"""Credit: what each decision was worth against the policy's own, which is the case of one change."""

import jax
import numpy as np
import pytest

from coulda.environments import forest
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.explanations import Question, credit, draw_curve, explain, explain_log
from coulda.hindsight import Exact, ObservedStates
from coulda.policies import TabularPolicy, UniformPolicy
from tests.explained_worlds import grid, synthetic
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


def test_scenarios_agree_with_the_exact_one():
    """Within 4.5 standard errors at each of 5 steps: fails once in 30,000 times. The interval is paired."""
    model = forest(horizon=5, reparameterization="gumbel_max")
    log = collect(KEY, model, UniformPolicy(2), 1)
    exact = credit(KEY, model, log[0], UniformPolicy(2))
    drawn = credit(KEY, model, log[0], UniformPolicy(2), Exact(model), scenarios=400)
    error = (drawn.high - drawn.low) / 2 / 1.97
    assert (np.abs(drawn.effect - exact.effect) <= 4.5 * error + 1e-5).all()
    assert error.max() > 0


def test_what_cannot_be_credited_is_refused():
    model, log = bent()
    with pytest.raises(CouldaError, match="credit is for discrete actions"):
        credit(KEY, model, log[0], UniformPolicy(2), ObservedStates(model))


def test_the_figure_is_drawn(tmp_path):
    model, log = synthetic(1, 1.0, 5)
    draw_curve(explain_log(KEY, model, log, question=Question(4)), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
