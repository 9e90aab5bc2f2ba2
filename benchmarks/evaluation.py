"""All tabular model-free estimators on 10^5 episodes of up to 20 steps, against straightforward NumPy and scope-rl.

We and NumPy compute IS, WIS, PDIS, WPDIS, CIS, cross-fitted DR and WDR, and FQE, without intervals, to the same values.
scope-rl 0.2.1 has the first four for probabilities that are given: it is given those of both policies for every step,
in memory, in episodes filled up to 20 steps with steps of weight one and reward zero. We read the log from the disk,
check its digests and run the policy over it first. Seconds are of the processor, all threads together, warm.
"""

import resource
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from benchmarks.harness import run_peer, seconds, sized
from coulda.episodes import EpisodeLog, Schema, checked_log, open_log, write_log
from coulda.evaluation.doubly_robust import statistics as robust_statistics
from coulda.evaluation.fitted_q import FOLDS, cross_fitted, default_regression, fit_values, seen_by, steps_of
from coulda.evaluation.importance import KINDS
from coulda.evaluation.importance import statistics as weight_statistics
from coulda.evaluation.reading import Log, read
from coulda.policies import TabularPolicy

EPISODES, HORIZON, STATES, ACTIONS = sized(100_000, 1_000), 20, 50, 4
KEY = jax.random.key(0)


def log_and_policies() -> tuple[EpisodeLog, np.ndarray]:
    """Random transitions among 50 observations; a tenth of the episodes ends at each step."""
    rng = np.random.default_rng(0)
    behavior = rng.dirichlet(np.full(ACTIONS, 5.0), STATES)
    target = 0.7 * behavior + 0.3 * rng.dirichlet(np.full(ACTIONS, 5.0), STATES)
    lengths = np.minimum(rng.geometric(0.1, EPISODES), HORIZON)
    observation = rng.integers(0, STATES, int((lengths + 1).sum()))
    keep = np.ones(len(observation), bool)
    keep[np.cumsum(lengths + 1) - 1] = False
    cumulative = behavior[observation[keep]].cumsum(1)
    action = (rng.random(len(cumulative))[:, None] > cumulative).sum(1).clip(max=ACTIONS - 1)
    log_prob = np.log(behavior[observation[keep], action])
    schema = Schema(spaces.Discrete(STATES), spaces.Discrete(ACTIONS))
    reward = rng.normal(size=len(action)) + action
    return checked_log(schema, observation, action, reward, lengths, lengths < HORIZON, log_prob), target


def ours(log: Log, target: np.ndarray) -> dict[str, float]:
    """By the library, from one reading of the log."""
    regression = default_regression(log)
    reading = read(log, {"target": TabularPolicy(target)}, [seen_by(regression)])
    weighted, steps = reading.weighted("target"), steps_of(reading, "target", regression)
    values = {name: weight_statistics(weighted, kind).value for kind, name in KINDS.items()}
    q, v = cross_fitted(KEY, regression, steps)
    values |= {name: robust_statistics(weighted, q, v, form).value for name, form in (("DR", False), ("WDR", True))}
    return values | {"FQE": float(fit_values(regression, steps, jnp.ones(len(log))).v[:, 0].mean())}


def straightforward(log: EpisodeLog, target: np.ndarray) -> dict[str, float]:
    """By NumPy on padded arrays, from the definitions."""
    padded = jax.tree.map(np.asarray, log.padded())
    live, n = padded.live, len(log)
    observation, action = padded.observation, padded.action
    ratio = np.where(live, target[observation[:, :-1], action] / np.exp(padded.log_prob.astype(float)), 1.0)
    rho, reward = np.cumprod(ratio, axis=1), padded.reward.astype(float)
    weight, returns = rho[:, -1], reward.sum(1)
    values = {
        "IS": (weight * returns).mean(),
        "WIS": (weight * returns).sum() / weight.sum(),
        "PDIS": (rho * reward).sum(1).mean(),
        "WPDIS": ((rho * reward).sum(0) / rho.sum(0)).sum(),
        "CIS": (np.minimum(weight, np.sqrt(n)) * returns).mean(),
    }
    last = live & ~np.concatenate([live[:, 1:], np.zeros((n, 1), bool)], 1)
    goes_on = live & ~(last & log.terminated[:, None])
    tells = live & (np.arange(live.shape[1]) < live.shape[1] - 1)  # how episodes go on, which the last step does not
    fold = np.asarray(jax.random.permutation(KEY, n)) % FOLDS
    q, v = np.zeros(live.shape), np.zeros((n, live.shape[1] + 1))
    for number in range(FOLDS):
        out = fold == number
        fitted = _fit(observation, action, reward, live & ~out[:, None], tells, goes_on, target)
        q[out], v[out] = fitted[0][out], fitted[1][out]
    alive = np.concatenate([live[:, :1], goes_on], 1)
    alive[:, -1] = False
    q, v = q * live, v * alive
    delta = reward + v[:, 1:] - q
    values["DR"] = (v[:, 0] + (rho * delta).sum(1)).mean()
    values["WDR"] = v[:, 0].mean() + ((rho * delta).sum(0) / rho.sum(0)).sum()
    values["FQE"] = _fit(observation, action, reward, live, tells, goes_on, target)[1][:, 0].mean()
    return {name: float(value) for name, value in values.items()}


