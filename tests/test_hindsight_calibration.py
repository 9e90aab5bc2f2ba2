"""Right sources pass, and each way of being wrong is found by its name: shifted, too narrow, the prior, unbroken ties.

Every test has one key, chosen before it was run. A right source is found at fault with probability `ALPHA`, 0.01, so
that a test that expects "calibrated" fails by chance for one key in a hundred. How often the twins are missed where one
quantity of twelve is wrong stands in `results/evaluation/calibration.json`; here all of them are wrong.
"""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from jax import Array

from coulda.cli.calibrate import Calibrate
from coulda.errors import CouldaError
from coulda.hindsight import (
    Calibration,
    Exact,
    Nuts,
    Particles,
    Prior,
    ScenarioSource,
    Tempered,
    calibrate,
    draw_calibration,
)
from coulda.hindsight.asking import LIKELIHOOD
from coulda.hindsight.calibration import DISTANCE
from coulda.hindsight.ranks import holm, how_wrong, information, ranked, smooth_test
from coulda.hindsight.source import fresh
from coulda.policies import AnyAction, LinearGaussianPolicy
from coulda.pomdp import POMDP, Episode, LocationScaleAction, Scenario
from coulda.report import load_report
from tests.zoo_pomdps import Plain, Specimen, pomdps

TIGER, HIDDEN, OBSERVED = "tiger", "linear hidden", "linear observed"


class Bent(ScenarioSource):
    """Exact draws that are made too narrow or shifted, in posterior deviations; all sizes share one program."""

    source: Exact
    width: Array
    shift: Array
    steps: Array

    def __init__(self, model, width=1.0, shift=0.0):
        self.source = Exact(model)
        self.width, self.shift, self.steps = jnp.asarray(width), jnp.asarray(shift), self.source.steps

    @property
    def model(self):
        return self.source.model

    def infer(self, key, episode):
        raise NotImplementedError

    def infer_many(self, key, episode: Episode, count: int):
        found, inference = self.source.given(self.steps).infer_many(key, episode, count)

        def bend(draws: Array) -> Array:
            mean, deviation = draws.mean(0, keepdims=True), draws.std(0, keepdims=True)
            return mean + self.width * (draws - mean) + self.shift * deviation

        return Scenario(*map(bend, (found.initial, found.transition, found.observation)), found.action), inference


class Ignorant(ScenarioSource):
    """The prior, which claims to have seen the history."""

    model: POMDP
    steps: Array

    def __init__(self, model):
        self.model, self.steps = model, Exact(model).steps

    def infer(self, key, episode):
        return fresh(key, self.model)


@cache
def found(name: str, source: type = Exact, *settings: float, seed: int = 0, steps: tuple[int, ...] = ()) -> Calibration:
    specimen = pomdps()[name]
    policies = {"target": specimen.target}
    if name != TIGER:
        # Fresh noise of actions is right in the draws of any source: the less of it, the more a return tells.
        policies["steady"] = LinearGaussianPolicy.zero(specimen.model.observation_space.shape[0], 1, scale=0.1)
    made = source(specimen.model, *settings)
    return calibrate(jax.random.key(seed), made, specimen.model, policies, steps=steps)


@pytest.mark.parametrize("name", [HIDDEN, *(pytest.param(name, marks=pytest.mark.slow) for name in (TIGER, OBSERVED))])
def test_exact_posteriors_are_calibrated(name):
    """Fails by chance for one key in a hundred. Observed states are inverted up to rounding, which is not ranked."""
    calibration = found(name)
    assert calibration.verdict == "calibrated", calibration.sentences
    assert calibration.failed == 0
    names = [quantity.name for quantity in calibration.quantities]
    assert {"return of target", DISTANCE} <= set(names)
    assert (LIKELIHOOD in names) == (name != OBSERVED)
    assert any("without noise" in sentence for sentence in calibration.sentences) == (name == OBSERVED)


@pytest.mark.slow
def test_a_part_of_the_history_is_asked_by_itself():
    calibration = found(HIDDEN, steps=(0, 2))
    assert calibration.verdict == "calibrated", calibration.sentences
    joint = {one.steps: one.skill for one in calibration.quantities if one.name == DISTANCE}
    errors = {one.steps: one.skill_error for one in calibration.quantities if one.name == DISTANCE}
    assert abs(joint[0]) < 4 * errors[0]  # nothing seen, nothing known: 6e-5
    assert joint[2] > joint[0] + 4 * errors[2]
    assert joint[2] < found(HIDDEN).quantities[-1].skill
    np.testing.assert_array_less(np.abs(np.subtract(*calibration.coverage(2))), 0.08)  # KS at 500: 3e-3


@pytest.mark.slow
def test_a_posterior_that_is_a_fifth_too_narrow_is_found():
    calibration = found(HIDDEN, Bent, 0.8, 0.0)
    assert calibration.verdict == "not calibrated"
    wrong = {quantity.name: quantity.how for quantity in calibration.wrong}
    assert "too narrow" in wrong["initial[0]"]
    assert any(name.startswith("return of ") for name in wrong)
    # As estimated from 500 ranks, with a standard error of about 0.03: 4 of them, 6e-5.
    assert size(wrong["initial[0]"]) == pytest.approx(0.8, abs=0.12)


