"""Where the time of CF-GPS on PO-Sokoban goes: the parts of an update, and how much of it is networks.

An update collects episodes, infers their scenarios, searches the exact solver's tables on the host, rolls the planner
out in them, weighs, and takes a gradient on the resampled trajectories. Beside it stands what the networks alone cost:
as many forward passes of the policy and of the scenario model, and as many gradients, on the same shapes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.harness import child, sized
from coulda.devices import sum_over_devices, use_all_cores
from coulda.experiments.policy_search import adam
from coulda.experiments.reproduction import ingredients, search_preset
from coulda.hindsight.learned import Learned
from coulda.planners.mixture import ExpertSchedule, prepared
from coulda.pomdp import Episode, batched
from coulda.pomdp.rollout import taken_log_probs
from coulda.recipes.sokoban import draw_levels, make_sokoban, solvers
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.search.objective import weighted_log_likelihood

SIZES = sized(
    {"7x7, 16 channels": ("desktop", "7x7", 15), "the paper's": ("paper", None, 3)}, {"smoke": ("smoke", None, 1)}
)
"""Preset and world of `coulda reproduce search`, and how often each part is timed."""


def main() -> dict[str, Any]:
    """By size. Measured in processes of their own, since JAX's devices are fixed when it is first used."""
    return {name: child("search", name) for name in SIZES}


def measure(name: str) -> dict[str, Any]:
    """Milliseconds a part, updates a second, and the networks' share."""
    use_all_cores()
    preset_name, world, repeats = SIZES[name]
    preset = search_preset(ingredients(preset_name, world), preset_name)
    sokoban, key = preset.ingredients.sokoban, jax.random.key(0)
    environment = make_sokoban(draw_levels(key, sokoban, "policy", 1000), sokoban)
    source = Learned(environment, preset.ingredients.scenarios.network.first_model(key))
    objective = ReturnWeightedRegression(preset.num_rollouts, 1.0, "scenario", True, preset.num_resampled)
    planner = ExpertSchedule(solvers(sokoban), preset.beta, preset.time_constant)
    optimizer = adam(preset.learning_rate)
    search = PolicySearch(environment, environment, source, optimizer, planner, objective, preset.num_episodes)
    state = search.init(preset.first_policy(0))
    _, episodes = search.collect(key, state)
    scenarios = search.infer(key, state, episodes)
    ready = eqx.tree_at(lambda s: s.planner, search, prepared(search.planner, scenarios))
    parts = {
        "whole update": lambda: search.step(key, state),
        "collect": lambda: search.collect(key, state),
        "infer": lambda: search.infer(key, state, episodes),
        "solver tables": lambda: prepared(search.planner, scenarios),
        "improve": lambda: ready.improve(key, state, scenarios),
        "networks of collect": lambda: _forward(state.policy, episodes),
        "networks of improve: rollouts and weights": lambda: _twice(state.policy, episodes, preset.num_rollouts),
        "networks of improve: gradient": lambda: _gradient(state.policy, episodes, preset.num_resampled),
    }
    found = {part: round(1000 * seconds, 1) for part, seconds in _fastest(parts, repeats).items()}
    networks = sum(time for part, time in found.items() if part.startswith("networks")) + found["infer"]
    return {
        "milliseconds": found,
        "updates_per_second": round(1000 / found["whole update"], 2),
        "share_of_time_in_networks": round(networks / found["whole update"], 2),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


@eqx.filter_jit
def _forward(policy: Any, episodes: Episode) -> jax.Array:
    return batched(lambda episode: taken_log_probs(policy, episode), episodes)


@eqx.filter_jit
def _twice(policy: Any, episodes: Episode, rollouts: int) -> tuple[jax.Array, jax.Array]:
    """The planner's policy acts, and the weights ask it again: two passes over S · n episodes."""
    many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * rollouts), episodes)
    # In another order: of two equal passes the compiler would make one.
    other = jax.tree.map(lambda leaf: leaf[::-1], many)
    return _forward(policy, many), _forward(policy, other)


@eqx.filter_jit
def _gradient(policy: Any, episodes: Episode, count: int) -> Any:
    index = jnp.arange(count) % episodes.reward.shape[0]
    chosen = jax.tree.map(lambda leaf: leaf[index], episodes)
    climb = lambda policy, batch: eqx.filter_grad(weighted_log_likelihood)(policy, *batch)
    return sum_over_devices(climb, policy, (chosen, jnp.full(count, 1 / count)))


def _fastest(parts: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of the fastest call of each, in turns, so that a slow moment of the machine slows no part alone."""
    times: dict[str, float] = dict.fromkeys(parts, float("inf"))
    for repeat in range(repeats + 1):
        for name, part in parts.items():
            start = time.perf_counter()
            jax.block_until_ready(jax.tree.leaves(eqx.filter(part(), eqx.is_array)))
            # The first call compiles.
            times[name] = min(times[name], time.perf_counter() - start) if repeat else times[name]
    return times


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
