"""Draws of a taped generator are those of NumPy's distributions, each a function of its own numbers."""

import numpy as np
import pytest
from scipy import stats

from coulda.environments.tape import TapedGenerator, TapeError

GRID = ((np.arange(4000) + 0.5) / 4000).tolist()


def taped(row, watch=False):
    generator = TapedGenerator()
    generator.load(row, "step", watch=watch)
    return generator


def test_every_method_of_numpys_generator_is_taped():
    public = [name for name in dir(np.random.Generator) if not name.startswith("_")]
    assert [name for name in public if name not in vars(TapedGenerator)] == []


@pytest.mark.parametrize(
    ("name", "arguments", "reference"),
    [
        ("random", (), stats.uniform()),
        ("uniform", (2, 5), stats.uniform(2, 3)),
        ("normal", (1, 2), stats.norm(1, 2)),
        ("standard_normal", (), stats.norm()),
        ("lognormal", (0, 0.5), stats.lognorm(0.5)),
        ("exponential", (3,), stats.expon(scale=3)),
        ("gamma", (2.0, 3.0), stats.gamma(2, scale=3)),
        ("chisquare", (3,), stats.chi2(3)),
        ("beta", (2, 3), stats.beta(2, 3)),
        ("standard_t", (5,), stats.t(5)),
        ("standard_cauchy", (), stats.cauchy()),
        ("gumbel", (1, 2), stats.gumbel_r(1, 2)),
        ("logistic", (1, 2), stats.logistic(1, 2)),
        ("laplace", (1, 2), stats.laplace(1, 2)),
        ("rayleigh", (2,), stats.rayleigh(scale=2)),
        ("weibull", (2,), stats.weibull_min(2)),
        ("pareto", (3,), stats.lomax(3)),
        ("power", (3,), stats.powerlaw(3)),
        ("triangular", (0, 1, 3), stats.triang(1 / 3, 0, 3)),
        ("poisson", (4.2,), stats.poisson(4.2)),
        ("binomial", (10, 0.3), stats.binom(10, 0.3)),
        ("geometric", (0.3,), stats.geom(0.3)),
        ("integers", (2, 9), stats.randint(2, 9)),
    ],
)
def test_draws_go_by_the_inverse_cdf(name, arguments, reference):
    found = getattr(taped(GRID), name)(*arguments, size=len(GRID))
    np.testing.assert_allclose(found, reference.ppf(GRID), rtol=2e-3)
    single = getattr(taped(GRID[1234:]), name)(*arguments)
    np.testing.assert_allclose(single, found[1234])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("poisson", (2.4,)), ("poisson", (3000.0,)), ("binomial", (6, 0.5)), ("geometric", (0.3,)), ("integers", (3, 8)),
     ("choice", ([4, 5, 6],)), ("choice", ([4, 5, 6], None, True, [0.2, 0.0, 0.8]))],
)  # fmt: skip
def test_one_draw_is_what_it_is_among_many(name, arguments):
    """Single draws have a quick way of their own, by tables."""
    row = np.float32(np.arange(0, 1, 1 / 97)).tolist()
    many = list(arguments)
    if name == "choice":
        many[1:2] = [len(row)]
        together = getattr(taped(row), name)(*many)
    else:
        together = getattr(taped(row), name)(*many, size=len(row))
    alone = [getattr(taped([u]), name)(*arguments) for u in row]
    np.testing.assert_array_equal(alone, together)


def test_arguments_may_be_named_and_arrays():
    assert taped([0.3]).normal(loc=1.0, scale=0.0) == 1.0
    assert taped([0.3, 0.9]).poisson(lam=np.array([0.0, 50.0])).shape == (2,)
    assert taped([0.3, 0.9]).integers([1, 10], [2, 11]).tolist() == [1, 10]
    assert taped([0.99]).integers(3, endpoint=True) == 3


def test_choices_and_orders():
    assert np.bincount(taped(GRID).choice(4, 4000, p=[0.1, 0.2, 0.3, 0.4])).tolist() == [400, 800, 1200, 1600]
    assert taped([0.05]).choice(["a", "b"], p=[0.1, 0.9]) == "a"
    assert taped([0.15]).choice(["a", "b"], p=[0.1, 0.9]) == "b"
    assert sorted(taped([0.5, 0.1, 0.9]).permutation(3).tolist()) == [0, 1, 2]
    cards = [1, 2, 3]
    taped([0.5, 0.1, 0.9]).shuffle(cards)
    assert cards == [2, 1, 3]
    assert len(set(taped([0.5, 0.1, 0.9, 0.2]).choice(4, 3, replace=False).tolist())) == 3
    assert taped([0.5] * 4).multivariate_normal([1.0, 2.0], np.eye(2), size=2).tolist() == [[1.0, 2.0]] * 2


def test_what_has_no_inverse_cdf_is_still_a_function_of_the_tape():
    one, same, other = (taped([u]).multinomial(1000, [0.2, 0.8]) for u in (0.3, 0.3, 0.7))
    assert (one == same).all()
    assert (one != other).any()


def test_a_call_too_many_says_which():
    generator = taped([0.1, 0.2])
    generator.random()
    with pytest.raises(TapeError, match=r"`normal` needs 2 after 1 .* tape has 2; give GymSimulator draws_per_step=5"):
        generator.normal(size=2)


def test_raw_bits_are_refused():
    with pytest.raises(TapeError, match="bit_generator"):
        _ = taped([0.1]).bit_generator


def test_a_watched_draw_knows_what_it_is_compared_with():
    generator = taped([0.3, 0.3, 0.3], watch=True)
    assert (np.array([0.1, 0.5, 1.0]) > generator.random()).tolist() == [False, True, True]
    assert generator.cuts[0] == {0.1, 0.5, 1.0}
    assert generator.normal(1.0, 2.0) < 3.0
    np.testing.assert_allclose(list(generator.cuts[1]), stats.norm.cdf(1.0), atol=1e-7)
    generator.poisson(0.5)
    np.testing.assert_allclose(sorted(generator.cuts[2])[:3], stats.poisson(0.5).cdf([0, 1, 2]))