def test_a_posterior_that_is_shifted_by_a_quarter_is_found():
    calibration = found(HIDDEN, Bent, 1.0, 0.25)
    assert calibration.verdict == "not calibrated"
    wrong = {quantity.name: quantity.how for quantity in calibration.wrong}
    assert "too high" in wrong["initial[0]"]
    assert size(wrong["initial[0]"]) == pytest.approx(0.25, abs=0.19)  # 4 standard errors of 0.289 √(2 · 2π) / √500
    assert calibration.sentences[1].startswith("initial[0]: draws lie too high")


def test_the_unbent_twin_passes():
    """The program of the two above; fails by chance for one key in a hundred."""
    assert found(HIDDEN, Bent, 1.0, 0.0).verdict == "calibrated"


@pytest.mark.slow
def test_the_prior_says_nothing_more_than_itself():
    """Whether it says so or not, in which case log p(h | u) tells. Fails by chance for two keys in a hundred."""
    honest, ignorant = found(TIGER, Prior), found(HIDDEN, Ignorant)
    for calibration in (honest, ignorant):
        assert calibration.verdict == "says nothing more than the prior", calibration.sentences
        assert not calibration.informed
    assert [quantity.name for quantity in ignorant.wrong] == [LIKELIHOOD]
    assert honest.wrong == ()


def test_ties_must_be_broken_at_random():
    """Discrete noise: a coin among coins of the same law. The twin puts the truth below its equals, or above."""
    rng = np.random.default_rng(0)
    truth, draws = rng.integers(0, 2, 500).astype(float), rng.integers(0, 2, (500, 63)).astype(float)
    positions = {
        name: ranked(truth, draws, dice) / 64
        for name, dice in {
            "at random": rng.uniform(size=500),
            "below": np.zeros(500),
            "above": np.full(500, 1 - 1e-9),
        }.items()
    }
    assert smooth_test(positions["at random"]) > 0.001  # its own probability of failing
    assert smooth_test(positions["below"]) < 1e-6
    assert smooth_test(positions["above"]) < 1e-6


