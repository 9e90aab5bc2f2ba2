"""Answers that others have published or that follow in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda import SCM, Bernoulli, Gumbel, Mechanism, Normal, Uniform, counterfactual, do
from coulda.mechanisms import additive, exogenous, gumbel_max, inverse_cdf, table
from tests import zoo

KEY = jax.random.key(3)


def test_pearls_joe():
    """Pearl, Glymour & Jewell (2016), section 4.3.2: had Joe doubled his study time, he would have scored 1.90."""
    evidence = {"X": 0.5, "H": 1.0, "Y": 1.5}
    result = counterfactual(KEY, zoo.chain().scm, evidence, do(H=2.0), ["Y"])
    np.testing.assert_allclose(result.mean("Y"), 1.90, atol=1e-6)
    assert result.exact
    assert result.standard_error("Y") == 0
    np.testing.assert_allclose(result.effect("Y"), 0.40, atol=1e-6)
    np.testing.assert_allclose(result.noise["H"], [0.75], atol=1e-6)


def cause_and_effect() -> SCM:
    # C → E, E alone observed
    return SCM(
        noise={"C": Normal(), "E": Normal()},
        mechanisms={"C": exogenous(), "E": additive(("C",), lambda c: 4 * c)},
    )


@pytest.mark.parametrize("engine", ["importance", "nuts"])
def test_partial_evidence_has_the_conjugate_posterior(engine):
    """E = 4C + N(0, 1), E = 2 → C ~ N(8/17, 1/17) (Peters, Janzing & Schölkopf, 2017, example 3.4 and on)."""
    n = 20_000 if engine == "importance" else 12_000
    result = counterfactual(KEY, cause_and_effect(), {"E": 2.0}, query=["C"], abduction=engine, num_samples=n)
    mean = result.mean("C")
    variance = jnp.sum(jnp.exp(result.log_weights) * (result.samples["C"] - mean) ** 2)
    # 5 standard errors (false failure 6·10⁻⁷); NUTS draws are autocorrelated, at worst 4 for 1.
    error = 5 * result.standard_error("C") * (1 if engine == "importance" else 2)
    assert abs(mean - 8 / 17) < error
    assert abs(variance - 1 / 17) < 5 * (1 / 17) * np.sqrt(2 / (result.effective_sample_size / 4))
    assert abs(mean - 0.5) > error  # the twin: E/4, which forgets the prior


@pytest.mark.slow
def test_nuts_walks_uniform_and_gumbel_noise():
    """A hidden Uniform and a hidden Gumbel seen through their sum, against importance sampling."""
    scm = SCM(
        noise={"A": Uniform(0.0, 2.0), "B": Gumbel(), "C": Normal(0.0, 0.3)},
        mechanisms={"A": exogenous(), "B": exogenous(), "C": additive(("A", "B"), lambda a, b: a + b)},
    )
    reference = counterfactual(KEY, scm, {"C": 3.0}, query=["A", "B"], abduction="importance", num_samples=50_000)
    walked = counterfactual(KEY, scm, {"C": 3.0}, query=["A", "B"], abduction="nuts", num_samples=4_000)
    for node in ("A", "B"):
        error = np.hypot(reference.standard_error(node), 2 * walked.standard_error(node))
        assert abs(reference.mean(node) - walked.mean(node)) < 5 * error


P, Q = jnp.asarray([0.5, 0.3, 0.2]), jnp.asarray([0.2, 0.3, 0.5])


def switch(mechanism, noise) -> SCM:
    # A → X: A = 0 gives P, A = 1 gives Q
    return SCM({"A": Bernoulli(0.5), "X": noise}, {"A": Mechanism((), lambda u: u), "X": mechanism})


@pytest.mark.parametrize(
    ("scm", "expected"),
    [
        (switch(gumbel_max(("A",), lambda a: jnp.log(jnp.where(a, Q, P))), Gumbel((3,))), [0.4, 9 / 65, 6 / 13]),
        (switch(inverse_cdf(("A",), lambda a: jnp.where(a, Q, P)), Uniform()), [0.4, 0.6, 0.0]),
    ],
    ids=["gumbel_max", "inverse_cdf"],
)
def test_the_reparameterization_decides_the_counterfactual(scm, expected):
    """Category 0 was seen under P; what would Q have given on the same noise?"""
    n = 100_000
    seen = {"A": False, "X": 0}
    result = counterfactual(KEY, scm, seen, do(A=True), ["X"], abduction="importance", num_samples=n)
    found = np.asarray([result.probability("X", k) for k in range(3)])
    error = np.sqrt(np.asarray(expected) * (1 - np.asarray(expected)) / n)
    assert (np.abs(found - expected) <= 5 * error).all()  # false failure 2·10⁻⁶
    same = counterfactual(KEY, scm, seen, do(A=False), ["X"], abduction="importance", num_samples=n)
    assert same.probability("X", 0) == pytest.approx(1.0, abs=1e-6)
    assert (same.samples["X"] == 0).all()


def test_gumbel_noise_posterior_averages_back_to_the_prior():
    """Σ_x p(x) p(u | x) = p(u): mean Euler's γ and variance π²/6, coordinate by coordinate."""
    scm = SCM({"X": Gumbel((3,))}, {"X": gumbel_max((), lambda: jnp.log(P))})
    n = 100_000
    evidence = scm.sample(jax.random.key(5), n)
    noise = np.asarray(counterfactual(KEY, scm, evidence, num_samples=1).noise["X"])[:, 0]
    error = np.pi / np.sqrt(6 * n)
    assert (np.abs(noise.mean(0) - np.euler_gamma) < 5 * error).all()
    # Var of the sample variance of a Gumbel: (kurtosis 5.4 - 1) σ⁴ / n
    assert (np.abs(noise.var(0) - np.pi**2 / 6) < 5 * (np.pi**2 / 6) * np.sqrt(4.4 / n)).all()
    first = noise[np.asarray(evidence["X"]) == 0]
    assert abs(first[:, 0].mean() - np.euler_gamma) > 10 * error  # the twin: one outcome alone is not the prior


def test_hidden_cause_by_enumeration_is_exact():
    """Bayes by hand: P(D) = .2, P(+|D) = .9, P(+|¬D) = .1 → P(D|+) = .18/.26."""
    scm = SCM(
        {"D": Bernoulli(0.2), "T": Bernoulli(0.1)},
        {"D": Mechanism((), lambda u: u), "T": Mechanism(("D",), lambda d, u: d ^ u)},
    )
    result = counterfactual(KEY, scm, {"T": True}, do(D=False), ["D", "T"])
    assert result.exact
    np.testing.assert_allclose(-result.effect("D"), 0.18 / 0.26, rtol=1e-6)  # D is False had we done I
    # With D taken away, the test is positive only where it erred: P(U_T = 1 | +) = .08 / .26.
    np.testing.assert_allclose(result.mean("T"), 0.08 / 0.26, rtol=1e-6)


def test_a_table_is_its_own_interventional_distribution():
    scm = SCM({"X": Uniform()}, {"X": table((), [0.25, 0.0, 0.75])})
    u = jnp.linspace(0.0, 1.0, 4001)[:-1]
    counts = np.bincount(np.asarray(jax.vmap(lambda u: scm.simulate({"X": u})["X"])(u)), minlength=3)
    np.testing.assert_array_equal(counts, [1000, 0, 3000])
