"""Explanations with at most k changes: the exact program over 500 episodes, the published algorithm, and a network."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import seconds, sized
from benchmarks.published_explanations import best_value, counterfactual_tables
from coulda.episodes import collect
from coulda.explanations import Question, explain, explain_log
from coulda.hindsight import ObservedStates
from coulda.policies.trainable import LinearGaussianPolicy
from coulda.pomdp import AdditiveNoisePOMDP
from coulda.studies.explanations import synthetic_world

WORLDS, EPISODES, CHANGES = sized((range(1, 11), 50, 10), (range(1, 2), 2, 1))
TIMED = sized(2, 1)
"""Episodes of the published algorithm: it takes the same time for each."""


class Network(AdditiveNoisePOMDP):
    """s' = s + f(s, a) / 10 + noise, with f a network of 200 units."""

    network: eqx.nn.MLP
    initial_mean: jax.Array
    initial_scale: jax.Array
    transition_scale: jax.Array
    num_controls: int = eqx.field(static=True, default=2)
    horizon: int = eqx.field(static=True, default=12)

    def predict(self, state: jax.Array, action: jax.Array) -> jax.Array:
        """The network's step."""
        return state + 0.1 * self.network(jnp.concatenate([state, action]))

    def reward(self, state: jax.Array, action: jax.Array, next_state: jax.Array) -> jax.Array:  # noqa: ARG002
        """Far from zero is costly."""
        return -jnp.sum(next_state**2)


def main() -> dict[str, Any]:
    worlds = [synthetic_world(seed, 1.0, EPISODES) for seed in WORLDS]
    key, asked = jax.random.key(0), Question(CHANGES)
    ours = lambda: [explain_log(key, model, log, question=asked, guarantees=False) for model, log in worlds]
    timed = seconds(ours, repeats=5)
    model, log = worlds[0]
    transition, rng = np.exp(np.asarray(model.transition_logits, float)), np.random.default_rng(0)
    start = time.perf_counter()
    for episode in (log[i] for i in range(TIMED)):
        states, actions = np.asarray(episode.observation), np.asarray(episode.action)
        tables = counterfactual_tables(rng, transition, states, actions)
        for k in range(CHANGES + 1):
            best_value(tables, np.arange(20.0), states[0], actions, k)
    published = (time.perf_counter() - start) / TIMED
    each = timed["warm"] / (len(worlds) * EPISODES)
    return {
        "500 episodes, every k up to 10": timed,
        "published, seconds an episode": published,
        "ours, seconds an episode": each,
        "times faster": published / each,
        "network of 200 units, T = 12, k = 3, 25 actions": network(),
    }


def network() -> dict[str, Any]:
    """One episode, exactly: seconds with compilation, and of another episode after it."""
    parts = eqx.nn.MLP(6, 4, 200, 1, activation=jnp.tanh, key=jax.random.key(1))
    model = Network(  # pyright: ignore[reportCallIssue]
        network=parts, initial_mean=jnp.zeros(4), initial_scale=jnp.ones(4), transition_scale=0.1 * jnp.ones(4)
    )
    log = collect(jax.random.key(2), model, LinearGaussianPolicy.zero(4, 2), 2)
    grid = np.linspace(-2, 2, 5, dtype=np.float32)
    asked = Question(3, actions=np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2))
    times, optimal = [], False
    for i in range(2):
        start = time.perf_counter()
        optimal = explain(jax.random.key(0), model, log[i], ObservedStates(model), asked).optimal
        times.append(time.perf_counter() - start)
    return {"first": times[0], "second": times[1], "optimal": optimal}
