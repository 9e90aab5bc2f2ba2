"""Sepsis: exact probabilities against ten thousand published draws of every transition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.sepsis_agreement import agreement
from coulda.environments import Sepsis
from coulda.environments.sepsis import kernel
from coulda.errors import CouldaError
from coulda.planners import policy_iteration
from coulda.policies import UniformPolicy
from coulda.pomdp import rollout
from coulda.testing import check_pomdp
from tests.conftest import FIXTURES


@pytest.fixture(scope="module")
def published():
    return dict(np.load(FIXTURES / "sepsis_transitions.npz", allow_pickle=False))


def test_transitions_agree_within_sampling_error(published):
    report = agreement(published)
    assert report["rows"] == 2 * 8 * 720
    assert report["impossible_transitions_that_were_sampled"] == 0
    # The sum of 11,520 chi-squares over 96,000 degrees of freedom: four standard deviations, once in 16,000.
    assert report["chi_square_per_degree"] == pytest.approx(1, abs=4 * np.sqrt(2 / report["degrees_of_freedom"]))
    # No single row stands out: its smallest p-value among 11,520 is not below 1e-8 (false failure once in 10,000).
    assert report["smallest_p_value"] > 1e-8


def test_a_slip_of_one_probability_would_show(published):
    """The twin: oxygen that falls with .11 instead of .1 when ventilation stops."""
    wrong = np.asarray(kernel.transition_probabilities()).copy()
    table = wrong.reshape(2, 8, 3, 3, 2, 5, 8, 3, 3, 2, 5)
    # Ventilated (odd treatments), normal oxygen, actions without ventilation.
    for action in (0, 1, 4, 5):
        rows = table[:, action, :, :, 1, :, 1::2]
        moved = 0.01 / 0.9 * rows[..., 1, :]
        rows[..., 1, :] -= moved
        rows[..., 0, :] += moved
    report = agreement(published, wrong)
    assert abs(report["chi_square_per_degree"] - 1) > 4 * np.sqrt(2 / report["degrees_of_freedom"])


def test_rewards_and_first_states_agree(published):
    np.testing.assert_array_equal(kernel.rewards(), published["reward"])
    report = agreement(published)
    # Chi-square with 36 degrees of freedom: above 85 once in 140,000.
    assert max(report["initial_state_chi_square"]) < 85
    joint = kernel.initial_probabilities(0.2)
    assert joint.sum() == pytest.approx(1)
    assert not joint[:, kernel.rewards() != 0].any()


def test_the_odd_glucose_of_non_diabetics():
    """A rise by fluctuation leads to 1 at most, from any level; in diabetics to one more."""
    vitals = [kernel.Vitals(1, 1, 1, level) for level in range(5)]
    off = kernel.Treatments(*(jnp.asarray(False) for _ in range(3)))
    rise = jnp.float32(0.15)
    after = [[int(kernel.next_glucose(v, off, jnp.int32(d), rise * (1 + 2 * d))) for v in vitals] for d in (0, 1)]
    assert after == [[1, 1, 1, 1, 1], [1, 2, 3, 4, 4]]


def test_the_simulators_coins_have_the_tables_probabilities():
    """The kernel that is run, against the table: each next vital of 200,000 draws from one state."""
    coins = Sepsis(reparameterization="simulator").transition_noise
    observed, action, n = 8 * 46 + 4, 5, 200_000  # antibiotics were on; antibiotics and vasopressors are given

    @jax.jit
    @jax.vmap
    def draw(key):
        return kernel.vitals_index(
            kernel.next_vitals(jnp.int32(1), jnp.int32(observed), jnp.int32(action), coins.sample(key))
        )

    counts = np.bincount(np.asarray(draw(jax.random.split(jax.random.key(0), n))), minlength=90)
    expected = n * np.asarray(kernel.transition_probabilities())[1, action, observed]
    possible = expected > 0
    assert not counts[~possible].any()
    chi = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    # Four standard deviations of a chi-square: once in some 5,000.
    degrees = possible.sum() - 1
    assert chi < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gumbel_max", "gumbel_max_vitals", "inverse_cdf", "simulator"])
def test_every_reparameterization_obeys_the_laws(kind):
    check_pomdp(Sepsis(reparameterization=kind))


@pytest.mark.slow
def test_different_actions_share_no_gumbels_as_published():
    """With one Gumbel a state, two actions' outcomes are independent; with one a vital, they are not."""
    shared = {}
    for kind in ("gumbel_max", "gumbel_max_vitals"):
        model = Sepsis(reparameterization=kind)
        start = jax.tree.map(jnp.int32, {"diabetic": 0, "observed": 8 * 46})
        state = type(model.initial(model.initial_noise.sample(jax.random.key(0))))(**start)

        @jax.jit
        @jax.vmap
        def both(key, model=model, state=state):
            u = model.transition_noise.sample(key)
            return [model.transition(state, jnp.int32(a), u).observed // 8 for a in (0, 2)]

        ventilated, not_ventilated = both(jax.random.split(jax.random.key(1), 20_000))
        shared[kind] = float(jnp.mean(ventilated == not_ventilated))
    # Independent outcomes agree by chance as often as the product of their probabilities says.
    rows = np.asarray(kernel.transition_probabilities())[0, [0, 2], 8 * 46]
    chance = float((rows[0] * rows[1]).sum())
    assert shared["gumbel_max"] == pytest.approx(chance, abs=4 * 0.5 / np.sqrt(20_000))
    assert shared["gumbel_max_vitals"] > chance + 0.1


@pytest.mark.slow
def test_the_optimal_planner_is_better_than_chance():
    model = Sepsis(reparameterization="gumbel_max")
    best = policy_iteration(model, 0.99).planner

    @jax.jit
    def mean_return(keys):
        runs = [
            jax.vmap(lambda k, a=actor: rollout(model, a, model.scenario_prior.sample(k)).episode_return)(keys)
            for actor in (best, UniformPolicy(8))
        ]
        return [r.mean() for r in runs]

    planned, chance = mean_return(jax.random.split(jax.random.key(0), 4000))
    assert float(planned) > float(chance) + 0.3


def test_what_sepsis_refuses():
    with pytest.raises(CouldaError, match="reparameterization is 'gumbel'; name one of"):
        Sepsis(reparameterization="gumbel")
    with pytest.raises(CouldaError, match="diabetes is a probability"):
        Sepsis(reparameterization="gumbel_max", diabetes=1.2)


def test_choices_are_the_tables():
    """What a transition's noise chooses among has the probabilities of the dense tables; some have no such form."""
    model = Sepsis(reparameterization="gumbel_max_vitals")
    choices, dense = model.transition_choices(), np.asarray(model.tables()[0])
    found = np.take_along_axis(dense, np.asarray(choices.next_state), axis=2)
    np.testing.assert_allclose(found, np.asarray(choices.probabilities), atol=1e-6)
    np.testing.assert_allclose(np.asarray(choices.probabilities).sum(-1), 1, atol=1e-5)
    with pytest.raises(CouldaError, match="no closed form is known"):
        Sepsis(reparameterization="simulator").transition_choices()
