"""Bounds over all compatible SCMs: exact on one step, consistent, and around both named reparameterizations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import collect, from_arrays, to_arrays
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, compare, evaluate
from coulda.evaluation.estimate import key_for
from coulda.evaluation.sensitivity import coupling_bounds, fill, reparameterization_diagnostic
from coulda.hindsight import Exact
from tests.triage import BEHAVIOR, TARGET, Table, triage


def test_filling_is_linear_programming():
    rng = np.random.default_rng(0)
    for _ in range(20):
        capacity, worth = rng.dirichlet(np.ones(5)) / rng.uniform(0.2, 1), rng.normal(size=5)
        best = linprog(-worth, A_eq=np.ones((1, 5)), b_eq=[1], bounds=[(0, c) for c in capacity])
        assert float(fill(jnp.asarray(capacity, jnp.float32), jnp.asarray(worth, jnp.float32))) == pytest.approx(
            -best.fun, abs=1e-5
        )


def test_one_step_by_all_couplings():
    """One state, two actions, three ends: bounds are the extreme joint distributions with the two marginals."""
    p, q, worth = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), np.array([0.0, 1.0, 3.0])
    rows = np.zeros((2, 4, 4))
    rows[0, 0, 1:], rows[1, 0, 1:] = p, q
    rows[:, 1:, 1:] = np.eye(3)
    model = TabularPOMDP(
        [1.0, 0, 0, 0], rows, np.eye(4), np.array([0, *worth]),
        horizon=1, reparameterization="gumbel_max", terminal=[False, True, True, True],
    )  # fmt: skip
    behavior, other = (np.tile(row, (4, 1)) for row in ([1.0, 0.0], [0.0, 1.0]))
    log = collect(jax.random.key(0), model, Table(behavior), 30)
    bounds = coupling_bounds(model, jnp.asarray(other), log)
    for i, episode in enumerate(log):
        seen = int(episode.observation[1]) - 1
        # The joint [3, 3] of both ends has marginals p and q; the row that was seen is renormalized.
        marginals = np.concatenate([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
        goal = np.zeros((3, 3))
        goal[seen] = worth / p[seen]
        extremes = [
            sign * linprog(sign * goal.ravel(), A_eq=marginals, b_eq=np.concatenate([p, q])).fun for sign in (1, -1)
        ]
        assert (bounds.low[i], bounds.high[i]) == pytest.approx(tuple(extremes), abs=1e-5)
    same = coupling_bounds(model, jnp.asarray(behavior), log)
    np.testing.assert_allclose(same.low, log.episode_returns, atol=1e-6)
    np.testing.assert_allclose(same.high, log.episode_returns, atol=1e-6)


@pytest.mark.parametrize("name", ["gumbel_max", pytest.param("inverse_cdf", marks=pytest.mark.slow)])
def test_named_reparameterizations_lie_between(name: str):
    model = triage(reparameterization=name)
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 400)
    low, high = coupling_bounds(model, TARGET.probabilities, log).mean
    estimate = evaluate(jax.random.key(1), model, TARGET, log, Exact(model))
    assert low - estimate.interval.width < estimate.value < high + estimate.interval.width
    assert high - low > 0.1


def test_a_log_without_ends_is_refused():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 400)
    arrays = from_arrays(**to_arrays(log), observation_space=log.schema.observation_space)
    with pytest.raises(CouldaError, match="which this log lacks"):
        coupling_bounds(triage(), TARGET.probabilities, arrays)


def test_the_table_compares_reparameterizations():
    """In the right model the value does not depend on it; in one that is wrong it may, and the table says so."""
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 400)
    other = triage(reparameterization="inverse_cdf")
    method = OnScenarios(triage(), Exact(triage()), alternatives={"inverse_cdf": (other, Exact(other))})
    table = compare(jax.random.key(1), log, {"target": TARGET}, [method])
    estimate = table.estimates["target"]["CF-PE"]
    found = next(d for d in estimate.diagnostics if d.name == "reparameterization")
    assert found.verdict == "trust"
    expected = evaluate(key_for(jax.random.key(1), "scenarios"), other, TARGET, log, Exact(other)).value
    assert found.value == pytest.approx(abs(expected - estimate.value))
    far = reparameterization_diagnostic(estimate, "other", replace(estimate, value=estimate.value + 1))
    assert far.verdict == "do not trust"
