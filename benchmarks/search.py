"""Where the time of CF-GPS on PO-Sokoban goes: the parts of an update, and how much of it is networks.

An update collects episodes, infers their scenarios, searches the exact solver's tables on the host, rolls the planner
out in them, weighs, and takes steps along gradients on resampled trajectories. Beside it stands what the networks
alone cost: as many forward passes of the policy and of the scenario model, and as many gradients, on the same shapes
(an update takes fewer where a trajectory is drawn twice). All in processor time, that of all cores together. The
planner plans in levels as they truly are, since what an untrained scenario model draws has no solution.
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
from coulda.devices import use_all_cores
from coulda.experiments.policy_search import WEIGHTINGS
from coulda.experiments.reproduction import ingredients, search_preset
from coulda.hindsight.learned import Learned
from coulda.planners.mixture import ExpertSchedule, prepared
from coulda.pomdp import Episode, batched, sum_over_batch
from coulda.pomdp.rollout import taken_log_probs
from coulda.recipes.sokoban import draw_levels, make_sokoban, solvers
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.search.objective import weighted_log_likelihood

SIZES = sized(
    {
        "7x7, 16 channels": ("desktop", "7x7", 15),
        "10x10, 16 channels": ("desktop", "10x10", 5),
        "the paper's": ("paper", None, 3),
    },
    {"smoke": ("smoke", None, 1)},
)
"""Preset and world of `coulda reproduce search`, and how often each part is timed."""


def main() -> dict[str, Any]:
    """By size. Measured in processes of their own, since JAX's devices are fixed when it is first used."""
    return {name: child("search", name) for name in SIZES}


def measure(name: str) -> dict[str, Any]:
    """Processor milliseconds a part, and the networks' share."""
    use_all_cores()
    preset_name, world, repeats = SIZES[name]
    preset = search_preset(ingredients(preset_name, world), preset_name)
    sokoban, key = preset.ingredients.sokoban, jax.random.key(0)
    environment = make_sokoban(draw_levels(key, sokoban, "policy", 1000), sokoban)
    source = Learned(environment, preset.ingredients.scenarios.network.first_model(key))
    weighting = WEIGHTINGS[preset.settings[0].weighting]
    objective = ReturnWeightedRegression(preset.num_rollouts, preset.temperature, *weighting, preset.num_resampled)
    planner = ExpertSchedule(solvers(sokoban), preset.beta, preset.time_constant)
    optimizer = preset.optimizer(preset.learning_rate, preset.steps)
    search = PolicySearch(
        environment, environment, source, optimizer, planner, objective, preset.num_episodes, steps=preset.steps
    )
    state = search.init(preset.first_policy(0))
    scenarios, episodes = search.collect(key, state)
    assert scenarios is not None
    ready = eqx.tree_at(lambda s: s.planner, search, prepared(search.planner, scenarios))
    parts = {
        "collect": lambda: search.collect(key, state),
        "infer": lambda: search.infer(key, state, episodes),
        "solver tables": lambda: prepared(search.planner, scenarios),
        "improve": lambda: ready.improve(key, state, scenarios),
        "networks of collect": lambda: _forward(state.policy, episodes),
        "networks of improve: rollouts and weights": lambda: _passes(
            state.policy, episodes, preset.num_rollouts, weighting[1]
        ),
        "networks of improve: gradient": lambda: [
            _gradient(state.policy, episodes, preset.num_resampled) for _ in range(preset.steps)
        ],
    }
    found = {part: round(1000 * seconds, 1) for part, seconds in _fastest(parts, repeats).items()}
    update = sum(found[part] for part in ("collect", "infer", "solver tables", "improve"))
    networks = sum(time for part, time in found.items() if part.startswith("networks")) + found["infer"]
    return {
        "processor milliseconds": found | {"whole update": round(update, 1)},
        "share_of_time_in_networks": round(networks / update, 2),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


@eqx.filter_jit
def _forward(policy: Any, episodes: Episode) -> jax.Array:
    return batched(lambda episode: taken_log_probs(policy, episode), episodes)


@eqx.filter_jit
def _passes(policy: Any, episodes: Episode, rollouts: int, ratio: bool) -> list[jax.Array]:
    """The planner's policy acts over S · n episodes, and where weights have the ratio they ask it again."""
    many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * rollouts), episodes)
    # In another order: of two equal passes the compiler would make one.
    other = jax.tree.map(lambda leaf: leaf[::-1], many)
    return [_forward(policy, each) for each in ([many, other] if ratio else [many])]


@eqx.filter_jit
def _gradient(policy: Any, episodes: Episode, count: int) -> Any:
    index = jnp.arange(count) % episodes.reward.shape[0]
    chosen = jax.tree.map(lambda leaf: leaf[index], episodes)
    climb = lambda policy, batch: eqx.filter_grad(weighted_log_likelihood)(policy, *batch)
    return sum_over_batch(climb, policy, (chosen, jnp.full(count, 1 / count)))


def _fastest(parts: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Processor seconds of the least call of each, in turns, so that a slow moment slows no part alone."""
    times: dict[str, float] = dict.fromkeys(parts, float("inf"))
    for repeat in range(repeats + 1):
        for name, part in parts.items():
            start = time.process_time()
            jax.block_until_ready(jax.tree.leaves(eqx.filter(part(), eqx.is_array)))
            # The first call compiles.
            times[name] = min(times[name], time.process_time() - start) if repeat else times[name]
    return times


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
