"""Models fitted to logs of scope-rl's own worlds against scope-rl's own estimators, in one run.

BasicGym with discrete and with continuous actions, and RTBGym; 10,000 logged episodes, the truth of 100,000 each; three
seeds of logs, policies and fits. Episodes are made by scope-rl's formulas with its own numbers, many at once, which is
checked on what it made itself (`scope_worlds`). Policies are as its tutorials have them: values that were learned from
random episodes, greedy and mixed with the uniform, and the uniform by itself; Gaussian ones that were found by random
search.
`SEEDS=1` in the environment runs that seed alone.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.harness import run_peer, sized
from benchmarks.scope_worlds import Basic, Choose, Rtb, World, climbed, discrete, gaussian, learned, probabilities
from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.evaluation import compare
from coulda.fitting import NeuralFit, fit
from coulda.noise import Categorical, Normal
from coulda.pomdp import Policy

EPISODES, TRUTH, UPDATES = sized((10_000, 100_000, 10_000), (60, 1_000, 20))
"""Logged; of the truth; and of scope-rl's fitted Q, as it has them by default."""
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "0 1 2").split()]
BARS = {"basic-discrete": 0.02, "rtb": 0.05, "basic-continuous": 0.03}
GREEDY = 100.0
BEHAVIOR = 0.3
"""How sharply whoever made the log goes by the learned values, whose spread is one."""
MIXED = {"greedy": (GREEDY, 0.0), "a fifth at random": (GREEDY, 0.2), "random": (0.0, 1.0)}
CLIMBED = {"30 rounds": (30, 0.5), "100 rounds": (100, 0.7)}
"""Rounds of random search, and the deviation; whoever made the log has 10 and 0.5."""


class Mixture(Policy):
    """Softmax of values that are linear in the state, mixed with the uniform."""

    weights: Array
    sharpness: Array = eqx.field(converter=jnp.asarray)
    epsilon: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """As `scope_worlds.probabilities`."""
        chances = jax.nn.softmax(self.sharpness * (self.weights @ jnp.append(observation, 1.0)))
        return carry, Categorical((1 - self.epsilon) * chances + self.epsilon / len(chances))


class Around(Policy):
    """Normal around tanh of a linear function of the state."""

    weights: Array
    deviation: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Normal]:
        """As `scope_worlds.gaussian`."""
        return carry, Normal(jnp.tanh(self.weights @ jnp.append(observation, 1.0)), self.deviation)


@dataclass(frozen=True)
class Asked:
    """A policy: ours, as one that acts in many episodes at once, and what scope-rl is told of it on logged states."""

    policy: Policy
    choose: Choose
    told: Callable[[np.ndarray], dict[str, np.ndarray]]
    numbers: dict[str, np.ndarray]
    """For scope-rl's fitted Q, which asks for actions in states of its own choice."""


def asked(world: World, rng: np.random.Generator) -> tuple[Choose, dict[str, Asked]]:
    """Whoever makes the log, and the policies."""
    if isinstance(world, Basic) and not world.discrete:
        found = {
            name: (climbed(world, np.random.default_rng(7), rounds), deviation)
            for name, (rounds, deviation) in CLIMBED.items()
        }
        behavior = gaussian(climbed(world, np.random.default_rng(7), 10), 0.5)
        return behavior, {name: _gaussian(rng, *one) for name, one in found.items()}
    weights = learned(world, rng)
    return discrete(weights, BEHAVIOR, 0.0), {name: _mixture(weights, *one) for name, one in MIXED.items()}


def _mixture(weights: np.ndarray, sharpness: float, epsilon: float) -> Asked:
    told = lambda state: {"evaluation_policy_action_dist": probabilities(weights, sharpness, epsilon, state)}
    policy = Mixture(jnp.asarray(weights, jnp.float32), sharpness, epsilon)
    numbers = {"weights": weights, "settings": np.array([sharpness, epsilon])}
    return Asked(policy, discrete(weights, sharpness, epsilon), told, numbers)


def _gaussian(rng: np.random.Generator, weights: np.ndarray, deviation: float) -> Asked:
    choose = gaussian(weights, deviation)
    told = lambda state: {"evaluation_policy_action": choose(state, rng)[0]}
    numbers = {"weights": weights, "settings": np.array([deviation])}
    return Asked(Around(jnp.asarray(weights, jnp.float32), deviation), choose, told, numbers)


