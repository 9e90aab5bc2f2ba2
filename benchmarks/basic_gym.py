"""A model fitted to a log of scope-rl's BasicGym (discrete) against scope-rl's own importance sampling, in one run.

10,000 episodes of ten steps, ten actions, five dimensions; three policies; the truth is of 100,000 episodes each.
Episodes are made by BasicGym's formulas with its own coefficients, many at once, which is checked on steps that it made
itself.
scope-rl's fitted Q needs policies of d3rlpy, and is not run.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.harness import run_peer, sized
from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.evaluation import compare
from coulda.fitting import NeuralFit, fit
from coulda.noise import Categorical
from coulda.pomdp import Policy

EPISODES, TRUTH = sized((10_000, 100_000), (60, 1_000))
BEHAVIOR = 0.3
"""How sharply whoever made the log goes by the learned values."""
POLICIES = {"sharp": 3.0, "like the log": 0.5, "the other way": -0.5}


class Softmax(Policy):
    """Goes by values that are linear in the state, `[A, d + 1]`."""

    weights: Array
    sharpness: Array = eqx.field(converter=jnp.asarray)

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """Sharply or not."""
        return carry, Categorical(logits=self.sharpness * (self.weights @ jnp.append(observation, 1.0)))


class World:
    """BasicGym, many episodes at once."""

    def __init__(self, numbers: dict[str, np.ndarray]):
        self.numbers, self.horizon = numbers, int(numbers["horizon"])
        seen, done, after, paid = np.split(numbers["steps"], [5, 6, 11], axis=1)
        moved, reward = self.step(seen, done[:, 0].astype(int))
        assert np.abs(moved - after).max() < 1e-9
        assert np.abs(reward - paid[:, 0]).max() < 1e-9

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next states, and what is paid."""
        number, context = self.numbers, self.numbers["actions"][action]
        s, a = state / state.shape[1], context / context.shape[1]
        both = ((a @ number["move_state_action"].T) * s).sum(1, keepdims=True)
        moved = s @ number["move_state"].T + a @ number["move_action"].T + both
        paid = s @ number["pay_state"] + a @ number["pay_action"] + ((s @ number["pay_state_action"]) * a).sum(1)
        return moved / np.linalg.norm(moved, axis=1, keepdims=True), paid

    def run(self, rng: np.random.Generator, weights: np.ndarray, sharpness: float, episodes: int) -> tuple[Any, ...]:
        """States `[N, T, d]`, actions, rewards and probabilities `[N, T]`."""
        state, made = rng.normal(size=(episodes, 5)), []
        state /= np.linalg.norm(state, axis=1, keepdims=True)
        for _ in range(self.horizon):
            chances = probabilities(weights, sharpness, state)
            action = (chances.cumsum(1) < rng.random((episodes, 1))).sum(1).clip(0, chances.shape[1] - 1)
            moved, paid = self.step(state, action)
            made.append((state, action, paid, chances[np.arange(episodes), action]))
            state = moved
        return tuple(np.stack(x, 1) for x in zip(*made, strict=True))


def probabilities(weights: np.ndarray, sharpness: float, state: np.ndarray) -> np.ndarray:
    """Of all actions, `[n, A]`."""
    logits = sharpness * (state @ weights[:, :-1].T + weights[:, -1])
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return chances / chances.sum(1, keepdims=True)


def learned(world: World, rng: np.random.Generator) -> np.ndarray:
    """Values by regression on returns of 2,000 random episodes, `[A, d + 1]`, scaled to a spread of one."""
    state, action, reward, _ = world.run(rng, np.zeros((10, 6)), 0.0, 2000)
    to_go = np.flip(np.cumsum(np.flip(reward, 1), 1), 1).ravel()
    x, action = np.pad(state.reshape(-1, 5), ((0, 0), (0, 1)), constant_values=1.0), action.ravel()
    found = np.stack([np.linalg.lstsq(x[action == a], to_go[action == a], rcond=None)[0] for a in range(10)])
    return found / (x @ found.T).std()


def main() -> dict[str, Any]:
    """Relative errors of all."""
    rng, start = np.random.default_rng(0), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.npz"
        run_peer("scope_rl", "scope_rl_basic_gym.py", str(path))
        with np.load(path, allow_pickle=False) as file:
            world = World({name: file[name] for name in file.files})
        weights = learned(world, rng)
        state, action, reward, chance = world.run(rng, weights, BEHAVIOR, EPISODES)
        truth = {name: world.run(rng, weights, sharp, TRUTH)[2].sum(1) for name, sharp in POLICIES.items()}
        theirs = {}
        for name, sharp in POLICIES.items():
            arrays = {
                "action": action.ravel(),
                "reward": reward.ravel(),
                "pscore": chance.ravel(),
                "evaluation_policy_action_dist": probabilities(weights, sharp, state.reshape(-1, 5)),
            }
            np.savez(path, steps=world.horizon, **arrays)
            theirs[name] = run_peer("scope_rl", "scope_rl_importance.py", str(path))["values"]
    log = _log(state, action, reward, chance)
    fitted = fit(jax.random.key(0), log, NeuralFit("location_scale"))
    policies = {name: Softmax(jnp.asarray(weights, jnp.float32), sharp) for name, sharp in POLICIES.items()}
    table = compare(jax.random.key(1), log, policies, [fitted.method()])
    found = {name: {n: (r.value, r.verdict) for n, r in rows.items()} for name, rows in table.estimates.items()}
    values = {name: float(returns.mean()) for name, returns in truth.items()}
    error = lambda value, name: abs(float(value) - values[name]) / abs(values[name])
    return {
        "truth": {name: [values[name], float(x.std() / np.sqrt(len(x)))] for name, x in truth.items()},
        "coulda": found,
        "scope-rl": theirs,
        "relative errors": {
            name: {n: error(v, name) for n, (v, _) in found[name].items()}
            | {f"scope-rl, {n}": error(v, name) for n, v in theirs[name].items()}
            for name in POLICIES
        },
        "fit": {d.name: d.verdict for d in fitted.verdict},
        "processor seconds": time.process_time() - start,
    }


def _log(state: np.ndarray, action: np.ndarray, reward: np.ndarray, chance: np.ndarray) -> EpisodeLog:
    """What follows the last action is not told by BasicGym."""
    box = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    schema = Schema(box, gymnasium.spaces.Discrete(10), last_observation="repeated")
    seen = np.concatenate([state, state[:, -1:]], 1).reshape(-1, 5).astype(np.float32)
    lengths, ends = np.full(len(state), state.shape[1]), np.ones(len(state), bool)
    log = checked_log(schema, seen, action.ravel(), reward.ravel().astype(np.float32), lengths, ends)
    return log.with_log_prob(np.log(chance.ravel()), "logged")
