"""Counterfactual sepsis episodes a second: infer the noise of logged episodes, run policies on the same noise.

Gumbel-max with one Gumbel a state, diabetes hidden and inferred, episodes of 20 steps logged by a physician who
sees diabetes. Counts are of counterfactual episodes: one logged episode under one policy.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.harness import child, sized
from benchmarks.published_sepsis import seconds_per_episode
from coulda.environments import Sepsis
from coulda.hindsight import Exact
from coulda.planners import TabularPlanner, policy_iteration
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Episode, Policy, batched, rollout

STREAMED = sized((10_000, 100_000, 1_000_000), (1_000,))
TIMED = sized(100, 2)
"""Episodes of the published algorithm."""
CHUNK = 512
"""Episodes at once; their [20, 90] Gumbels fit the cache."""


def policies() -> tuple[Policy, ...]:
    """UniformPolicy, and three that look at the vitals."""
    rng = np.random.default_rng(0)
    return UniformPolicy(8), *(TabularPolicy(rng.dirichlet(np.full(8, 0.3), size=720)) for _ in range(3))


@eqx.filter_jit
def log_episodes(model: Sepsis, physician: TabularPlanner, keys: Array) -> Episode:
    """What the physician leaves behind."""
    return batched(lambda k: rollout(model, physician, model.scenario_prior.sample(k)).episode, keys, CHUNK)


@eqx.filter_jit
def counterfactual_returns(source: Exact, targets: tuple[Policy, ...], keys: Array, episodes: Episode) -> Array:
    """Returns `[n, policies]`, every policy on the same noise."""
    return batched(lambda pair: _returns(source, targets, *pair), (keys, episodes), CHUNK)


@eqx.filter_jit
def streamed_mean(source: Exact, targets: tuple[Policy, ...], keys: Array) -> Array:
    """The mean returns where episodes are logged, explained and forgotten again: only keys are kept."""
    behavior = source.behavior
    assert behavior is not None

    def one(key: Array) -> Array:
        noise = source.model.scenario_prior.sample(key)
        return _returns(source, targets, jax.random.fold_in(key, 1), rollout(source.model, behavior, noise).episode)

    return batched(one, keys, CHUNK).mean(0)


def _returns(source: Exact, targets: tuple[Policy, ...], key: Array, episode: Episode) -> Array:
    scenario = source.infer(key, episode)
    return jnp.stack([rollout(source.model, policy, scenario).episode_return for policy in targets])


def peak_megabytes(episodes: int) -> float:
    """Peak memory of a fresh process that streams so many episodes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_stream, (episodes,))


def _stream(episodes: int) -> float:
    source = Exact(Sepsis(reparameterization="gumbel_max"), behavior=UniformPolicy(8))
    jax.block_until_ready(streamed_mean(source, policies(), jax.random.split(jax.random.key(0), episodes)))
    # Not getrusage: after fork and exec it still counts the parent's peak.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> dict[str, Any]:
    """Everything, in a process with a device for each core."""
    return child("sepsis")


def measure(logged: int = sized(100_000, 1_000)) -> dict[str, Any]:
    """Everything, in this process."""
    model = Sepsis(reparameterization="gumbel_max")
    physician = policy_iteration(model, 0.99).planner.noisy(0.05)
    source, targets = Exact(model, behavior=physician), policies()
    episodes = log_episodes(model, physician, jax.random.split(jax.random.key(0), logged))
    keys = jax.random.split(jax.random.key(1), logged)

    def all_policies() -> None:
        jax.block_until_ready(counterfactual_returns(source, targets, keys, episodes))

    thousand = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1000], 5, axis=0), episodes)
    their_keys = jax.random.split(jax.random.key(2), len(thousand.reward))

    def as_published() -> None:
        jax.block_until_ready(counterfactual_returns(source, targets[:1], their_keys, thousand))

    start = time.perf_counter()
    all_policies()
    first_call = time.perf_counter() - start
    as_published()
    whole, small = _warm(all_policies), _warm(as_published)
    published = seconds_per_episode(episodes=TIMED)
    return {
        "devices": jax.local_device_count(),
        "load_average": os.getloadavg()[0],
        "logged_episodes": logged,
        "policies": len(targets),
        "seconds": whole["wall"],
        "compilation_seconds": first_call - whole["wall"],
        "counterfactual_episodes_per_second": logged * len(targets) / whole["wall"],
        "counterfactual_episodes_per_cpu_second": logged * len(targets) / whole["cpu"],
        "seconds_for_1000_episodes_x_5": small["wall"],
        "published": {name: _ratios(one, small) for name, one in published.items()},
        "peak_megabytes": {str(n): peak_megabytes(n) for n in STREAMED},
    }


def _ratios(published: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    """Of 5,000 trajectories, had they all been drawn: those that were timed took as long each."""
    whole = {name: 5000 * published[name] for name in ("wall", "cpu")}
    return {
        "seconds_for_1000_episodes_x_5": whole["wall"],
        "ratio": whole["wall"] / ours["wall"],
        "ratio_of_cpu_seconds": whole["cpu"] / ours["cpu"],
    }


def _warm(function: Callable[[], None]) -> dict[str, float]:
    """Seconds on the clock and of the processor, of a call that is compiled already."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", multiprocessing.cpu_count())
    print(json.dumps(measure()))
