"""Fitted values are told when the observation is not the state."""

import jax
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.episodes import collect, fit_behavior
from coulda.evaluation import DoublyRobust, FittedQ, TableQ
from coulda.evaluation.fitted_q import (
    DENSE_CELLS,
    FOLDS,
    cross_fitted,
    default_regression,
    fit_values,
    iterated_values,
    past_matters,
    seen_by,
    steps_of,
)
from coulda.evaluation.markov import markov_diagnostic
from coulda.evaluation.mismatch import count_test
from coulda.evaluation.reading import read
from coulda.policies import UniformPolicy
from tests.triage import BEHAVIOR, TARGET, Stubborn, triage

KEY = jax.random.key(3)


def table_of(policy, log):
    """The regression, and the log's steps as it sees them."""
    regression = default_regression(log)
    return regression, steps_of(read(log, {"policy": policy}, [seen_by(regression)]), "policy", regression)


def found(estimate):
    return next(d for d in estimate.diagnostics if d.name == "markov")


def test_the_tiger_behind_the_door_is_not_what_was_heard():
    world = tiger(horizon=4, reparameterization="gumbel_max")
    log = collect(jax.random.key(0), world, UniformPolicy(3), 400)
    estimate = FittedQ(resamples=10).estimate(KEY, UniformPolicy(3), log)
    assert found(estimate).verdict == "do not trust"
    assert "came before" in estimate.reasons
    # Logged weights correct what fitted values get wrong; fitted weights may be as wrong themselves.
    assert found(DoublyRobust().estimate(KEY, UniformPolicy(3), log)).verdict == "trust"
    assert found(DoublyRobust().estimate(KEY, UniformPolicy(3), fit_behavior(log))).verdict == "caution"


def test_a_markov_world_is_trusted():
    """The twin: states are observed. A false alarm has probability 0.01; the keys are fixed."""
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 400)
    assert past_matters(KEY, *table_of(TARGET, log))[0].verdict == "trust"


def test_false_alarms_are_as_rare_as_promised():
    """300 random Markov logs: 1 % is 3, and ten or more have probability 1e-3."""
    rng = np.random.default_rng(0)
    transition, action = rng.dirichlet(np.ones(3), (3, 2)), rng.integers(0, 2, (300, 60, 6))
    alarms = 0
    for actions in action:
        states = np.zeros((60, 7), int)
        for t in range(6):
            rows = transition[states[:, t], actions[:, t]].cumsum(1)
            states[:, t + 1] = (rng.random((60, 1)) > rows).sum(1).clip(max=2)
        live = np.ones((60, 6), bool)
        (one,) = markov_diagnostic(rng, states, actions, states[:, 1:].astype(float), live, live)
        alarms += one.verdict != "trust"
    assert alarms < 10


@pytest.mark.parametrize("policy", [TARGET, pytest.param(Stubborn(), marks=pytest.mark.slow)], ids=["table", "memory"])
def test_sums_made_once_are_the_iteration(policy):
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 60)
    regression, steps = table_of(policy, log)
    assert isinstance(regression, TableQ)
    assert regression.num_observations * 2 < DENSE_CELLS
    weight = jax.random.uniform(KEY, (60,))
    quick = fit_values(regression, steps, weight)
    plain = iterated_values(regression, steps, weight)
    live = np.asarray(steps.live)
    np.testing.assert_allclose(np.asarray(quick.q)[live], np.asarray(plain.q)[live], atol=1e-5)
    np.testing.assert_allclose(np.asarray(quick.v[:, :-1])[live], np.asarray(plain.v[:, :-1])[live], atol=1e-5)


def test_folds_from_sums_made_once_are_fits_to_the_others():
    """A fold's values are those of a fit that has never seen it; the twin's fit has seen all."""
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 60)
    regression, steps = table_of(TARGET, log)
    q, v = cross_fitted(KEY, regression, steps)
    fold, live = np.asarray(jax.random.permutation(KEY, 60)) % FOLDS, np.asarray(steps.live)
    everything = fit_values(regression, steps, np.ones(60, np.float32))
    for number in range(FOLDS):
        out = fold == number
        others = fit_values(regression, steps, (~out).astype(np.float32))
        kept = lambda values, out=out: np.where(live, values, 0.0)[out]
        np.testing.assert_allclose(q[out], kept(others.q), atol=1e-5)
        np.testing.assert_allclose(v[out, 0], np.asarray(others.v)[out, 0], atol=1e-5)
        assert np.abs(q[out] - kept(everything.q)).max() > 1e-3


def test_counted_transitions_against_a_worked_example():
    """Row 1: 30 + 70 for 50 + 50 gives χ² = 16; row 2: 10, and 2 + 3 pooled as too rare, for 10 and 5, gives 0."""
    moves, expected = np.array([[30, 70, 0.0], [10, 2, 3]]), np.array([[50, 50, 0.0], [10, 2.5, 2.5]])
    (one,) = count_test("transitions deviate by", moves, expected)
    assert one.size == pytest.approx(np.sqrt((16 - 2) / 115))
    assert one.value == pytest.approx(np.exp(-8))  # χ² with two degrees of freedom is exponential
