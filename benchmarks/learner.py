"""IMPALA: the learner against the same network and loss in PyTorch, what acting costs, and the executors side by side.

- `learner`: one update (unroll, V-trace, gradient, clipping, Adam) at the paper's network size, all cores.
- `actors`: an in-process batch of episodes against the bare forward pass of the same network over as many steps.
- `executors`: frames a second of training with actors that are one update behind, for each executor. Ray is left out
  where it is not installed.

Each side in a process of its own, one after the other, since JAX's devices are fixed when it is first used.
"""

import importlib.util
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import child, run_peer, sized
from benchmarks.networks import fastest
from coulda.cli.executors import open_executor
from coulda.devices import use_all_cores
from coulda.environments.sokoban import Sokoban
from coulda.learners import ActorCriticLoss, Impala, episodes_of
from coulda.learners.impala import improve
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.pomdp import Episode, batched
from coulda.recipes import ImpalaRecipe, PolicyNetwork, impala_recipe

GRID, TILES, ACTIONS = 10, 7, 5
SIZES = sized((3, 32, 2, 256), (1, 4, 1, 8))
ARCHITECTURE = dict(zip(("layers", "channels", "ticks", "units"), SIZES, strict=True))
STEPS, BATCH, REPEATS = sized((20, 64, 7), (2, 4, 1))
EPISODES = sized(32, 4)
PAPER = replace(
    impala_recipe("10x10", "paper"),
    network=PolicyNetwork(**ARCHITECTURE, focus=False),
    batch=EPISODES,
    levels=sized(10_000, EPISODES),
    max_staleness=1,
)
UPDATES, WARM_UP = sized((6, 2), (2, 1))


def main() -> dict[str, Any]:
    """All three parts."""
    ours = child("learner", "--learner")
    sizes = {"size": GRID - 2, "inputs": TILES, "actions": ACTIONS, "kernel": 3, **ARCHITECTURE}
    settings = {**sizes, "steps": STEPS, "batch": BATCH, "repeats": REPEATS, "threads": os.cpu_count()}
    theirs = run_peer("torch", "torch_learner.py", json.dumps(settings))
    rate = lambda seconds: round(STEPS * BATCH / seconds)
    names = ["in-process", "processes"] + (["ray"] if importlib.util.find_spec("ray") else [])
    return {
        "learner": {
            "steps_per_second": rate(ours["seconds"]),
            "torch_steps_per_second": rate(theirs["seconds"]),
            "times_torch": round(theirs["seconds"] / ours["seconds"], 2),
            "compile_seconds": ours["compile_seconds"],
        },
        "actors": child("learner", "--actors"),
        "executors_frames_per_second": {
            name: child("learner", "--executor", name, alone=name == "ray")["frames_per_second"] for name in names
        },
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def learner() -> dict[str, Any]:
    """Seconds of one update on random episodes."""
    use_all_cores()
    policy = ConvLSTMPolicy(jax.random.key(0), GRID, GRID, **ARCHITECTURE)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = optimizer.init(eqx.filter(policy, eqx.is_inexact_array))
    episodes, loss, staleness = _random_episodes(), ActorCriticLoss(discount=0.97), jnp.float32(0)
    update = lambda: improve(loss, optimizer, policy, state, episodes, staleness)
    start = time.perf_counter()
    jax.block_until_ready(eqx.filter(update(), eqx.is_array))
    compiling = round(time.perf_counter() - start, 1)
    return {"seconds": fastest(lambda: eqx.filter(update(), eqx.is_array)), "compile_seconds": compiling}


def actors() -> dict[str, float]:
    """Steps a second of acting and of the network alone, and what acting adds to it."""
    use_all_cores()
    environment = PAPER.make_environment()
    assert isinstance(environment, Sokoban)
    policy = PAPER.first_policy()
    work = episodes_of(environment, policy, batch=EPISODES, seed=0)
    observations = work(policy, 0).observation[:, :-1]

    def unroll(policy, observations):
        step = lambda carry, observation: (lambda c, d: (c, d.logits))(*policy(carry, observation))
        return jax.lax.scan(step, policy.initial_carry(), observations)[1]

    bare = eqx.filter_jit(lambda policy, observations: batched(lambda o: unroll(policy, o), observations))
    acting = fastest(lambda: eqx.filter(work(policy, 0), eqx.is_array))
    forward = fastest(lambda: bare(policy, observations))
    steps = EPISODES * environment.horizon
    return {
        "acting_steps_per_second": round(steps / acting),
        "forward_steps_per_second": round(steps / forward),
        "overhead": round(acting / forward - 1, 3),
    }


def executor(name: Any, recipe: ImpalaRecipe = PAPER) -> dict[str, float]:
    """Frames a second of whole updates, after a few to warm up."""
    with open_executor(name, recipe.spec, workers=os.cpu_count() or 1, address=None) as opened:
        impala = Impala(opened, recipe.optimizer, recipe.loss, recipe.max_staleness)
        state, start, frames = impala.init(recipe.first_policy()), 0.0, 0.0
        for update in range(WARM_UP + UPDATES):
            if update == WARM_UP:
                jax.block_until_ready(eqx.filter(state, eqx.is_array))
                start, frames = time.perf_counter(), 0.0
            state, info = impala.step(jax.random.key(0), state)
            frames += float(info.frames)
    return {"frames_per_second": round(frames / (time.perf_counter() - start))}


def _random_episodes() -> Episode:
    keys = jax.random.split(jax.random.key(1), 3)
    observation = jax.random.randint(keys[0], (BATCH, STEPS + 1, GRID, GRID), 0, TILES).astype(jnp.uint8)
    action = jax.random.randint(keys[1], (BATCH, STEPS), 0, ACTIONS)
    reward = jax.random.normal(keys[2], (BATCH, STEPS))
    return Episode(observation, action, reward, jnp.ones((BATCH, STEPS), bool), jnp.full((BATCH, STEPS), -1.6))


if __name__ == "__main__":
    if "--learner" in sys.argv:
        print(json.dumps(learner()))
    elif "--actors" in sys.argv:
        print(json.dumps(actors()))
    elif "--executor" in sys.argv:
        print(json.dumps(executor(sys.argv[sys.argv.index("--executor") + 1])))
    else:
        print(json.dumps(main(), indent=2))
