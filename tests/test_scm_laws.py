"""Laws that hold for every structural causal model, tested over the zoo."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda import SCM, counterfactual, do
from coulda.abduction import ENGINES, Posterior, choose
from coulda.noise import Bernoulli, Categorical, Empirical, Gumbel, Independent, Normal, Point, Uniform
from tests import zoo

KEY = jax.random.key(20190501)
ROWS, DRAWS = 100, 20


def slow_except(*fast):
    """All specimens, those that differ from others in detail only in the slow run."""
    return [pytest.param(make, marks=[] if make in fast else [pytest.mark.slow]) for make in zoo.SPECIMENS]


@pytest.fixture(
    params=slow_except(*(make for make in zoo.SPECIMENS if make is not zoo.nonlinear_additive)),
    ids=lambda make: make.__name__,
)
def specimen(request) -> zoo.Specimen:
    return request.param()


# One an engine and one a reparameterization, where every specimen is a program more.
few_specimens = pytest.mark.parametrize(
    "make",
    slow_except(zoo.chain, zoo.collider, zoo.discrete_gumbel, zoo.partially_observed, zoo.waiting_times),
    ids=lambda make: make.__name__,
)


def rows_of(specimen: zoo.Specimen, n: int = ROWS) -> dict:
    values = specimen.scm.sample(KEY, n)
    return {name: np.asarray(values[name]) for name in specimen.observed}


def row_of(specimen: zoo.Specimen, i: int) -> dict:
    return {name: jnp.asarray(value[i]) for name, value in rows_of(specimen).items()}


def assert_trees_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


class PriorPosterior(eqx.Module):
    """The twin that must fail: it ignores the evidence."""

    def refuses(self, scm, observed):
        return None

    def __call__(self, key, scm, evidence, num_samples):
        draws = jax.vmap(scm.noise_prior.sample)(jax.random.split(key, num_samples))
        return Posterior(Empirical(draws), exact=False)


def test_auto_picks_the_engine_that_fits(specimen):
    engine, method = choose("auto", specimen.scm, specimen.observed)
    assert engine is ENGINES[specimen.engine]
    assert method.startswith(specimen.engine)


def test_no_intervention_reproduces_the_evidence_bit_for_bit(specimen):
    evidence = rows_of(specimen)
    result = counterfactual(KEY, specimen.scm, evidence, num_samples=DRAWS)
    for name, value in evidence.items():
        draws = result.samples[name]
        np.testing.assert_array_equal(draws, np.broadcast_to(np.asarray(value)[:, None], draws.shape))


def test_inferred_noise_itself_replays_the_evidence(specimen):
    """The noise, run through the mechanisms with nothing held fixed, gives back what was seen."""
    evidence = rows_of(specimen)
    result = counterfactual(KEY, specimen.scm, evidence, num_samples=DRAWS)
    floats = [v for v in evidence.values() if jnp.issubdtype(v.dtype, jnp.floating)]
    # 20 units in the last place of the largest value; a quantile inverts a CDF, whose tail is flat.
    tolerance = max([20 * np.spacing(np.abs(v).max()) for v in floats], default=0.0)
    tolerance = 5e-3 if specimen.name == "waiting_times" else tolerance
    assert result.replay_error.max() <= tolerance


def test_a_wrong_posterior_does_not_replay(specimen):
    result = counterfactual(KEY, specimen.scm, rows_of(specimen), abduction=PriorPosterior(), num_samples=DRAWS)
    assert result.replay_error.max() > 0.1


def test_interventions_on_different_nodes_commute(specimen):
    noise = specimen.scm.noise_prior.sample(KEY)
    one = specimen.second(specimen.first(specimen.scm)).simulate(noise)
    other = specimen.first(specimen.second(specimen.scm)).simulate(noise)
    assert_trees_equal(one, other)


@few_specimens
def test_intervening_with_the_observed_value_changes_nothing(make):
    """Consistency: do(X = x) where x was seen anyway."""
    specimen = make()
    node, evidence, key = specimen.observed[0], row_of(specimen, 0), jax.random.split(KEY, ROWS)[0]
    kept = counterfactual(KEY, specimen.scm, rows_of(specimen), num_samples=DRAWS)
    redone = counterfactual(key, specimen.scm, evidence, do({node: evidence[node]}), num_samples=DRAWS)
    for name in specimen.scm.order:
        np.testing.assert_allclose(redone.mean(name), kept.mean(name)[0], rtol=1e-4, atol=5e-4)


def test_an_intervention_reaches_its_descendants_only(specimen):
    evidence = rows_of(specimen)
    result = counterfactual(KEY, specimen.scm, evidence, specimen.first, num_samples=DRAWS)
    (target,) = specimen.first.targets
    downstream = {target}
    for name, parents in specimen.scm.graph.items():
        if downstream.intersection(parents):
            downstream.add(name)
    for name in set(specimen.scm.order) - downstream:
        assert_trees_equal(result.samples[name], result.factual[name])


# One an engine: outside a program, every operation is compiled as one of its own.
@pytest.mark.parametrize(
    "make", slow_except(zoo.fork, zoo.collider, zoo.partially_observed), ids=lambda make: make.__name__
)
def test_jit_equals_eager(make):
    specimen = make()
    evidence = row_of(specimen, 0)
    jitted = counterfactual(KEY, specimen.scm, evidence, specimen.first, num_samples=DRAWS)
    with jax.disable_jit():
        eager = counterfactual(KEY, specimen.scm, evidence, specimen.first, num_samples=DRAWS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), jitted.samples, eager.samples)


@few_specimens
def test_rows_equal_a_loop(make):
    specimen = make()
    together = counterfactual(KEY, specimen.scm, rows_of(specimen), specimen.first, num_samples=DRAWS)
    for i, key in enumerate(jax.random.split(KEY, ROWS)[:4]):
        alone = counterfactual(key, specimen.scm, row_of(specimen, i), specimen.first, num_samples=DRAWS)
        for name in specimen.scm.order:
            np.testing.assert_allclose(together.samples[name][i], alone.samples[name], rtol=1e-5, atol=1e-5)


def _lemma_1_gap(specimen: zoo.Specimen, abduction, resample=()) -> float:
    """|E_x̂[E[X_q | x̂, do(I)]] - E[X_q | do(I)]| in standard errors."""
    n = 4_000
    evidence = rows_of(specimen, n)
    result = counterfactual(
        KEY,
        specimen.scm,
        evidence,
        specimen.first,
        [specimen.query],
        abduction=abduction,
        num_samples=4,
        resample=resample,
    )
    averaged = np.asarray(result.mean(specimen.query), float).reshape(n, -1)
    direct = np.asarray(specimen.first(specimen.scm).sample(jax.random.key(7), n)[specimen.query], float).reshape(n, -1)
    gap = averaged.mean(0) - direct.mean(0)
    return np.max(np.abs(gap) / np.sqrt((averaged.var(0) + direct.var(0)) / n + 1e-12))


class ShiftedPosterior(eqx.Module):
    """The biased twin: the right noise, moved by a little."""

    def refuses(self, scm, observed):
        return None

    def __call__(self, key, scm, evidence, num_samples):
        engine, _ = choose("auto", scm, tuple(evidence))
        posterior = engine(key, scm, evidence, num_samples)
        shifted = jax.tree.map(lambda u: u + 0.3 if u.dtype == jnp.float32 else u, posterior.noise.values)
        return Posterior(Empirical(shifted, posterior.noise.log_weights), exact=False)


# 5 standard errors, at most 3 coordinates: a false failure in 6·10⁻⁷ of 3 tries a specimen.
@pytest.mark.parametrize("make", [zoo.chain, pytest.param(zoo.linear_gaussian, marks=pytest.mark.slow), zoo.fork])
def test_lemma_1_statistically(make):
    specimen = make()
    assert _lemma_1_gap(specimen, "auto") < 5
    assert _lemma_1_gap(specimen, ShiftedPosterior()) > 5


@pytest.mark.parametrize("make", [zoo.discrete_gumbel, zoo.waiting_times])
def test_lemma_1_statistically_discrete(make):
    assert _lemma_1_gap(make(), "auto") < 5


@pytest.mark.parametrize("make", [zoo.chain, zoo.discrete_gumbel])
def test_corollary_2_statistically(make):
    """Any subset of the noise may be drawn afresh."""
    specimen = make()
    for resample in ([specimen.query], specimen.scm.order):
        assert _lemma_1_gap(specimen, "auto", resample=resample) < 5


def _distribution(values: dict, weights: np.ndarray) -> dict[tuple, float]:
    """Joint distribution over all nodes as {values: probability}."""
    table: dict[tuple, float] = {}
    rows = zip(*(np.asarray(v).tolist() for v in values.values()), strict=True)
    for row, weight in zip(rows, np.asarray(weights, float), strict=True):
        table[row] = table.get(row, 0.0) + weight
    return table


def _average_counterfactual(specimen: zoo.Specimen, inferred: frozenset[str]) -> dict[tuple, float]:
    """E_x̂[p^{do(I) | x̂}(x)], enumerated over every possible piece of evidence and all noise.

    Noise outside `inferred` comes from the prior (Corollary 2; all of it inferred is Lemma 1).
    """
    scm, intervened = specimen.scm, specimen.first(specimen.scm)
    noise, log_p = scm.noise_prior.atoms()
    prior = np.exp(np.asarray(log_p, float))
    observed = jax.vmap(scm.simulate)(noise)
    seen = list(zip(*(np.asarray(observed[name]).tolist() for name in specimen.observed), strict=True))
    total: dict[tuple, float] = {}
    for evidence in set(seen):
        consistent = np.asarray([row == evidence for row in seen])
        for i in np.flatnonzero(consistent):
            posterior = prior[i] / prior[consistent].sum()
            for j in range(len(prior)):
                mixed = {n: (noise[n][i] if n in inferred else noise[n][j]) for n in noise}
                row = tuple(np.asarray(v).item() for v in intervened.simulate(mixed).values())
                total[row] = total.get(row, 0.0) + prior[consistent].sum() * posterior * prior[j]
    return total


@pytest.mark.parametrize(
    "inferred", [{"D", "S", "V"}, {"D"}, {"S"}, {"D", "V"}, set()], ids=lambda names: "-".join(sorted(names)) or "none"
)
def test_lemma_1_and_corollary_2_exactly(inferred):
    specimen = zoo.partially_observed()
    intervened = specimen.first(specimen.scm)
    noise, log_p = specimen.scm.noise_prior.atoms()
    values = jax.vmap(intervened.simulate)(noise)
    direct = _distribution({name: values[name] for name in intervened.order}, np.exp(log_p))
    averaged = _average_counterfactual(specimen, frozenset(inferred))
    assert averaged.keys() == direct.keys()
    np.testing.assert_allclose([averaged[k] for k in direct], list(direct.values()), atol=1e-6)


def test_lemma_1_fails_when_the_evidence_comes_from_another_model():
    """The twin: the lemma asks for x̂ ~ p, and says nothing when the model is wrong."""
    specimen = zoo.partially_observed()
    believed = SCM(
        noise=specimen.scm.noise | {"D": type(specimen.scm.noise["D"])(0.7)}, mechanisms=specimen.scm.mechanisms
    )
    evidence = rows_of(specimen, 5000)
    answer = counterfactual(KEY, believed, evidence, do(S=0), ["V"]).mean("V").mean()
    truth = do(S=0)(believed).sample(KEY, 20_000)["V"].mean()
    assert abs(answer - truth) > 0.05


def test_noise_of_other_nodes_does_not_move_when_a_node_is_added():
    short = Independent({"X": zoo.chain().scm.noise["X"]}).sample(KEY)
    long = zoo.chain().scm.noise_prior.sample(KEY)
    np.testing.assert_array_equal(short["X"], long["X"])


MANY = [
    Independent({"a": Normal(jnp.arange(3.0), 2.0), "b": Gumbel((2,)), "c": Bernoulli(0.3), "d": Point(jnp.ones(2))}),
    Independent({"a": Uniform(jnp.zeros(2), jnp.array([1.0, 3.0]), (2,)), "b": Normal(shape=(2, 2))}),
]


@pytest.mark.parametrize("distribution", MANY)
def test_many_draws_begin_with_the_single_one(distribution):
    """Bit for bit: the numbers of a row are counted, and do not depend on its length."""
    key = jax.random.key(0)
    single, few, many = distribution.sample(key), distribution.draws(key, 2), distribution.draws(key, 5)
    for one, two, five in zip(*map(jax.tree.leaves, (single, few, many)), strict=True):
        np.testing.assert_array_equal(one, five[0])
        np.testing.assert_array_equal(two, five[:2])
        assert one.size == 1 or five.shape == (5, *one.shape)


@pytest.mark.parametrize("weights", [[0.5, 0.0, 0.3, 0.2, 0.0], [0.2, 0.0, 0.3, 0.5, 0.0]])
def test_draws_by_weight_have_their_frequencies(weights):
    """4.5 standard errors of five frequencies: one false failure in 30,000. The twin's weights are another's."""
    n, right = 20_000, np.array([0.5, 0.0, 0.3, 0.2, 0.0])
    with np.errstate(divide="ignore"):
        logits = jnp.log(jnp.asarray(weights))
    categories = Categorical(logits=logits).draws(jax.random.key(1), n)
    chosen = Empirical(jnp.arange(5.0), logits).draws(jax.random.key(2), n).astype(int)
    for drawn in (categories, chosen):
        share = np.bincount(drawn, minlength=5) / n
        assert (share[[1, 4]] == 0).all()
        far = np.abs(share - right) > 4.5 * np.sqrt(right * (1 - right) / n)
        assert far.any() == (weights[0] != 0.5)
