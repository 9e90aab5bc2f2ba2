"""The explanations of the documentation: what the models' verdicts are, and how much sampled tables flatter."""

import jax
import numpy as np
import pytest

from coulda.studies.explanations import (
    SHOWN,
    flattered_values,
    pump_failure,
    sepsis_learned,
    sepsis_observed,
    sokoban_level,
)


@pytest.mark.slow
def test_one_wrong_move_in_sokoban_is_found():
    """Only some single change brings the solution back; nothing more is gained by two."""
    found = sokoban_level(jax.random.split(jax.random.key(0), 5)[3])
    assert found["curve"][0] == found["logged"] < found["solved"]
    assert found["least"] == 1
    assert found["optimal"]


@pytest.mark.slow
def test_tables_of_few_draws_flatter():
    """With 10 draws a row by far, with 1,000 still; 3 episodes, fixed key."""
    found = flattered_values(jax.random.key(0), 3)
    few, many, exact = (np.array(found[name]) for name in ("10 draws", "1000 draws", "exact"))
    assert (few > many).all()
    assert (few > exact + 1).all()
    assert len(exact) == len(SHOWN)


@pytest.mark.slow
def test_verdicts_are_those_of_the_models():
    """The model learned from a log that hides things is not to be trusted, and its explanations neither."""
    keys = jax.random.split(jax.random.key(0), 5)
    assert sepsis_learned(keys[1])["verdict"] == "do not trust"
    observed = sepsis_observed(keys[0], 500)
    assert observed["verdict"] == "trust"
    assert observed["curve"][-1] > observed["curve"][0] == -1


@pytest.mark.slow
def test_a_service_would_have_saved_the_pump():
    """By the model that made the log, which evaluation trusts; on scenarios that it was not chosen by."""
    found = pump_failure(jax.random.split(jax.random.key(0), 5)[2])
    assert found["verdict"] == "trust"
    assert found["least"] == 1
    assert found["probability"][1] > 0.9
