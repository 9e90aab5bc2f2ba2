"""Of two models, which explains a log better: exactly, and by particles."""

import jax
import numpy as np
import pytest

from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.evaluation import Rivals, rivals
from coulda.hindsight import Exact, Prior
from coulda.policies import UniformPolicy
from tests.triage import triage

KEY = jax.random.key(0)
WRONG = triage(observation=np.full((4, 4), 0.1) + 0.6 * np.eye(4))
"""Believes that it is seen through noise what is not."""


@pytest.fixture(scope="module")
def log():
    return collect(jax.random.key(1), triage(), UniformPolicy(2), 1000)


def test_the_right_model_explains_the_log_better(log):
    found = rivals(KEY, log, {"wrong": Exact(WRONG), "right": Exact(triage())})
    one = jax.tree.map(lambda leaf: leaf[3], log.padded(triage().horizon))
    assert np.isclose(found.log_evidence["right"][3], Exact(triage()).log_evidence(one), rtol=1e-4)
    assert found.sentence.startswith("right explains the log better than wrong by ")
    assert "equally well" in rivals(KEY, log, {"a": Exact(triage()), "b": Exact(triage())}).sentence


def test_what_is_impossible_in_one_model_is_said():
    found = Rivals({"a": np.array([-1.0, -2.0, -3.0]), "b": np.array([-1.0, -np.inf, -1.0])})
    assert found.sentence == "a explains 1 episodes that b holds to be impossible; the first is 1."
    close = Rivals({"a": np.array([-1.0, -2.0, -3.0]), "b": np.array([-1.5, -2.5, -1.5])})
    assert "about equally well" in close.sentence


def test_what_cannot_be_compared_is_refused(log):
    with pytest.raises(CouldaError, match="it takes two"):
        rivals(KEY, log, {"a": Exact(triage())})
    with pytest.raises(CouldaError, match=r"source of b \(Prior\) does not know"):
        rivals(KEY, log, {"a": Exact(triage()), "b": Prior(triage())})
