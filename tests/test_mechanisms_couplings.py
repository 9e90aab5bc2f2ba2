"""Couplings in closed form: what a choice would have been under other probabilities, given what it was."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.mechanisms import (
    category_at,
    gumbel_argmax,
    gumbel_coupling,
    gumbel_given_argmax,
    inverse_cdf_coupling,
    uniform_given_category,
)

COUPLINGS = {"gumbel_max": gumbel_coupling, "inverse_cdf": inverse_cdf_coupling}
every = {
    name: jax.jit(lambda p, q, couple=couple: jax.vmap(couple(p, q).given)(jnp.arange(p.shape[0])))
    for name, couple in COUPLINGS.items()
}


def distributions(size: int, zeros: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two rows in float64, of which some places are 0."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(size, 0.5), 2) * (rng.random((2, size)) >= zeros)
    rows[:, 0] += 1e-3  # never all of them
    return tuple(rows / rows.sum(1, keepdims=True))


@pytest.mark.parametrize("name", COUPLINGS)
@pytest.mark.parametrize(("size", "zeros"), [(7, 0.0), (7, 0.5), (700, 0.3)])
def test_marginals_are_exact(name, size, zeros):
    """Σ_i p_i P(j | i) = q_j, and rows are distributions: to 1e-12 in double, and to 1e-6 in single precision."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        for seed in range(3):
            p, q = distributions(size, zeros, seed)
            rows = np.asarray(every[name](jnp.asarray(p), jnp.asarray(q)))
            assert rows.dtype == np.float64
            np.testing.assert_allclose(p[p > 0] @ rows[p > 0], q, atol=1e-12)
            np.testing.assert_allclose(rows[p > 0].sum(1), 1, atol=1e-12 / p[p > 0].min())
            assert (rows[p > 0] >= 0).all()
    single = np.asarray(every[name](jnp.asarray(p, jnp.float32), jnp.asarray(q, jnp.float32)))
    assert single.dtype == np.float32
    # The rounding of single precision is relative to p_i, which rows are divided by.
    np.testing.assert_allclose(*((p[:, None] * found)[p > 0] for found in (single, rows)), atol=1e-6)
    np.testing.assert_allclose(single[p > 1e-3].sum(1), 1, atol=1e-3)
    assert np.isfinite(single[p > 0]).all()  # also where an interval is rounded away


@pytest.mark.parametrize("name", COUPLINGS)
def test_the_factual_distribution_gives_the_factual_value(name):
    """Consistency: under p itself what was is what would have been. Its twin, under another q, it is not."""
    p, q = (jnp.asarray(row, jnp.float32) for row in distributions(7, 0.0, seed=0))
    np.testing.assert_allclose(every[name](p, p), np.eye(7), atol=1e-6)
    assert np.abs(np.asarray(every[name](p, q)) - np.eye(7)).max() > 0.1


@hypothesis.given(st.integers(0, 2**31), st.integers(2, 9), st.floats(0, 0.8))
def test_counterfactual_stability(seed, size, zeros):
    """Where j became no likelier relative to i, i does not turn into j."""
    p, q = distributions(9, zeros, seed)
    p[size:] = q[size:] = 0  # one program for all sizes
    p, q = p / p.sum(), q / q.sum()
    rows = np.asarray(every["gumbel_max"](jnp.asarray(p, jnp.float32), jnp.asarray(q, jnp.float32)))
    for i in np.flatnonzero(p > 1e-3):
        no_likelier = q * p[i] <= q[i] * p * (1 - 1e-5)
        no_likelier[i] = False
        assert (rows[i][no_likelier] == 0).all()


DRAWS = 10**6


@pytest.mark.slow
@pytest.mark.parametrize("name", COUPLINGS)
def test_a_million_draws_agree(name):
    """Within 2e-3: four standard errors of the least precise share, 0.5 / sqrt(1e6); fails by chance once in 1000.

    Twin: draws for another value i are elsewhere.
    """
    p, q = (jnp.asarray(row, jnp.float32) for row in distributions(6, 0.3, seed=3))
    values = [int(i) for i in np.flatnonzero(np.asarray(p) > 0.05)][:2]

    @jax.jit
    def drawn(value):
        shape = (DRAWS, 6) if name == "gumbel_max" else (DRAWS,)
        sample = jax.random.gumbel if name == "gumbel_max" else jax.random.uniform
        fresh = sample(jax.random.key(0), shape)
        log_p, log_q = jnp.log(p), jnp.log(q)
        if name == "gumbel_max":
            would = jax.vmap(lambda u: gumbel_argmax(log_q, gumbel_given_argmax(log_p, value, u)))(fresh)
        else:
            would = jax.vmap(lambda u: category_at(q, uniform_given_category(p, value, u)))(fresh)
        return jnp.mean(would[:, None] == jnp.arange(6)[None], axis=0)

    rows = np.asarray(every[name](p, q))
    first, second = (np.asarray(drawn(value)) for value in values)
    np.testing.assert_allclose(first, rows[values[0]], atol=2e-3)
    np.testing.assert_allclose(second, rows[values[1]], atol=2e-3)
    assert np.abs(first - rows[values[1]]).max() > 0.01


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    """Also where a probability is 0; ties in s have one-sided slopes and are left out."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        p, q = (jnp.asarray(row) for row in distributions(5, 0.0, seed=1))
        p = p.at[1].set(0.0)
        worth = jnp.arange(5.0)
        value = lambda q: gumbel_coupling(p, q).given(2) @ worth
        found, step = np.asarray(jax.grad(value)(q)), 1e-6
        moved = [(value(q.at[k].add(step)) - value(q.at[k].add(-step))) / (2 * step) for k in range(5)]
        np.testing.assert_allclose(found, moved, atol=1e-7)
        assert np.isfinite(jax.grad(value)(q.at[1].set(0.0))).all()  # 0 / 0 in s_1
