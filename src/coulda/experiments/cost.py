"""What an experiment will take here, from its own measured throughput."""

import time
from typing import Any

import jax

from coulda.executors import InProcess
from coulda.experiments.pipeline import Ingredients
from coulda.recipes.impala import ImpalaRecipe
from coulda.recipes.networks import first_scenario_model, imitation, policy_of, scenario_training
from coulda.recipes.sokoban import draw_levels, sokoban


def expected_cost(begin: Ingredients) -> str:
    """A few updates of both networks are timed; the sentence says what all of them would take."""
    key, size = jax.random.key(begin.seed), begin.size
    environment = sokoban(draw_levels(key, size, "policy", 256), size)
    if isinstance(begin.policy, ImpalaRecipe):
        work = begin.policy.work(environment)
        policy = seconds_an_update(begin.policy.training(InProcess(work)), begin.policy.first_policy())
    else:
        policy = seconds_an_update(imitation(environment, size, begin.policy), policy_of(key, size, begin.policy))
    model = first_scenario_model(key, begin.scenarios)
    scenarios = seconds_an_update(scenario_training(environment, size, begin.scenarios), model)
    hours = policy * begin.policy.updates / 3600, scenarios * begin.scenarios.updates / 3600
    return (
        f"Measured here, an update of the policy takes {policy:.2f} s and one of the scenario model {scenarios:.2f} s: "
        f"expect {hours[0]:,.0f} hours for the {begin.policy.updates:,} updates of the policy and {hours[1]:,.0f} "
        f"for the {begin.scenarios.updates:,} of the scenario model. Ctrl-C saves; the same command goes on."
    )


def seconds_an_update(training: Any, first: Any, updates: int = 3) -> float:
    """Wall-clock, without compiling."""
    state, _ = training.step(jax.random.key(0), training.init(first))
    jax.block_until_ready(jax.tree.leaves(state))
    start = time.perf_counter()
    for i in range(updates):
        state, _ = training.step(jax.random.key(i + 1), state)
    jax.block_until_ready(jax.tree.leaves(state))
    return (time.perf_counter() - start) / updates
