"""Where the time of CF-GPS on PO-Sokoban goes: the parts of an update, and how much of it is networks.

An update collects episodes, infers their scenarios, searches the exact solver's tables on the host, rolls the planner
out in them, weighs, and takes a gradient on the resampled trajectories. Beside it stands what the networks alone cost:
as many forward passes of the policy and of the scenario model, and as many gradients, on the same shapes.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from coulda.evaluation.history import taken_log_probs
from coulda.experiments.policy_search import SearchPreset, adam, first_policy
from coulda.experiments.presets import draw_levels, sokoban
from coulda.experiments.sokoban_models import first_scenario_model, solvers
from coulda.hindsight.learned import Learned
from coulda.planners.mixture import ExpertSchedule
from coulda.planners.problem import prepared
from coulda.pomdp import Episode, batched
from coulda.search import PolicySearch, Regression
from coulda.search.objective import weighted_log_likelihood

REPEATS = 5


def main() -> dict[str, Any]:
    """Milliseconds a part, updates a second, and the networks' share."""
    preset, key = SearchPreset(), jax.random.key(0)
    size = preset.beginnings.size
    environment = sokoban(draw_levels(key, size, "policy", 1000), size)
    source = Learned(environment, first_scenario_model(key, preset.beginnings.scenarios))
    objective = Regression(preset.num_rollouts, 1.0, "scenario", True, preset.num_resampled)
    planner = ExpertSchedule(solvers(size), preset.beta, preset.time_constant)
    optimizer = adam(preset.learning_rate)
    search = PolicySearch(environment, environment, source, optimizer, planner, objective, preset.num_episodes)
    state = search.init(first_policy(preset, 0))
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
    found = {name: round(1000 * _median(part), 1) for name, part in parts.items()}
    networks = sum(time for name, time in found.items() if name.startswith("networks")) + found["infer"]
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
    other = eqx.tree_at(lambda e: e.reward, many, many.reward + 1)
    return _forward(policy, many), _forward(policy, other)


@eqx.filter_jit
def _gradient(policy: Any, episodes: Episode, count: int) -> Any:
    index = jnp.arange(count) % episodes.reward.shape[0]
    chosen = jax.tree.map(lambda leaf: leaf[index], episodes)
    return eqx.filter_grad(weighted_log_likelihood)(policy, chosen, jnp.full(count, 1 / count))


def _median(function: Callable[[], Any]) -> float:
    jax.block_until_ready(jax.tree.leaves(eqx.filter(function(), eqx.is_array)))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(jax.tree.leaves(eqx.filter(function(), eqx.is_array)))
        times.append(time.perf_counter() - start)
    return statistics.median(times)
