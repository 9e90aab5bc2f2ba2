"""What the SCM core refuses and how it says so; interventions, engines, pictures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coulda
from coulda import (
    SCM,
    Bernoulli,
    Categorical,
    Empirical,
    Independent,
    Mechanism,
    Normal,
    Point,
    SCMError,
    Uniform,
    counterfactual,
    do,
    mix,
)
from coulda.abduction import choose
from coulda.errors import CouldaError
from coulda.mechanisms import additive, exogenous, gumbel_max, table, uniformize
from tests import zoo

KEY = jax.random.key(11)
IDENTITY = Mechanism((), lambda u: u)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SCM({}, {}), "at least one mechanism"),
        (lambda: SCM({}, {"X": IDENTITY}), "mechanism 'X' has no noise entry; noise has \\[\\]. Add `X=`"),
        (lambda: SCM({"X": 1.0}, {"X": IDENTITY}), "the noise of 'X' is a float"),
        (lambda: SCM({"X": Normal()}, {"X": lambda u: u}), "mechanism 'X' is a function"),
        (lambda: SCM({"X": Normal()}, {"X": Mechanism(("Z",), lambda z, u: z)}), "unknown parent 'Z'"),
        (lambda: SCM({"X": Normal(), "Z": Normal()}, {"X": IDENTITY}), "noise \\['Z'\\] belongs to no mechanism"),
        (
            lambda: SCM(
                {"X": Normal(), "Y": Normal()},
                {"X": Mechanism(("Y",), lambda y, u: y), "Y": Mechanism(("X",), lambda x, u: x)},
            ),
            "cycle: X → Y → X",
        ),
        (
            lambda: SCM(
                {"X": Normal(shape=(2,)), "Y": Normal(shape=(3,))},
                {"X": IDENTITY, "Y": Mechanism(("X",), lambda x, u: x + u)},
            ),
            "mechanism 'Y' fails on its inputs X: float32\\[2\\], noise: float32\\[3\\]",
        ),
        (lambda: do(Z=1.0)(zoo.chain().scm), "do: unknown node \\['Z'\\]"),
        (lambda: do(H=lambda x: x), "bare function"),
        (lambda: do(H=jnp.ones(3))(zoo.chain().scm), "do\\(H=…\\) gives .*3"),
        (lambda: do(A=0.5)(zoo.bandit().scm), "float32 is not int32"),
        (lambda: table(("X",), [0.5, 0.5]), "needs 2 axes"),
        (lambda: table((), [0.5, 0.4]), "sum to 1"),
        (lambda: uniformize({"X": exogenous()}), "'X' is a Exogenous"),
        (lambda: zoo.chain().scm.draw(observed=["Q"]), "unknown node \\['Q'\\]"),
    ],
)
def test_bad_structure_is_refused_with_the_node_named(build, message):
    with pytest.raises(CouldaError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Uniform(1.0, 0.0), "low < high"),
        (lambda: Normal(0.0, 0.0), "scale > 0"),
        (lambda: Bernoulli(1.2), "0 ≤ probability ≤ 1"),
        (lambda: Categorical([0.5, 0.6]), "sum to 1"),
        (lambda: Categorical([1.5, -0.5]), "≥ 0"),
        (lambda: Categorical(), "either probabilities"),
        (lambda: Empirical({"a": jnp.ones(3), "b": jnp.ones(2)}), "one leading axis"),
        (lambda: Empirical(jnp.ones(3), jnp.ones(2)), "3 values and log_weights of shape \\(2,\\)"),
        (lambda: mix(Point({"a": 1.0}), Independent({"a": Normal()}), ["b"]).sample(KEY), "unknown noise \\['b'\\]"),
    ],
)
def test_bad_noise_is_refused(build, message):
    with pytest.raises(CouldaError, match=message):
        build()


JOE = {"X": 0.5, "H": 1.0, "Y": 1.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evidence": {"Q": 1.0}}, "evidence on unknown node \\['Q'\\]"),
        ({"evidence": JOE | {"Y": jnp.nan}}, "evidence on 'Y' is not finite"),
        ({"evidence": JOE | {"Y": jnp.ones((2, 2))}}, "evidence on 'Y' has shape \\(2, 2\\)"),
        ({"evidence": {"X": jnp.ones(2), "H": jnp.ones(3)}}, "different numbers of rows: \\[2, 3\\]"),
        ({"evidence": {"X": jnp.ones(2), "H": 1.0}}, "different numbers of rows: \\[0, 2\\]"),
        ({"evidence": {"X": {"a": 1.0}}}, "evidence on 'X' is PyTreeDef"),
        ({"evidence": JOE, "query": ["Q"]}, "query: unknown node"),
        ({"evidence": JOE, "resample": ["Q"]}, "resample: unknown node"),
        ({"evidence": JOE, "intervention": do(Q=1.0)}, "do: unknown node"),
        ({"evidence": JOE, "abduction": "magic"}, "'magic' is unknown; choose from"),
        ({"evidence": JOE, "abduction": "enumeration"}, "the noise of .* \\(Normal\\) is not finite"),
        ({"evidence": {"Y": 1.0}, "abduction": "inversion"}, "'Y' is observed but its parents"),
    ],
)
def test_bad_questions_are_refused(arguments, message):
    with pytest.raises(SCMError, match=message):
        counterfactual(KEY, zoo.chain().scm, **arguments)


def test_evidence_of_probability_zero_is_an_error_that_says_so():
    scm = zoo.discrete_gumbel().scm  # Y = 2 never gives Z = 0
    with pytest.raises(SCMError, match=r"probability zero.*'Z': 0"):
        counterfactual(KEY, scm, {"X": 0, "Y": 2, "Z": 0})
    with pytest.raises(SCMError, match="in 1 of 2 rows, the first of them row 1"):
        counterfactual(KEY, scm, {"X": np.array([0, 0]), "Y": np.array([2, 2]), "Z": np.array([1, 0])})
    with pytest.raises(SCMError, match="probability zero"):
        counterfactual(KEY, zoo.nonlinear_additive().scm, {"X": 1.5})  # X is uniform on [-1, 1)


def test_no_engine_for_an_opaque_continuous_mechanism():
    scm = SCM({"X": Normal()}, {"X": Mechanism((), lambda u: u**3)})
    with pytest.raises(SCMError, match=r"no engine can infer.*'X' cannot be inverted.*additive, location_scale"):
        counterfactual(KEY, scm, {"X": 1.0})


def test_affine_mechanisms_are_recognized_by_their_derivative():
    def engine_for(function):
        scm = SCM({"X": Normal(), "Y": Normal()}, {"X": IDENTITY, "Y": Mechanism(("X",), function)})
        return choose("auto", scm, ["X", "Y"])[1].split(",")[0]

    assert engine_for(lambda x, u: jnp.sin(x) + 2 * u) == "inversion"
    assert engine_for(lambda x, u: x * u) == "inversion"
    assert engine_for(lambda x, u: (x + u) / 3 - u) == "inversion"
    for curved in (lambda x, u: x + u**2, lambda x, u: x + jnp.abs(u), lambda x, u: jnp.exp(u) * x):
        with pytest.raises(SCMError, match="no engine"):
            engine_for(curved)


def test_a_flat_mechanism_leaves_its_noise_at_the_prior():
    scm = SCM({"X": Normal(), "Y": Normal()}, {"X": IDENTITY, "Y": Mechanism(("X",), lambda x, u: x * u)})
    result = counterfactual(KEY, scm, {"X": 0.0, "Y": 0.0}, do(X=1.0), ["Y"])
    assert jnp.isfinite(result.mean("Y"))
    with pytest.raises(SCMError, match="probability zero"):
        counterfactual(KEY, scm, {"X": 0.0, "Y": 1.0})


def test_mechanism_change_may_bring_new_parents_and_keeps_the_noise():
    scm = zoo.chain().scm
    changed = do(Y=Mechanism(("H",), lambda h, u: -h + u))
    result = counterfactual(KEY, scm, JOE, changed, ["Y"])
    np.testing.assert_allclose(result.mean("Y"), -1.0 + 0.75, atol=1e-6)  # U_Y = 1.5 - .7·.5 - .4·1
    assert changed(scm).graph["Y"] == ("H",)


def test_stochastic_intervention_draws_afresh():
    result = counterfactual(KEY, zoo.chain().scm, JOE, do(H=Normal(2.0, 0.5)), ["Y"], num_samples=20_000)
    assert not result.exact
    assert abs(result.mean("Y") - 1.9) < 5 * result.standard_error("Y")
    np.testing.assert_allclose(result.standard_error("Y") * np.sqrt(20_000), 0.4 * 0.5, rtol=0.05)
    assert (result.factual["Y"] == 1.5).all()


def test_a_cycle_made_by_an_intervention_is_refused():
    with pytest.raises(SCMError, match="cycle"):
        do(X=Mechanism(("Y",), lambda y, u: y))(zoo.chain().scm)


def test_values_may_be_trees():
    scm = SCM(
        {"S": Independent({"a": Normal(), "b": Normal(shape=(2,))}), "T": Point()},
        {"S": exogenous(), "T": Mechanism(("S",), lambda s, _: s["a"] + s["b"].sum())},
    )
    evidence = {"S": {"a": 1.0, "b": jnp.ones(2)}}
    assert counterfactual(KEY, scm, evidence, query=["T"]).mean("T") == 3.0
    moved = counterfactual(KEY, scm, evidence, do(S={"a": 0.0, "b": jnp.zeros(2)}), ["T"])
    assert moved.mean("T") == 0.0


def test_the_same_question_compiles_once():
    traced = []
    scm = SCM(
        {"X": Normal(), "Y": Normal()},
        {"X": exogenous(), "Y": additive(("X",), lambda x: (traced.append(1), 2 * x)[1])},
    )
    for value in (1.0, 2.0, 3.0):
        rows = {"X": np.full(10, value), "Y": np.zeros(10)}
        counterfactual(KEY, scm, rows, do(X=value), ["Y"])
        if value == 1.0:
            after_first = len(traced)
    assert len(traced) == after_first


def test_gradients_flow_through_a_counterfactual():
    """d/dh of E[Y had we set H = h] is Joe's slope, 0.4."""
    scm = zoo.chain().scm
    noise = counterfactual(KEY, scm, JOE).noise
    draw = {name: value[0] for name, value in noise.items()}
    slope = jax.grad(lambda h: do(H=h)(scm).simulate(draw)["Y"])(1.0)
    np.testing.assert_allclose(slope, 0.4, rtol=1e-6)