def test_ranks_are_counts_and_rounding_is_a_tie():
    truth, half = np.array([0.0, 1.0, 2.0]), np.full(3, 0.5)
    draws = np.array([[-1.0, 1.0], [1.0 + 1e-7, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(ranked(truth, draws, half), [1.5, 2.0, 2.5])
    np.testing.assert_allclose(ranked(truth, draws, np.zeros(3)), [1.0, 1.0, 2.0])
    assert ranked(truth, np.full((3, 2), -np.inf), half).tolist() == [2.5, 2.5, 2.5]


def test_probabilities_are_right_under_the_null_and_sizes_are_those_of_normals():
    rng = np.random.default_rng(0)
    p_values = [smooth_test(rng.uniform(size=200)) for _ in range(2000)]
    for level in (0.01, 0.1, 0.5):
        # 4 standard errors of a share of 2,000: 6e-5 each.
        assert np.mean(np.array(p_values) < level) == pytest.approx(level, abs=4 * np.sqrt(level / 2000))
    assert holm([0.001, 0.5, 0.02]).tolist() == pytest.approx([0.003, 0.5, 0.04])
    normal = rng.normal(size=(20_000, 1))
    draws = rng.normal(size=(20_000, 63))
    positions = lambda x: ranked(normal[:, 0], x, rng.uniform(size=20_000)) / 64
    low, wide = how_wrong(positions(draws - 0.5)), how_wrong(positions(1.5 * draws))
    # 63 draws tell 0.49, and 1.47, since the truth's own place is among them; 4 standard errors, 6e-5 each.
    assert "too low" in low
    assert size(low) == pytest.approx(0.49, abs=0.04)
    assert "too wide" in wide
    assert size(wide) == pytest.approx(1.47, abs=0.07)


def size(how: str) -> float:
    """The number in a sentence of `how_wrong`."""
    return float(how.split("about ")[1].split()[0])


def test_information_is_the_gain_in_energy_score():
    """Of a normal known up to a deviation s the CRPS is s / √π, so that of error 1 - s is removed."""
    rng = np.random.default_rng(1)
    mean = np.sqrt(1 - 0.25) * rng.normal(size=(4000, 1))
    truth = mean + 0.5 * rng.normal(size=(4000, 1))
    gain, scale = information(truth, mean[:, None] + 0.5 * rng.normal(size=(4000, 63, 1)))
    error = gain.std() / np.sqrt(len(gain)) / scale
    assert gain.mean() / scale == pytest.approx(0.5, abs=4 * error)  # 6e-5
    assert error < 0.02
    nothing, _ = information(truth, rng.normal(size=(4000, 63, 1)))
    assert abs(nothing.mean()) < 4 * nothing.std() / np.sqrt(len(nothing))  # 6e-5


def test_a_few_draws_that_are_far_off_do_not_make_hindsight_perfect():
    """Of draws with a heavy tail, those next to each other may lie farther apart than from the truth."""
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(200, 1))
    draws = rng.normal(size=(200, 63, 1))
    draws[0, ::2], draws[1, ::2] = 1e6, -1e6
    gain, scale = information(truth, draws)
    assert abs(gain.mean()) / scale < 0.1


class Bowl(Plain):
    """A ball on a bent floor, of which one hears how far off it is, and never quite on which side: nonlinear."""

    horizon: int = 3
    action_mechanism: LocationScaleAction = LocationScaleAction(shape=())

    @property
    def action_space(self):
        return self.observation_space

    def initial(self, u):
        return 0.5 + u

    def transition(self, state, action, u):
        return jnp.sin(state) + 0.5 * action + 0.3 * u

    def reward(self, state, action, next_state):
        return -(next_state**2) - 0.1 * action**2

    def observe(self, state, u):
        return state**2 + u


BOWLED = {
    "particles": (lambda: Particles(Bowl(), particles=200, moves=5), lambda: Particles(Bowl(), particles=4, moves=0)),
    "tempered": (
        lambda: Tempered(Bowl(), particles=200, moves=10),
        lambda: Tempered(Bowl(), particles=4, moves=1),
    ),
    "nuts": (
        lambda: Nuts(Bowl(), chains=4, warmup=150, draws=100, particles=200),
        lambda: Nuts(Bowl(), chains=2, warmup=20, draws=10, particles=2),
    ),
}
"""By name: a source of a reasonable size, and a twin that is far too small."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOWLED)
def test_samplers_on_a_nonlinear_model_are_calibrated(name):
    """Each fails by chance for one key in a hundred, if samplers made no error; the twins have too few."""
    right, few = (
        calibrate(jax.random.key(0), make(), Bowl(), {"any": AnyAction.of(Bowl())}, episodes=200)
        for make in BOWLED[name]
    )
    assert right.verdict == "calibrated", right.sentences
    assert few.verdict == "not calibrated"


def test_draws_that_are_no_numbers_are_named():
    calibration = found(HIDDEN, Bent, np.nan, 0.0)
    assert calibration.verdict == "not calibrated"
    assert "return of target: 31,500 of the draws are not finite (adjusted p = 0)." in calibration.sentences
    json.dumps(calibration.plain(), allow_nan=False)


def test_bad_input_is_refused_before_any_work():
    specimen: Specimen = pomdps()[TIGER]
    policies = {"target": specimen.target}
    ask = lambda source=None, policies=policies, **settings: calibrate(
        jax.random.key(0), source or Exact(specimen.model), specimen.model, policies, **settings
    )
    with pytest.raises(CouldaError, match="draws is 9; it is a whole number of at least 10"):
        ask(draws=9)
    with pytest.raises(CouldaError, match="episodes is 3"):
        ask(episodes=3)
    with pytest.raises(CouldaError, match="there are no policies"):
        ask(policies={})
    with pytest.raises(
        CouldaError, match="infers the noise of a LinearQuadratic, and the model to simulate is a Tabular"
    ):
        ask(Exact(pomdps()[HIDDEN].model))
    with pytest.raises(CouldaError, match="TabularPOMDP with other numbers in it"):
        ask(Exact(pomdps()["maze gumbel_max"].model))
    with pytest.raises(CouldaError, match="0 or more steps"):
        ask(steps=(-1,))
    with pytest.raises(CouldaError, match="cannot see observations"):
        ask(policies={"other": LinearGaussianPolicy.zero(1, 1)})


@pytest.mark.slow
def test_the_picture_shows_what_is_wrong_in_red():
    assert "#b3261e" in draw_calibration(found(HIDDEN, Bent, 0.8, 0.0))


@pytest.mark.slow
def test_the_command_line_says_what_calibrate_finds(tmp_path, capsys):
    name = "tests.test_hindsight_calibration"
    arguments = ["--model", f"{name}:tiger_model", "--policy", f"{name}:target", "--out", str(tmp_path)]
    tyro.cli(Calibrate, args=arguments).run()
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / "calibration.json").read_text())
    expected = found(TIGER)
    assert written == json.loads(json.dumps(expected.plain()))
    assert written["verdict"] == "calibrated"
    assert "return of target" in printed
    picture = (tmp_path / "calibration.svg").read_text()
    assert picture == draw_calibration(expected)
    assert "#b3261e" not in picture
    report = load_report(tmp_path)
    assert report.summary == expected.sentences
    with pytest.raises(FileExistsError, match="holds a report already"):
        tyro.cli(Calibrate, args=arguments).run()
    with pytest.raises(CouldaError, match="scenarios is 'guess'; choose from"):
        tyro.cli(Calibrate, args=["--model", f"{name}:Bowl", "--scenarios", "guess"]).run()
    with pytest.raises(CouldaError, match="makes a Bowl, not a ScenarioSource"):
        tyro.cli(Calibrate, args=["--model", f"{name}:Bowl", "--scenarios", f"{name}:itself"]).run()


def tiger_model() -> POMDP:
    return pomdps()[TIGER].model


def target():
    return pomdps()[TIGER].target


def itself(model):
    return model
