"""The paper's scenario model against the same architecture in PyTorch: one ELBO with its gradient.

K = 8 layers of 32 channels, a history of 50 steps, batches of 4 pairs as in appendix C and of 32. Both use all cores,
one after the other in one run; each takes its fastest call. Ours in a process of its own.
"""

import json
import os
import resource
import sys
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.harness import child, run_peer, sized
from benchmarks.networks import fastest
from coulda.devices import use_all_cores
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import negative_elbo
from coulda.pomdp import Episode, sum_over_batch

GRID, TILES, ACTIONS, STEPS = 10, 7, 5, sized(50, 2)
ARCHITECTURE = {"num_layers": sized(8, 2), "channels": 32, "latents": 8}
BATCHES, REPEATS = sized(((4, 32), 5), ((4,), 1))


def main() -> dict[str, Any]:
    """Pairs a second of both, and their ratios, by the size of the batch."""
    ours = child("elbo", "--ours")
    sizes = {"size": GRID - 2, "tiles": TILES, "actions": ACTIONS, "steps": STEPS, **ARCHITECTURE}
    settings = {**sizes, "batches": BATCHES, "repeats": REPEATS, "threads": os.cpu_count()}
    theirs = run_peer("torch", "torch_elbo.py", json.dumps(settings))
    return {
        "pairs_per_second": {b: round(int(b) / s, 1) for b, s in ours["seconds"].items()},
        "torch_pairs_per_second": {b: round(int(b) / s, 1) for b, s in theirs["seconds"].items()},
        "times_torch": {b: round(theirs["seconds"][b] / s, 2) for b, s in ours["seconds"].items()},
        "compile_seconds": ours["compile_seconds"],
        "peak_memory_mb": {"coulda": ours["peak_memory_mb"], "torch": theirs["peak_memory_mb"]},
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def measure() -> dict[str, Any]:
    """Our side alone."""
    use_all_cores()
    network = ConvDRAW(jax.random.key(0), **ARCHITECTURE)
    times, compiling = {}, {}
    for batch in BATCHES:
        inputs = _pairs(jax.random.key(1), batch, network)

        def total(network, inputs):
            return negative_elbo(network, *inputs)[0] * inputs[2].size

        def gradient(network, inputs):
            share = lambda network, inputs: eqx.filter_grad(lambda n: total(n, inputs))(network)
            return sum_over_batch(share, network, inputs)

        start = time.perf_counter()
        compiled = jax.jit(gradient).lower(network, inputs).compile()
        compiling[str(batch)] = round(time.perf_counter() - start, 1)
        placed = jax.device_put((network, inputs), compiled.input_shardings[0])
        times[str(batch)] = fastest(lambda compiled=compiled, placed=placed: compiled(*placed))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": times, "compile_seconds": compiling, "peak_memory_mb": round(peak)}


def _pairs(key: jax.Array, batch: int, network: ConvDRAW) -> tuple[Any, ...]:
    """Levels, histories, their lengths and noise, of no world in particular."""
    keys = jax.random.split(key, 4)
    levels = jax.random.randint(keys[0], (batch, GRID, GRID), 0, TILES).astype(jnp.uint8)
    observation = jax.random.randint(keys[1], (batch, STEPS + 1, GRID, GRID), 0, TILES).astype(jnp.uint8)
    action = jax.random.randint(keys[2], (batch, STEPS), 0, ACTIONS)
    zeros = jnp.zeros((batch, STEPS))
    episodes = Episode(observation, action, zeros, jnp.ones((batch, STEPS), bool), zeros)
    noise = jax.vmap(network.noise(GRID, GRID).sample)(jax.random.split(keys[3], batch))
    return network.certain(levels), episodes, jnp.full(batch, STEPS + 1, jnp.int32), noise


if __name__ == "__main__":
    print(json.dumps(measure() if "--ours" in sys.argv else main(), indent=None if "--ours" in sys.argv else 2))
