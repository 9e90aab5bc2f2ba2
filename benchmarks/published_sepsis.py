"""The published way to counterfactual sepsis episodes, measured again: what it computes, step by step, in numpy.

Oberst & Sontag's main experiment draws five counterfactual trajectories for each of 1,000 logged episodes of at most
20 steps, on a model of 146 states (glucose marginalized, death and discharge added). At every step of every
trajectory it draws 1,000 samples of the Gumbels' posterior, one category after the other, turns them into
counterfactual frequencies, and draws the next state from these. Their own code took 29 minutes for the 5,000
trajectories in the notebook that they published (2.9 a second), and 6.4 a second on the two cores that this project
began on; this file repeats the arithmetic in fresh code, so that both can be timed in one run. Where the variable
GUMBEL_MAX_SCM names a checkout of their repository, which is on no index, their own code runs on the same logs too.
"""

import os
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from benchmarks.harness import run_peer
from coulda.environments.sepsis import kernel

DRAWS = 1000
STATES = 146
DEAD, DISCHARGED = 144, 145


def projected_model() -> np.ndarray:
    """P(s' | s, a) over 144 states without glucose, death and discharge, `[8, 146, 146]`."""
    probabilities = np.asarray(kernel.transition_probabilities(), float)
    mixed = 0.8 * probabilities[0] + 0.2 * probabilities[1]
    given = [int(kernel.treatment_bits(jnp.int32(a))) for a in range(8)]
    rewards, observed = kernel.rewards(), np.arange(720)
    vitals, treatments = np.divmod(observed, 8)
    project = (vitals // 5) * 8 + treatments
    ends = np.where(rewards < 0, DEAD, np.where(rewards > 0, DISCHARGED, project))
    model = np.zeros((8, STATES, STATES))
    for action in range(8):
        reached = np.arange(90) * 8 + given[action]
        for state in np.flatnonzero(rewards == 0):
            np.add.at(model[action, project[state]], ends[reached], mixed[action, state])
    model[:, [DEAD, DISCHARGED], [DEAD, DISCHARGED]] = 1
    empty = model.sum(-1) == 0
    model[empty, DEAD] = 1
    return model / model.sum(-1, keepdims=True)


def best_policy(model: np.ndarray, discount: float = 0.99, epsilon: float = 0.05) -> np.ndarray:
    """The policy that avoids death best, with a little noise, `[146, 8]`: episodes of patients who are treated well."""
    value, reward = np.zeros(STATES), np.zeros(STATES)
    reward[[DEAD, DISCHARGED]] = -1, 1
    for _ in range(1000):
        value = (model @ (reward + discount * value)).max(0)
        value[[DEAD, DISCHARGED]] = 0
    q = model @ (reward + discount * value)
    return (1 - epsilon) * np.eye(8)[q.argmax(0)] + epsilon / 8


def log_of(
    rng: np.random.Generator, model: np.ndarray, policy: np.ndarray, episodes: int, steps: int
) -> list[list[tuple[int, int, int]]]:
    """(state, action, next state) of episodes."""
    living = np.flatnonzero(model[:, :144, DEAD].min(0) < 1)
    logs = []
    for _ in range(episodes):
        state, log = int(rng.choice(living)), []
        while len(log) < steps and state < DEAD:
            action = int(rng.choice(8, p=policy[state]))
            following = int(rng.choice(STATES, p=model[action, state]))
            log.append((state, action, following))
            state = following
        logs.append(log)
    return logs


def counterfactual_episode(
    rng: np.random.Generator, model: np.ndarray, log: list[tuple[int, int, int]], policy: np.ndarray, steps: int
) -> list[int]:
    """One counterfactual trajectory of a logged episode."""
    state, trajectory = log[0][0], []
    for t in range(steps):
        action = rng.choice(8, p=policy[state])
        wanted = model[action, state]
        if t < len(log):
            seen, taken, following = log[t]
            wanted = _counterfactual_frequencies(rng, model[taken, seen], wanted, following)
        state = int(rng.choice(STATES, p=wanted))
        trajectory.append(state)
        if state >= DEAD:
            break
    return trajectory


def _counterfactual_frequencies(rng: np.random.Generator, was: np.ndarray, would: np.ndarray, seen: int) -> np.ndarray:
    """Frequencies of the next state over `DRAWS` samples of the Gumbels' posterior."""
    with np.errstate(divide="ignore"):
        was, would = np.log(was), np.log(would)
    gumbels = np.zeros((DRAWS, STATES))
    top = rng.gumbel(size=DRAWS)
    for k in range(STATES):
        if k == seen:
            gumbels[:, k] = top - was[k]
        elif np.isneginf(was[k]):
            gumbels[:, k] = rng.gumbel(size=DRAWS)
        else:
            own = rng.gumbel(size=DRAWS) + was[k]
            gumbels[:, k] = -np.log(np.exp(-own) + np.exp(-top)) - was[k]
    chosen = (gumbels + would).argmax(1)
    return np.bincount(chosen, minlength=STATES) / DRAWS


def seconds_per_episode(episodes: int = 40, steps: int = 20) -> dict[str, dict[str, float]]:
    """Seconds of a counterfactual trajectory on one core: of the arithmetic, and of their own code where it is."""
    rng = np.random.default_rng(0)
    model = projected_model()
    policy = best_policy(model)
    logs = log_of(rng, model, policy, episodes, steps)
    wall, processor = time.perf_counter(), time.process_time()
    for log in logs:
        counterfactual_episode(rng, model, log, policy, steps)
    worked = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - processor}
    found = {"repeated": {name: value / episodes for name, value in worked.items()}}
    if checkout := os.environ.get("GUMBEL_MAX_SCM"):
        found["their own code"] = _own_code(checkout, model, policy, logs, steps)
    return found


def _own_code(
    checkout: str, model: np.ndarray, policy: np.ndarray, logs: list[list[tuple[int, int, int]]], steps: int
) -> dict[str, float]:
    """The same by the code of the repository."""
    rewards = np.zeros_like(model)
    rewards[..., DEAD], rewards[..., DISCHARGED] = -1, 1
    logged = np.zeros((len(logs), steps, 7))
    logged[:, :, 1:4] = -1  # after the end
    for row, log in zip(logged, logs, strict=True):
        for t, (state, action, following) in enumerate(log):
            row[t] = t, action, state, following, 0, 0, rewards[action, state, following]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logged.npz"
        np.savez(file, model=model, rewards=rewards, logged=logged, policy=policy)
        return run_peer("gumbel_max_scm", "gumbel_max_scm.py", checkout, str(file))
