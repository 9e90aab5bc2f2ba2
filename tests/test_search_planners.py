"""Tree search against dynamic programming on small tabular models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import LinearQuadratic, TabularPOMDP
from coulda.errors import CouldaError
from coulda.planners.dynamic_programming import finite_horizon
from coulda.planners.mcts import MCTS
from coulda.pomdp import rollout


def corridor() -> TabularPOMDP:
    """Left pays 0.3 at once; right pays 1 after three steps; six states, the last two terminal."""
    transition = np.zeros((2, 6, 6))
    transition[0, range(4), 5] = transition[1, range(4), range(1, 5)] = 1
    transition[:, [4, 5], [4, 5]] = 1
    return TabularPOMDP(
        [1, 0, 0, 0, 0, 0],
        transition,
        np.eye(6),
        np.array([0, 0, 0, 0, 1.0, 0.3]),
        horizon=4,
        reparameterization="gumbel_max",
        terminal=np.arange(6) >= 4,
    )


def states(model):
    return model.states(jnp.int32(-1), jnp.int32(0))


def test_tree_search_finds_what_dynamic_programming_finds():
    model = corridor()
    planner = MCTS(model, num_simulations=64, value_scale=0.005, temperature=0.1)
    best = finite_horizon(model).planner.logits
    ask = jax.jit(jax.vmap(lambda step, state: planner(step, state, None)[1].probabilities, in_axes=(None, 0)))
    # At step 2 two steps remain: in the first two states the far prize is out of reach.
    for step in (0, 2):
        found = np.asarray(ask(jnp.int32(step), states(model)))[:4]
        np.testing.assert_allclose(found, np.exp(best[step])[:4], atol=0.1)
    assert best[0, 0, 1] == 0
    assert best[2, 0, 0] == 0


@pytest.mark.slow
def test_a_rollout_with_tree_search_earns_the_optimum():
    model = corridor()
    sharp = {"value_scale": 0.005, "temperature": 0.05}
    planners = {"far": MCTS(model, 64, **sharp), "near": MCTS(model, 2, **sharp)}
    run = jax.jit(lambda planner, key: rollout(model, planner, model.scenario_prior.sample(key)).episode_return)
    assert run(planners["far"], jax.random.key(0)) == 1
    assert run(planners["near"], jax.random.key(0)) == pytest.approx(0.3), (
        "one step ahead it takes what is paid at once"
    )


def test_only_discrete_actions_are_searched():
    one = np.eye(1)
    model = LinearQuadratic(one, one, one, one, horizon=2, initial_mean=[0.0], initial_scale=one, transition_scale=one)
    with pytest.raises(CouldaError, match="MCTS needs discrete actions"):
        MCTS(model)