def test_gumbel_max_with_foreign_noise_is_not_inverted_wrongly():
    """Top-down sampling is exact for Gumbel noise alone; with Gaussian noise (a probit) it must not be used."""
    scm = SCM({"X": Normal(shape=(2,))}, {"X": gumbel_max((), lambda: jnp.zeros(2))})
    assert choose("auto", scm, ["X"])[1].startswith("importance")
    result = counterfactual(KEY, scm, {"X": 0}, num_samples=500)
    kept = result.noise["X"][jnp.isfinite(result.log_weights)]
    assert (kept[:, 0] > kept[:, 1]).all()


@pytest.mark.parametrize("make", zoo.SPECIMENS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_every_model_can_be_drawn(make, ending, tmp_path):
    specimen = make()
    path = specimen.first(specimen.scm).draw(observed=specimen.observed).save(tmp_path / f"scm.{ending}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    (target,) = specimen.first.targets
    if ending == "svg":  # matplotlib keeps each text as a comment beside its outline
        assert f"<!-- do({target} = ".encode() in content


def test_every_public_name_is_documented():
    for name in coulda.__all__:
        assert getattr(coulda, name).__doc__, f"coulda.{name} has no docstring"


def test_figure_1_can_be_drawn(tmp_path):
    from coulda.experiments import figure_1

    for path in figure_1.draw(tmp_path):
        assert b"$U_{o" in path.read_bytes()  # the noise of the outcome and of the observations
