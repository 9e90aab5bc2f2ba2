"""Score tests of inferred noise: Fisher's identity, sizes, and twins that must be found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import Queue
from coulda.episodes import collect
from coulda.evaluation.diagnostics import spread_diagnostic
from coulda.evaluation.scores import Moments, Scores, of_noise, scores
from coulda.hindsight import Exact
from coulda.noise import Bernoulli, Categorical, Gumbel, Independent, Normal, Point, Uniform
from coulda.policies import AnyAction
from coulda.scales import skewed_z, student_above

KEY = jax.random.key(0)
SHIFT, SPREAD = "the noise of first states is shifted by", "its spread in first states is off by"


@pytest.mark.parametrize(
    "distribution", [Uniform(-1.0, 3.0), Normal(2.0, 0.5), Gumbel()], ids=["uniform", "normal", "gumbel"]
)
def test_noise_goes_to_normal_numbers_and_back(distribution):
    z = jnp.linspace(-4.0, 4.0, 33)
    np.testing.assert_allclose(distribution.to_normal(distribution.from_normal(z)), z, atol=5e-3)


def test_scores_of_mixed_noise_are_zero_on_average():
    """Deviations of 20,000 draws within 4.5 standard errors: 12 numbers, a false failure in 10⁴."""
    noise = Independent(
        {
            "a": Uniform(),
            "b": Categorical([0.2, 0.3, 0.5]),
            "c": Bernoulli(0.1, (2,)),
            "d": Point(1.0),
            "e": Gumbel((2,)),
        }
    )
    means, spreads = jax.jit(jax.vmap(lambda key: of_noise(noise, noise.sample(key))))(jax.random.split(KEY, 20_000))
    assert means.shape[1] == 1 + 2 + 2 + 2
    assert spreads.shape[1] == 1 + 2
    found = jnp.concatenate([means, spreads], 1)
    assert (jnp.abs(found.mean(0)) < 4.5 * found.std(0) / 20_000**0.5).all()


def test_the_mean_score_is_the_slope_of_the_log_evidence():
    """Fisher's identity, in the queue: in the scale of both speeds, and of the counts' noise.

    Means of 4,000 draws within 4.5 standard errors of the slope: a false failure in 10⁵.
    """
    make = lambda spread, error: Queue(horizon=3, spread=spread, count_error=error)
    world = make(0.5, 1.0)
    episode = jax.tree.map(lambda leaf: leaf[0], collect(KEY, world, AnyAction.of(world), 1).padded(3))
    evidence = lambda spread, error: float(Exact(make(spread, error)).log_evidence(episode))
    step = 0.02
    by_spread = (evidence(0.5 * np.exp(step), 1.0) - evidence(0.5 * np.exp(-step), 1.0)) / (2 * step)
    by_error = (evidence(0.5, np.exp(step)) - evidence(0.5, np.exp(-step))) / (2 * step)
    source = Exact(world)
    drawn, _ = jax.jit(lambda key: source.infer_many(key, episode, 4000))(KEY)
    each = jax.jit(jax.vmap(lambda one: scores(world, _one(one), episode, source.steps, observed=True)))(drawn)
    speeds = np.asarray(each.sums[SPREAD])[:, 2:].sum(1)
    counts = np.asarray(each.sums["its spread in observations is off by"]).sum(1)
    for values, slope in ((speeds, by_spread), (counts, by_error)):
        assert abs(values.mean() - slope) < 4.5 * values.std() / 4000**0.5 + 0.01


def _one(scenario):
    return jax.tree.map(lambda leaf: leaf[None], scenario)


@pytest.mark.parametrize("count", [30, 100])
def test_a_skewed_mean_of_zero_is_found_at_fault_as_often_as_said(count):
    """Squares of normal numbers, 20,000 samples, at 1 %: the share is within 4 standard errors of at most 1.3 %."""
    x = np.random.default_rng(0).normal(size=(20_000, count)) ** 2 - 1
    chance = lambda z: 2 * student_above(np.abs(z), count - 1)
    share = (chance(skewed_z(count, x.mean(1), (x**2).mean(1), (x**3).mean(1))) < 0.01).mean()
    assert share < 0.013 + 4 * (0.01 / 20_000) ** 0.5
    # The twin: Student's own t is too sure.
    plain = (chance(np.sqrt(count) * x.mean(1) / x.std(1, ddof=1)) < 0.01).mean()
    assert plain > 0.02


def _chances(shift=0.0, scale=1.0, logs=300, count=100):
    u = shift + scale * np.random.default_rng(1).normal(size=(logs, count, 3))
    return [_judged(one)[0].chance for one in u], [_judged(one)[1].chance for one in u]


def _judged(u):
    moments, once = Moments(), jnp.ones(len(u))
    moments.add(Scores({SHIFT: u, SPREAD: u**2 - 1}, {SHIFT: once, SPREAD: once}))
    return moments.groups(0.05)


def test_groups_have_their_size_and_find_what_is_wrong():
    """300 logs at 5 %: 4 standard errors are 5 points; a shift of 0.4 in all of three numbers is 7 deviations away."""
    shifted, spread = _chances()
    assert np.mean(np.array(shifted) < 0.05) < 0.10
    assert np.mean(np.array(spread) < 0.05) < 0.10
    assert np.mean(np.array(_chances(shift=0.4)[0]) < 0.001) > 0.95
    assert np.mean(np.array(_chances(scale=1.3)[1]) < 0.001) > 0.9


def test_numbers_that_follow_from_others_do_no_harm():
    u = np.random.default_rng(2).normal(size=(100, 2))
    twice = np.concatenate([u, u[:, :1], np.zeros((100, 1))], 1)
    once, again = (_judged(x)[0] for x in (u, twice))
    assert again.chance == pytest.approx(once.chance, rel=1e-3)


def test_small_shifts_do_not_count_however_long_the_log_is():
    u = 0.03 + np.random.default_rng(3).normal(size=(100_000, 1))
    assert _judged(u)[0].chance == 1.0


def test_a_rare_event_that_was_not_seen_is_known_to_the_model():
    returns = np.where(np.arange(2000) % 100 == 0, -50.0, np.arange(2000) % 2)
    lucky = np.arange(100.0) % 2
    assert spread_diagnostic(lucky)[0].verdict == "trust"
    assert spread_diagnostic(lucky, returns)[0].verdict == "caution"
    assert spread_diagnostic(np.tile(lucky, 10), returns)[0].verdict == "trust"
