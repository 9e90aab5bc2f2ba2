"""What is said of a log whose scenarios were sampled: explained or not, precise or not."""

import numpy as np

from coulda.evaluation.inferred import inference_diagnostics, information_diagnostic
from coulda.hindsight import Inference
from coulda.hindsight.source import FINE, IMPOSSIBLE, NOT_A_NUMBER

EPISODES = 100


def inferred(**changes):
    """Of a log in which all went well, but for some of it."""
    numbers = {"log_evidence": -3.0, "effective": 200.0, "gap": 0.2, "r_hat": 1.0, "reason": FINE, "step": -1}
    columns = {name: np.full(EPISODES, value) for name, value in numbers.items()}
    for name, (episodes, value) in changes.items():
        columns[name][:episodes] = value
    return Inference(**columns)


def verdicts(found):
    return {one.name: one.verdict for one in inference_diagnostics(found)}


def test_a_source_without_error_says_nothing():
    assert inference_diagnostics(inferred(effective=(EPISODES, np.inf))) == ()


def test_good_inference_is_trusted():
    assert verdicts(inferred()) == {"explained": "trust", "inference": "trust"}


def test_an_episode_without_an_explanation_is_named():
    explained, _ = inference_diagnostics(inferred(reason=(1, IMPOSSIBLE), step=(1, 4)))
    assert explained.verdict == "caution"
    assert "1 of 100 episodes are not explained by the model; the first is episode 0, at step 4" in explained.sentence
    assert verdicts(inferred(reason=(3, IMPOSSIBLE)))["explained"] == "do not trust"


def test_a_density_that_is_no_number_is_never_trusted():
    explained, _ = inference_diagnostics(inferred(reason=(1, NOT_A_NUMBER), step=(1, 0)))
    assert explained.verdict == "do not trust"
    assert "NaN or +inf" in explained.sentence


def test_few_scenarios_gaps_and_chains_that_disagree_are_poor():
    for name, value in {"effective": 5.0, "gap": 4.0, "r_hat": 1.3}.items():
        assert verdicts(inferred(**{name: (4, value)}))["inference"] == "trust"
        assert verdicts(inferred(**{name: (10, value)}))["inference"] == "caution"
        assert verdicts(inferred(**{name: (30, value)}))["inference"] == "do not trust"


def test_hindsight_that_tells_nothing_says_so_and_is_no_reason_to_doubt():
    little, much = information_diagnostic(0.01), information_diagnostic(0.4)
    assert little.verdict == much.verdict == "trust"
    assert "adds next to nothing" in little.sentence
    assert "40%" in much.sentence
    assert "nothing" not in much.sentence