def _fit(observation, action, reward, used, tells, goes_on, target):
    """Means of cells at each step: Q at the actions taken `[N, T]`, and V `[N, T + 1]`."""
    horizon = reward.shape[1]
    q, v = np.zeros(reward.shape), np.zeros((len(reward), horizon + 1))
    cells, known = observation[:, :-1] * ACTIONS + action, used & tells
    mean = lambda goal, of: (
        np.bincount(cells[of], goal[of], STATES * ACTIONS)
        / np.maximum(np.bincount(cells[of], minlength=STATES * ACTIONS), 1)
    )
    paid, onward = mean(reward, used), np.zeros(STATES * ACTIONS)
    for t in range(horizon - 1, -1, -1):
        table = (paid + onward).reshape(STATES, ACTIONS)
        value = (target * table).sum(1)
        q[:, t], v[:, t] = table[observation[:, t], action[:, t]], value[observation[:, t]]
        onward = mean(np.where(goes_on, value[observation[:, 1:]], 0.0), known)
    return q, v


def importance(log: Log, target: np.ndarray) -> dict[str, float]:
    """What scope-rl computes too, by the library."""
    weighted = read(log, {"target": TabularPolicy(target)}).weighted("target")
    return {name: weight_statistics(weighted, kind).value for kind, name in KINDS.items() if name != "CIS"}


def scope_rl(log: EpisodeLog, target: np.ndarray) -> dict[str, Any]:
    """Values and warm seconds of scope-rl, in an environment of its own."""
    padded = jax.tree.map(np.asarray, log.padded())
    distribution = target[padded.observation[:, :-1]]
    distribution[~padded.live] = np.eye(ACTIONS)[0]
    arrays = {
        "action": np.where(padded.live, padded.action, 0).reshape(-1),
        "reward": padded.reward.reshape(-1).astype(float),
        "pscore": np.where(padded.live, np.exp(padded.log_prob.astype(float)), 1.0).reshape(-1),
        "evaluation_policy_action_dist": distribution.reshape(-1, ACTIONS),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.npz"
        np.savez(path, steps=padded.reward.shape[1], **arrays)
        return run_peer("scope_rl", "scope_rl_estimators.py", str(path))


def main() -> dict[str, Any]:
    """Values, times and memory."""
    log, target = log_and_policies()
    theirs = scope_rl(log, target)
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder) / "log", log)
        stored = open_log(Path(folder) / "log")
        mine = importance(stored, target)
        times = {
            "importance": {
                "from disk": seconds(lambda: importance(stored, target), 7)["processor"],
                "in memory": seconds(lambda: importance(log, target), 7)["processor"],
                "scope-rl, in memory": theirs["processor"],
            },
            "all": {
                "from disk": seconds(lambda: ours(stored, target), 5)["processor"],
                "in memory": seconds(lambda: ours(log, target), 5)["processor"],
                "numpy, in memory": seconds(lambda: straightforward(log, target), 3)["processor"],
            },
        }
        found = ours(stored, target)
    expected = straightforward(log, target)
    return {
        "episodes": EPISODES,
        "steps": log.num_steps,
        "largest difference": {
            "numpy": max(abs(found[name] - expected[name]) for name in expected),
            "scope-rl": max(abs(mine[name] - theirs["values"][name]) for name in mine),
        },
        "processor seconds": times,
        "ratio to numpy": times["all"]["numpy, in memory"] / times["all"]["from disk"],
        "ratio to scope-rl": theirs["processor"] / times["importance"]["from disk"],
        "peak memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
