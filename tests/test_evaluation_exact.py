"""CF-PE of observed finite models without scenario noise agrees with the sampled one."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from coulda.environments import forest
from coulda.episodes import collect
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, Precision, compare
from coulda.evaluation.exact import exact_returns
from coulda.hindsight import Exact
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.policies.trainable import RecurrentPolicy

METHOD, DRAWS = "CF-PE", 200


@pytest.mark.parametrize("reparameterization", ["gumbel_max", pytest.param("inverse_cdf", marks=pytest.mark.slow)])
def test_agrees_with_the_sampled_one(reparameterization):
    """Of each of 40 episodes, the mean over 200 scenarios within 4.5 standard errors: fails once in 3000 times.

    Twin: on another episode's noise it is elsewhere.
    """
    model = forest(horizon=5, reparameterization=reparameterization)
    log = collect(jax.random.key(0), model, UniformPolicy(2), 40)
    policies = {"greedy": TabularPolicy([[1, 0], [1, 0], [0.7, 0.3]])}
    method = OnScenarios(model, Exact(model))
    sampled, exact = (
        compare(jax.random.key(1), log, policies, [one], precision=Precision(scenarios=DRAWS)).estimates["greedy"]
        for one in (method, replace(method, exact=True))
    )
    # A return lies in 0 … 20, and its deviation within an episode is at most 4.
    apart = np.abs(sampled[METHOD].terms - exact[METHOD].terms)
    assert apart.max() < 4.5 * 4 / np.sqrt(DRAWS)
    assert abs(sampled[METHOD].value - exact[METHOD].value) < 4.5 * 4 / np.sqrt(40 * DRAWS)
    assert np.abs(sampled[METHOD].terms - np.roll(exact[METHOD].terms, 1)).max() > 4.5 * 4 / np.sqrt(DRAWS)
    assert exact[METHOD].terms.mean() == pytest.approx(exact[METHOD].value)
    assert exact["MB-PE"].value == sampled["MB-PE"].value
    assert exact[METHOD].verdict == sampled[METHOD].verdict


def test_the_logged_policy_of_one_action_gives_the_log():
    """A policy that does what was done returns what was returned, to rounding: consistency."""
    model = forest(horizon=5, reparameterization="gumbel_max")
    policy = TabularPolicy([[1, 0], [1, 0], [1, 0]])
    log = collect(jax.random.key(0), model, policy, 20)
    np.testing.assert_allclose(exact_returns(model, policy, log), log.episode_returns, rtol=1e-6)


def test_what_has_no_closed_form_is_refused():
    model = forest(horizon=5, reparameterization="gumbel_max")
    log = collect(jax.random.key(0), model, UniformPolicy(2), 2)
    recurrent = RecurrentPolicy(jax.random.key(0), model.observation_space, model.action_space)
    exact = OnScenarios(model, Exact(model), exact=True)
    for method, policy, message in (
        (exact, recurrent, "needs a policy without memory"),
        (replace(exact, scenarios=None), UniformPolicy(2), "give scenarios=it"),
        (replace(exact, scenarios=Exact(model, UniformPolicy(2))), UniformPolicy(2), "without a behavior"),
    ):
        with pytest.raises(CouldaError, match=message):
            compare(jax.random.key(1), log, {"policy": policy}, [method])
    repeated = replace(log, schema=replace(log.schema, last_observation="repeated"))
    with pytest.raises(CouldaError, match="needs the observation after each last action"):
        compare(jax.random.key(1), repeated, {"policy": UniformPolicy(2)}, [exact])