def main() -> dict[str, Any]:
    """Of all worlds and seeds."""
    with tempfile.TemporaryDirectory() as folder:
        run_peer("scope_rl", "scope_rl_worlds.py", folder)
        numbers = {name: dict(np.load(Path(folder) / f"{name}.npz", allow_pickle=False)) for name in BARS}
        worlds = {name: (Rtb if name == "rtb" else Basic)(one) for name, one in numbers.items()}
        return {
            name: {"bar": BARS[name], "seeds": {str(seed): one(seed, world, Path(folder)) for seed in SEEDS}}
            for name, world in worlds.items()
        }


def one(seed: int, world: World, folder: Path) -> dict[str, Any]:
    """Relative errors of all on one log."""
    rng, start = np.random.default_rng(seed), time.process_time()
    behavior, policies = asked(world, rng)
    logged = world.run(rng, behavior, EPISODES)
    truth = {name: world.run(rng, of.choose, TRUTH)[2].sum(1) for name, of in policies.items()}
    theirs = {name: _theirs(folder / "log.npz", world, logged, of) for name, of in policies.items()}
    log, begun = _log(*logged), time.process_time()
    fitted = fit(jax.random.key(seed), log, NeuralFit("location_scale"))
    table = compare(jax.random.key(seed + 1), log, {n: of.policy for n, of in policies.items()}, [fitted.method()])
    values = {name: float(returns.mean()) for name, returns in truth.items()}
    rows = {
        name: {method: _told(row, values[name]) for method, row in methods.items()}
        | {f"scope-rl, {n}": {"value": v, "error": _error(v, values[name])} for n, v in theirs[name].items()}
        for name, methods in table.estimates.items()
    }
    return {
        "logged mean": float(logged[2].sum(1).mean()),
        "truth": {name: [values[name], float(x.std() / np.sqrt(len(x)))] for name, x in truth.items()},
        "rows": rows,
        "fit": {d.name: d.verdict for d in fitted.verdict},
        "processor seconds": {
            "all": round(time.process_time() - start, 1),
            "fit and table": round(time.process_time() - begun, 1),
        },
    }


def _told(row: Any, truth: float) -> dict[str, Any]:
    limits = row.interval
    doubts = {d.name: d.verdict for d in row.diagnostics if d.verdict != "trust"}
    inside = None if limits is None else bool(limits.low <= truth <= limits.high)
    verdict = {"verdict": row.verdict, "doubts": doubts, "covers": inside}
    return {"value": row.value, "error": _error(row.value, truth)} | verdict


def _error(value: float, truth: float) -> float:
    return abs(float(value) - truth) / abs(truth)


def _theirs(path: Path, world: World, logged: tuple[Any, ...], of: Asked) -> dict[str, float]:
    """All of scope-rl's importance sampling, and what rests on its fitted Q."""
    state, action, reward, chance = logged
    flat, seen = action.reshape(-1, *action.shape[2:]), state.reshape(-1, state.shape[2])
    arrays = of.told(seen) | of.numbers | {"steps": np.asarray(world.horizon), "state": seen}
    if action.ndim == 3:
        # Its densities are of the dimensions of an action, and are multiplied.
        chance = np.repeat(chance.reshape(-1, 1) ** (1 / 3), 3, 1)
    arrays |= {"action": flat, "reward": reward.ravel(), "pscore": chance.reshape(flat.shape)}
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return run_peer("scope_rl", "scope_rl_estimators.py", str(path), str(UPDATES))["values"]


def _log(state: np.ndarray, action: np.ndarray, reward: np.ndarray, chance: np.ndarray) -> EpisodeLog:
    """What follows the last action is not told by these worlds."""
    size = state.shape[2]
    done = gymnasium.spaces.Discrete(10)
    if action.ndim == 3:
        done = gymnasium.spaces.Box(-np.inf, np.inf, action.shape[2:], np.float32)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    schema = Schema(box, done, last_observation="repeated")
    seen = np.concatenate([state, state[:, -1:]], 1).reshape(-1, size).astype(np.float32)
    acts = action.reshape(-1, *action.shape[2:])
    lengths, ends = np.full(len(state), state.shape[1]), np.ones(len(state), bool)
    acts = acts if action.ndim == 2 else acts.astype(np.float32)
    log = checked_log(schema, seen, acts, reward.ravel().astype(np.float32), lengths, ends)
    return log.with_log_prob(np.log(chance.ravel()), "logged")
