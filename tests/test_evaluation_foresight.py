"""What a model foresees from what came before it, against exact conditionals; wrong models of each kind are found."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from coulda.environments import Pump, Queue
from coulda.episodes import collect
from coulda.evaluation import OnScenarios, compare
from coulda.evaluation.foresight import Sums, judged
from coulda.evaluation.model_checks import run_actions
from coulda.hindsight import Exact, Particles
from coulda.hindsight.likelihood import Evidence
from coulda.hindsight.predictions import foreseen
from coulda.policies import AnyAction
from coulda.pomdp import POMDP, rollout
from coulda.studies.calibration import worlds
from coulda.studies.hindsight import CASES

KEY = jax.random.key(0)


def whitened(model, episode):
    """Observations, one number each, as standard normal numbers given those before: by the joint Gaussian."""
    zero = jax.tree.map(jnp.zeros_like, model.scenario_prior.sample(KEY))
    flat, restore = ravel_pytree((zero.initial, zero.transition, zero.observation))

    def observed(row):
        parts = restore(row)
        noise = eqx.tree_at(lambda s: (s.initial, s.transition, s.observation), zero, parts)
        return run_actions(model, noise, episode.action)[1].ravel()

    matrix = np.asarray(jax.jacfwd(observed)(flat), float)
    return np.linalg.solve(np.linalg.cholesky(matrix @ matrix.T), episode.observation.ravel() - observed(flat))


def simulated(model):
    return rollout(model, AnyAction.of(model), model.scenario_prior.sample(jax.random.key(1))).episode


def test_in_a_linear_gaussian_model_places_are_those_of_the_joint_gaussian():
    model, _ = worlds()["linear-Gaussian"]
    episode = simulated(model)
    found = foreseen(KEY, Evidence.of(model), episode, 100)
    expected = stats.norm.cdf(whitened(model, episode))
    assert np.allclose(found.places[:, 0], expected, atol=1e-4)
    wider = eqx.tree_at(lambda m: m.observation_scale, model, 2 * model.observation_scale)
    assert not np.allclose(foreseen(KEY, Evidence.of(wider), episode, 100).places[:, 0], expected, atol=1e-2)


class Veiled(POMDP):
    """Another model as it is, of which nothing is known but how to run it."""

    of: POMDP

    horizon = property(lambda self: self.of.horizon)
    action_mechanism = property(lambda self: self.of.action_mechanism)
    observation_space = property(lambda self: self.of.observation_space)
    action_space = property(lambda self: self.of.action_space)
    initial_noise = property(lambda self: self.of.initial_noise)
    transition_noise = property(lambda self: self.of.transition_noise)
    observation_noise = property(lambda self: self.of.observation_noise)

    def initial(self, u):
        return self.of.initial(u)

    def transition(self, state, action, u):
        return self.of.transition(state, action, u)

    def observe(self, state, u):
        return self.of.observe(state, u)

    def reward(self, state, action, next_state):
        return self.of.reward(state, action, next_state)


@pytest.mark.slow
def test_a_filters_places_are_the_exact_ones_but_for_chance():
    model, _ = worlds()["linear-Gaussian"]
    episode = simulated(model)
    found = eqx.filter_jit(foreseen)(KEY, Evidence.of(Veiled(model)), episode, 20_000)
    expected = stats.norm.cdf(whitened(model, episode))
    # A place among 10,000 particles of each island is known to .5 / 100; five standard errors, for ten numbers.
    assert np.abs(found.places[:, 0] - expected).max() < 0.025
    assert found.known.all()
    assert 0 < found.apart.max() < 0.05


def test_scores_that_are_off_or_of_another_spread_are_told():
    """Steps 3,000; standard normal scores are flagged with probability .01, which this seed is not one of."""
    rng = np.random.default_rng(0)

    def said(scores):
        ones = np.ones_like(scores)
        values = {"lie off by": scores, "are spread by": (scores**2 - 1) / np.sqrt(2)}
        add = lambda x: np.atleast_1d(x.sum())
        return judged({what: Sums(add(x), add(ones), add(ones), add(ones)) for what, x in values.items()})

    scores = rng.normal(size=3000)
    assert said(scores).verdict == "trust"
    assert said(scores + 0.12).verdict == "caution"
    assert "lie off by" in said(scores + 0.12).sentence
    assert said(1.3 * scores).verdict == "do not trust"
    assert "are spread by" in said(1.3 * scores).sentence


def verdicts(model, source, case, log):
    table = compare(KEY, log, {"target": case.target}, [OnScenarios(model, source)])
    (row,) = [e for name, e in table.estimates["target"].items() if name != "MB-PE"]
    return {d.name: d.verdict for d in row.diagnostics}


@pytest.mark.slow
def test_wrong_noise_of_counts_is_found_in_a_linear_gaussian_model():
    case = CASES["queue"]
    log = collect(KEY, Queue(), case.behavior, 100)
    assert verdicts(Queue(), Exact(Queue()), case, log)["foresight"] == "trust"
    wrong = Queue(count_error=2.0)
    assert verdicts(wrong, Exact(wrong), case, log)["foresight"] == "do not trust"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{}, {"worn": 0.6}, {"rate": 0.3}, {"noise": 0.65}])
def test_wrong_pumps_are_found(wrong):
    case = CASES["pump"]
    log = collect(KEY, Pump(**case.right), case.behavior, 100)
    model = Pump(**case.right | wrong)
    assert (verdicts(model, Particles(model), case, log)["foresight"] == "trust") == (not wrong)
