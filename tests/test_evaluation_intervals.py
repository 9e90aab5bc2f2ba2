"""Intervals and diagnostics against SciPy, published numbers, and each other."""

import json

import numpy as np
import pytest
from scipy import stats

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import graded, pareto_shape, spread_diagnostic, weight_diagnostics
from coulda.evaluation.estimate import Estimate, plain
from coulda.evaluation.intervals import BOOTSTRAP_LIMIT, Interval, Precision, Ratios, bca, bernstein, student, widened
from coulda.evaluation.weights import Weighted

RNG = np.random.default_rng(0)
SKEWED = RNG.gamma(0.7, size=80)


def ratio() -> Ratios:
    weights = RNG.gamma(2.0, size=60)
    return Ratios(RNG.normal(size=60), (weights * RNG.normal(1, 1, 60))[:, None], weights[:, None])


def test_student_is_scipys():
    expected = stats.ttest_1samp(SKEWED, 0).confidence_interval(0.9)
    found = student(SKEWED, 0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_bca_is_scipys():
    expected = stats.bootstrap((SKEWED,), np.mean, method="BCa", n_resamples=20_000, rng=1).confidence_interval
    found = bca(np.random.default_rng(2), Ratios.mean_of(SKEWED), 0.95, resamples=20_000)
    # Quantiles of 20,000 resamples are good to 1 % of the width.
    assert (found.low, found.high) == pytest.approx(
        (expected.low, expected.high), abs=0.02 * (expected.high - expected.low)
    )
    # The twin: the plain percentile interval is elsewhere, by more than that.
    percentile = stats.bootstrap((SKEWED,), np.mean, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    assert abs(percentile.high - expected.high) > 0.02 * (expected.high - expected.low)


@pytest.mark.parametrize("unit", [2.0**-600, 2.0**300])
def test_the_smallest_and_largest_terms_are_judged_as_others_are(unit):
    """Weights of a nearly deterministic policy are products of the smallest probabilities: their cubes are 0."""
    found = bca(np.random.default_rng(2), Ratios.mean_of(unit * SKEWED), 0.95)
    expected = bca(np.random.default_rng(2), Ratios.mean_of(SKEWED), 0.95)
    assert (found.low / unit, found.high / unit) == pytest.approx((expected.low, expected.high))
    assert spread_diagnostic(unit * SKEWED)[0].value == pytest.approx(spread_diagnostic(SKEWED)[0].value)


def test_bca_of_a_ratio_is_scipys():
    one = ratio()

    def theta(plain, numerator, denominator, axis=-1):
        return plain.mean(axis) + numerator.mean(axis) / denominator.mean(axis)

    data = one.plain, one.numerator[:, 0], one.denominator[:, 0]
    expected = stats.bootstrap(data, theta, paired=True, method="BCa", n_resamples=20_000, rng=1).confidence_interval
    found = bca(np.random.default_rng(2), one, 0.95, resamples=20_000)
    assert (found.low, found.high) == pytest.approx(
        (expected.low, expected.high), abs=0.02 * (expected.high - expected.low)
    )


def test_terms_average_to_the_value_and_linearize_it():
    one = ratio()
    assert one.terms.mean() == pytest.approx(one.value)
    n = len(one.plain)
    # The influence of an episode is what leaving it out changes, times N - 1, to first order.
    left_out = (one.value - one.leave_one_out()) * (n - 1)
    assert np.corrcoef(left_out, one.terms - one.value)[0, 1] > 0.999


def test_resampling_is_repeating():
    one = ratio()
    counts = RNG.multinomial(60, np.full(60, 1 / 60), size=3)
    for found, count in zip(one.resampled(counts.astype(float)), counts, strict=True):
        rows = np.repeat(np.arange(60), count)
        again = Ratios(one.plain[rows], one.numerator[rows], one.denominator[rows])
        assert found == pytest.approx(again.value)


def test_bernstein_by_hand():
    terms = np.array([0.0, 1.0] * 50)
    log = np.log(4 / 0.05)
    half = np.sqrt(2 * terms.var(ddof=1) * log / 100) + 7 * log / (3 * 99)
    found = bernstein(terms, 0.95, (0.0, 1.0))
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))
    assert found.width > student(terms, 0.95).width
    with pytest.raises(CouldaError, match="outside bounds"):
        bernstein(terms, 0.95, (0.0, 0.5))
    with pytest.raises(CouldaError, match="give bounds="):
        Precision(interval="bernstein")


