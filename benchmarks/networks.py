"""The paper's recurrent policy against the same architecture in PyTorch: forward, and forward and backward.

Both use all cores, one after the other in one run; each takes its fastest call. Ours in a process of its own, since
JAX's devices are fixed when it is first used. The share of the matmul peak counts the multiplications of a
direct convolution; Winograd's method needs 4/9 of them, so the share may exceed 1.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import child, run_peer, sized
from coulda.devices import shard_batch, use_all_cores
from coulda.policies.conv_lstm import paper_policy
from coulda.pomdp import sum_over_batch

GRID, TILES, ACTIONS = 10, 7, 5
ARCHITECTURE = {"layers": 3, "channels": 32, "kernel": 3, "ticks": 2, "units": 256}
STEPS, BATCH, REPEATS = sized((20, 64, 7), (2, 4, 1))


def main() -> dict[str, Any]:
    """Steps a second of both, and their ratios."""
    ours = child("networks", "--ours")
    sizes = {"size": GRID - 2, "inputs": TILES, "actions": ACTIONS, **ARCHITECTURE}
    settings = {**sizes, "steps": STEPS, "batch": BATCH, "repeats": REPEATS, "threads": os.cpu_count()}
    theirs = run_peer("torch", "torch_networks.py", json.dumps(settings))
    rate = lambda seconds: round(STEPS * BATCH / seconds)
    return {
        "steps_per_second": {name: rate(time) for name, time in ours["seconds"].items()},
        "torch_steps_per_second": {name: rate(time) for name, time in theirs["seconds"].items()},
        "times_torch": {name: round(theirs["seconds"][name] / ours["seconds"][name], 2) for name in ours["seconds"]},
        "share_of_matmul_peak": ours["share_of_matmul_peak"],
        "compile_seconds": ours["compile_seconds"],
        "peak_memory_mb": {"coulda": ours["peak_memory_mb"], "torch": theirs["peak_memory_mb"]},
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def measure() -> dict[str, Any]:
    """Our side alone."""
    cores = use_all_cores()
    key = jax.random.key(0)
    policy = paper_policy(key, GRID, GRID)
    observations = jax.random.randint(key, (BATCH, STEPS, GRID, GRID), 0, TILES).astype(jnp.uint8)

    def unroll(policy, observations):
        def step(carry, observation):
            carry, distribution, value = policy.with_value(carry, observation)
            return carry, jnp.append(distribution.logits, value)

        return jax.lax.scan(step, policy.initial_carry(), observations)[1]

    forward = lambda policy, observations: jax.vmap(unroll, (None, 0))(policy, shard_batch(observations))
    loss = lambda policy, observations: jnp.sum(jax.vmap(unroll, (None, 0))(policy, observations) ** 2)
    backward = lambda policy, observations: sum_over_batch(jax.grad(loss), policy, observations)
    times, compiling = {}, {}
    for name, function in {"forward": forward, "backward": backward}.items():
        start = time.perf_counter()
        compiled = jax.jit(function).lower(policy, observations).compile()
        compiling[name] = round(time.perf_counter() - start, 1)
        inputs = jax.device_put((policy, observations), compiled.input_shardings[0])
        times[name] = fastest(lambda compiled=compiled, inputs=inputs: compiled(*inputs))
    work = {"forward": nominal_flops(), "backward": 3 * nominal_flops()}
    peak = matmul_peak(cores)
    return {
        "seconds": times,
        "compile_seconds": compiling,
        "share_of_matmul_peak": {name: round(work[name] / times[name] / peak, 2) for name in times},
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def nominal_flops() -> float:
    """Of all convolutions, computed directly, in one forward call."""
    channels, layers, kernel = (ARCHITECTURE[name] for name in ("channels", "layers", "kernel"))
    inputs = TILES + channels + 2 * channels * (layers - 1)
    a_tick = 2 * (GRID - 2) ** 2 * kernel**2 * inputs * 4 * channels
    return a_tick * ARCHITECTURE["ticks"] * STEPS * BATCH


def matmul_peak(cores: int) -> float:
    """Measured FLOP/s of 1024³ products, one a core."""
    a = shard_batch(jnp.ones((cores, 1024, 1024)))
    product = jax.jit(lambda a: a @ a)
    return 2 * 1024**3 * cores / fastest(lambda: product(a))


def fastest(function: Callable[[], Any]) -> float:
    """Seconds of the fastest call, after one to warm up."""
    jax.block_until_ready(function())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    print(json.dumps(measure() if "--ours" in sys.argv else main(), indent=None if "--ours" in sys.argv else 2))
