"""Models that show their state are held against every logged step: wrong ones are found out, right ones left alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.episodes import collect
from coulda.evaluation import OnScenarios, compare
from coulda.evaluation.one_step import StateSeen, one_step_diagnostic, state_seen
from coulda.hindsight import Prior
from coulda.policies import UniformPolicy
from coulda.studies.trust_worlds import without_last_observation
from tests.test_evaluation_simulation import STEER, Drift, blurred, changed, endless
from tests.triage import BEHAVIOR, REWARD, TARGET, Stubborn, triage

KEY = jax.random.key(3)
EPISODES = 300
EVERY = StateSeen(jnp.arange(4))
"""Triage shows its four states by their numbers."""


def ahead(model, log, seen=EVERY):
    (found,) = one_step_diagnostic(KEY, model, log, seen)
    return found


def test_a_right_model_is_left_alone_and_wrong_tables_are_named():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    # A right model is warned of in one log of a hundred; the key is fixed.
    assert ahead(triage(), log).verdict == "trust"
    paid = np.array(REWARD, float)
    paid[1, 0] += 0.2
    assert "foresees other rewards than" in ahead(changed(reward=paid), log).sentence
    assert "observations" in ahead(changed(blurred(0.5)), log).sentence
    never = ahead(changed(endless()), log)
    assert never.verdict == "do not trust"
    assert "ends" in never.sentence


def test_missing_observations_of_ends_are_no_contradiction():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    repeated = without_last_observation(log)
    assert ahead(triage(), repeated).verdict == "trust"
    assert ahead(changed(blurred(0.5)), repeated).verdict != "trust"


def test_noise_in_logged_rewards_is_no_error_of_their_means():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    noise = np.random.default_rng(0).normal(size=log.num_steps)
    assert ahead(triage(), replace(log, reward=(log.reward + noise).astype(np.float32))).verdict == "trust"
    assert ahead(triage(), replace(log, reward=(log.reward + noise + 0.5).astype(np.float32))).verdict != "trust"


def test_vectors_and_continuous_actions():
    log = collect(jax.random.key(0), Drift(), STEER, EPISODES)
    assert ahead(Drift(), log, StateSeen(None)).verdict == "trust"
    wrong = ahead(Drift(pull=0.5), log, StateSeen(None))
    assert wrong.verdict == "do not trust"
    assert "observations" in wrong.sentence


def test_states_are_told_from_observations_or_not():
    seen, state = np.array([[0, 2, 2]]), np.array([[3, 1, 1]])
    model = tiger(horizon=3, reparameterization="gumbel_max")
    found = state_seen(model, (seen, state))
    assert found is not None
    assert found.numbers is not None
    assert found.numbers.tolist() == [3, -1, 1]
    assert state_seen(model, (seen, np.array([[3, 1, 0]]))) is None
    assert state_seen(Drift(), np.array([True, False])) is None


@pytest.mark.slow
def test_a_behavior_with_a_memory_does_not_keep_a_model_from_being_checked():
    log = collect(jax.random.key(0), triage(), Stubborn(), 1000)
    of = lambda model: compare(KEY, log, {"target": TARGET}, [OnScenarios(model, Prior(model))]).estimates["target"][
        "MB-PE"
    ]
    assert of(triage()).verdict == "trust"
    assert of(changed(blurred(0.5))).verdict == "do not trust"
    hidden = tiger(horizon=4, reparameterization="gumbel_max")
    listened = collect(jax.random.key(0), hidden, UniformPolicy(3), EPISODES)
    row = compare(KEY, listened, {"target": UniformPolicy(3)}, [OnScenarios(hidden, Prior(hidden))]).estimates[
        "target"
    ]["MB-PE"]
    assert "one step ahead" not in {d.name for d in row.diagnostics}