def test_precision_names_the_interval():
    """Each kind is the one that is asked for; weighted terms have no bounds, so that they keep both others."""
    ratios = Ratios.mean_of(SKEWED)
    bounded = Precision(0.9, "bernstein", (0.0, 10.0))
    assert bounded.of_returns(RNG, ratios) == bernstein(SKEWED, 0.9, (0.0, 10.0))
    assert bounded.of_weighted(RNG, ratios).kind == "bca and student"
    assert Precision(0.9).of_returns(RNG, ratios) == student(SKEWED, 0.9)
    assert Precision(0.9, "student").of_weighted(RNG, ratios) == student(SKEWED, 0.9)
    assert Precision(interval="bca").of_returns(RNG, ratios).kind == "bca"
    both, alone = (Precision(0.9, kind).of_weighted(np.random.default_rng(1), ratios) for kind in (None, "bca"))
    symmetric = student(SKEWED, 0.9)
    assert (both.low, both.high) == (min(alone.low, symmetric.low), max(alone.high, symmetric.high))
    assert both.width > max(alone.width, symmetric.width)  # skewed terms: each reaches further on one side


def test_an_interval_with_an_error_of_another_kind():
    """Independent errors add up as squares: 3 and 4 standard errors of many degrees of freedom are 5."""
    plain = Interval(1 - 3 * 1.959964, 1 + 3 * 1.959964, 0.95, "student")
    found = widened(plain, 1.0, 4.0, 10**9, "log")
    assert (found.low, found.high) == pytest.approx((1 - 5 * 1.959964, 1 + 5 * 1.959964), rel=1e-5)
    assert found.kind == "student and log"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"interval": "magic"}, "use one of 'student', 'bca', 'bernstein'"), ({"level": 95.0}, "between 0 and 1"),
     ({"level": float("nan")}, "between 0 and 1"), ({"scenarios": 0}, "draw at least 1")],
)  # fmt: skip
def test_a_precision_that_means_nothing_is_refused(wrong, message):
    with pytest.raises(CouldaError, match=message):
        Precision(**wrong)


def test_long_logs_do_not_wait_for_the_bootstrap():
    terms = RNG.normal(size=BOOTSTRAP_LIMIT + 1)
    assert bca(RNG, Ratios.mean_of(terms), 0.95).kind == "student"


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_the_tail_shape_is_found(shape: float):
    weights = stats.genpareto.rvs(shape, size=50_000, random_state=3)
    # 670 values in the tail: the standard error of the shape is (1 + k) / √670 = 0.05 to 0.07; three of them.
    assert pareto_shape(weights) == pytest.approx(shape, abs=0.21)


@pytest.mark.parametrize("large", [100, 110, 120])
def test_equal_excesses_have_a_shape(large: int):
    """Their largest weights tie, which puts a θ of exactly 0 on the grid of the fit."""
    weights = np.ones(2000)
    weights[:large] = 2
    assert pareto_shape(weights) < 0


def test_a_nan_is_never_trusted():
    assert graded(float("nan"), 0.1, 0.2) == "do not trust"
    for value, terms in ((np.nan, [1.0, 2.0]), (1.0, [np.nan, 2.0]), (np.inf, [1.0, np.inf])):
        estimate = Estimate("IS", value, Interval(0.0, 1.0, 0.95, "student"), np.array(terms), 2.0)
        assert (estimate.status, estimate.verdict, estimate.value) == ("not finite", "do not trust", None)
        json.dumps(plain(estimate), allow_nan=False)


def test_bounded_weights_have_no_tail():
    assert pareto_shape(np.ones(1000)) == -np.inf
    assert pareto_shape(RNG.uniform(size=5000)) < 0
    assert pareto_shape(np.ones(10)) == np.inf


def verdicts(weights) -> dict[str, str]:
    log_ratio = np.log(weights)[:, None]
    return {d.name: d.verdict for d in weight_diagnostics(Weighted(log_ratio, np.zeros_like(log_ratio)))}


def test_verdicts_of_weights():
    equal = verdicts(np.ones(300))
    assert set(equal.values()) == {"trust"}
    assert verdicts(np.ones(60))["effective sample size"] == "caution"
    one_carries_all = np.full(500, 1e-6)
    one_carries_all[0] = 500
    found = verdicts(one_carries_all)
    assert found["effective sample size"] == "do not trust"
    # Half of what the policy does was never done: weights average one half.
    assert verdicts(0.5 * RNG.uniform(0.9, 1.1, 500))["overlap"] == "do not trust"
    assert verdicts(RNG.uniform(0.9, 1.1, 500))["overlap"] == "trust"
