"""What an experiment will take here, from its own measured throughput."""

import time
from typing import Any

import jax

from coulda.executors import InProcess
from coulda.experiments.pipeline import Ingredients
from coulda.recipes.impala import ImpalaRecipe
from coulda.recipes.sokoban import draw_levels, make_sokoban


def expected_cost(sizes: Ingredients) -> str:
    """A few updates of both networks are timed; the sentence says what all of them would take."""
    key, world = jax.random.key(sizes.seed), sizes.sokoban
    environment = make_sokoban(draw_levels(key, world, "policy", 256), world)
    if isinstance(sizes.policy, ImpalaRecipe):
        training: Any = sizes.policy.training(InProcess(sizes.policy.work(environment)))
    else:
        training = sizes.policy.training(environment, world)
    policy = seconds_per_update(training, sizes.policy.network.first_policy(key, world))
    model = sizes.scenarios.network.first_model(key)
    scenarios = seconds_per_update(sizes.scenarios.training(environment, world), model)
    hours = policy * sizes.policy.updates / 3600, scenarios * sizes.scenarios.updates / 3600
    return (
        f"Measured here, an update of the policy takes {policy:.2f} s and one of the scenario model {scenarios:.2f} s: "
        f"expect {hours[0]:,.0f} hours for the {sizes.policy.updates:,} updates of the policy and {hours[1]:,.0f} "
        f"for the {sizes.scenarios.updates:,} of the scenario model. Ctrl-C saves; the same command goes on."
    )


def seconds_per_update(training: Any, first: Any, updates: int = 3) -> float:
    """The wall-clock seconds of an update, without compiling."""
    state, _ = training.step(jax.random.key(0), training.init(first))
    jax.block_until_ready(jax.tree.leaves(state))
    start = time.perf_counter()
    for i in range(updates):
        state, _ = training.step(jax.random.key(i + 1), state)
    jax.block_until_ready(jax.tree.leaves(state))
    return (time.perf_counter() - start) / updates
