"""A PyTorch policy in `compare`, against its own forward passes: run by `benchmarks/policies.py`.

The log has 10^5 episodes of up to 20 steps. The forward passes are those that `compare` needs, in batches of the same
size, over observations that are in memory already; the best of several batch sizes is told, too. `compare` makes all
five kinds of importance sampling, with Student's intervals: the bootstrap's are the same work for any policy, and more
than a small network's. What else it does is timed with the same probabilities given as a column, so that the rest is
the policy's cost. All in seconds of the processor, on one thread, so that what else runs on the machine counts little.
"""

import json
import os
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from coulda.environments import Queue
from coulda.episodes import Schema, checked_log
from coulda.evaluation import ImportanceSampling, Precision, compare
from coulda.evaluation.importance import KINDS
from coulda.policies import LinearGaussianPolicy, LoggedPolicy, as_policy
from coulda.policies.host import MOST_ROWS
from coulda.pomdp import batched, rollout

STEPS, SEEN, ACTIONS = 20, 8, 4
SIZES = (2**10, 2**12, 2**14, 2**16)


def log_of(episodes: int):
    """Random observations and actions; a tenth of the episodes ends at each step."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.05, episodes), STEPS)
    steps = int(lengths.sum())
    schema = Schema(spaces.Box(-np.inf, np.inf, (SEEN,)), spaces.Discrete(ACTIONS))
    observation = rng.normal(size=(steps + episodes, SEEN)).astype(np.float32)
    action, reward = rng.integers(0, ACTIONS, steps), rng.normal(size=steps)
    return checked_log(
        schema, observation, action, reward, lengths, lengths < STEPS, np.full(steps, np.log(1 / ACTIONS))
    )


def network(width: int) -> nn.Module:
    """Two hidden layers, as stable-baselines3's default has with 64 units; answers not far from uniform."""
    torch.manual_seed(0)
    last = nn.Linear(width, ACTIONS)
    nn.init.normal_(last.weight, std=0.1 / width**0.5)
    layers = nn.Linear(SEEN, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), last, nn.Softmax(-1)
    return nn.Sequential(*layers)


def forward(module: nn.Module, observations: np.ndarray, size: int) -> np.ndarray:
    """All of them, in batches."""
    with torch.no_grad():
        parts = [module(torch.from_numpy(observations[i : i + size])) for i in range(0, len(observations), size)]
    return torch.cat(parts).numpy()


def seconds(function, repeats: int) -> list[float]:
    """Of each of so many calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return times


class Gaussian(nn.Module):
    """Sends people where the queue is shorter, more or less."""

    def forward(self, observations):
        """Mean and scale `[n, 1]`."""
        mean = 0.5 * (observations[:, 1:] - observations[:, :1])
        return mean, torch.full_like(mean, 0.5)


def on_scenarios(episodes: int) -> dict[str, float]:
    """The module in a model of JAX, on the same noise as the same policy in JAX."""
    model = Queue()
    inside = LinearGaussianPolicy(jnp.array([[-0.5, 0.5]]), jnp.zeros(1), jnp.full(1, jnp.log(0.5)))
    keys = jax.random.split(jax.random.key(0), episodes)
    found = []
    for policy in (inside, as_policy(Gaussian(), model.action_space)):
        play = lambda key, p=policy: rollout(model, p, model.scenario_prior.sample(key)).episode_return
        found.append(np.asarray(jax.jit(lambda keys, f=play: batched(f, keys))(keys)))
    return {"mean return": float(found[0].mean()), "largest difference": float(np.abs(found[0] - found[1]).max())}


def main() -> None:
    """Print the times."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    log = log_of(settings["episodes"])
    acted_on = np.delete(log.observation, np.cumsum(log.lengths + 1) - 1, 0)
    methods = [ImportanceSampling(kind) for kind in KINDS]
    quick, found = Precision(interval="student"), {}
    table = lambda policies: compare(jax.random.key(0), log, policies, methods, precision=quick)
    for width in settings["widths"]:
        module = network(width)
        said = forward(module, acted_on, MOST_ROWS)
        taken = np.log(said[np.arange(len(acted_on)), log.action])
        theirs = {"policy": as_policy(module, log.schema.action_space)}
        column = {"policy": LoggedPolicy(taken)}
        values = [{name: e.value for name, e in table(p).estimates["policy"].items()} for p in (theirs, column)]
        times: dict[str, list[float]] = {"forward": [], "compare": [], "compare with a column": []}
        for _ in range(settings["repeats"]):  # in turns, so that what else runs here slows down all of them
            times["forward"] += seconds(lambda m=module: forward(m, acted_on, MOST_ROWS), 1)
            times["compare"] += seconds(lambda p=theirs: table(p), 1)
            times["compare with a column"] += seconds(lambda p=column: table(p), 1)
        middle = {name: statistics.median(one) for name, one in times.items()}
        cost = [a - b for a, b in zip(times["compare"], times["compare with a column"], strict=True)]
        best = {str(size): min(seconds(lambda m=module, s=size: forward(m, acted_on, s), 3)) for size in SIZES}
        found[f"two layers of {width}"] = {
            "processor seconds": middle | {"fastest forward, by batch": best},
            "policy's cost in compare / forward": statistics.median(
                c / f for c, f in zip(cost, times["forward"], strict=True)
            ),
            "all of compare / forward": statistics.median(
                c / f for c, f in zip(times["compare"], times["forward"], strict=True)
            ),
            "largest difference of an estimate": max(abs(values[0][name] - values[1][name]) for name in values[0]),
        }
    load = os.getloadavg()[0]
    told = {"episodes": len(log), "steps": log.num_steps, "load": load, "policies": found}
    print(json.dumps(told | {"returns in a model": on_scenarios(settings["episodes"] // 100)}))


if __name__ == "__main__":
    main()
