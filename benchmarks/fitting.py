"""`fit` of 10^5 transitions with five members and five folds and the verdict: seconds, three seeds; 120 are allowed."""

import time
from typing import Any

import gymnasium
import jax
import numpy as np

from benchmarks.harness import sized
from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.fitting import NeuralFit, fit

EPISODES, STEPS, SIZE, SEEDS = sized((10_000, 10, 5, 3), (60, 4, 2, 1))


def made(seed: int) -> EpisodeLog:
    """A saturating system of five dimensions with four actions, and a reward that is a square."""
    rng = np.random.default_rng(seed)
    turn = 0.8 * np.eye(SIZE) + 0.1 * rng.normal(size=(SIZE, SIZE))
    push = 0.3 * np.sin(np.outer(np.arange(4), np.arange(1, SIZE + 1)))
    state, seen, done, paid = rng.normal(size=(EPISODES, SIZE)), [], [], []
    seen.append(state)
    for _ in range(STEPS):
        action = rng.integers(0, 4, EPISODES)
        state = np.tanh(state @ turn) + push[action] + 0.2 * rng.normal(size=(EPISODES, SIZE))
        seen.append(state)
        done.append(action)
        paid.append(state.sum(1) ** 2)
    schema = Schema(gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32), gymnasium.spaces.Discrete(4))
    flat = np.stack(seen, 1).reshape(-1, SIZE).astype(np.float32)
    action, reward = np.stack(done, 1).ravel(), np.stack(paid, 1).ravel().astype(np.float32)
    return checked_log(schema, flat, action, reward, np.full(EPISODES, STEPS), np.ones(EPISODES, bool))


def main() -> dict[str, Any]:
    found = []
    for seed in range(SEEDS):
        log, start, busy = made(seed), time.perf_counter(), time.process_time()
        fitted = fit(jax.random.key(seed), log, NeuralFit("location_scale"))
        told = {d.name: d.verdict for d in fitted.verdict}
        spent = {"seconds": time.perf_counter() - start, "processor seconds": time.process_time() - busy}
        found.append(spent | {"verdict": told})
    return {"transitions": EPISODES * STEPS, "fits": found}
