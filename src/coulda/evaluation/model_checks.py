"""Does the model agree with the log? Checks that need no truth."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic
from coulda.hindsight import Prior, ScenarioSource
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.pomdp.scenario import at_step


class Replay(eqx.Module):
    """How well a scenario reproduces the logged episode under its own actions, within the history it was given."""

    agrees: Array
    """Steps of the history whose observation, and whose reward before it, come out as logged."""
    steps: Array
    """Steps of the history."""


def replay(model: POMDP, scenario: Scenario, episode: Episode, steps: Array) -> Replay:
    """Run the logged actions on `scenario`, and compare with what was logged up to h_t, t = `steps`."""

    def step(state: Any, t: Array) -> tuple[Any, tuple[Any, Array]]:
        action = jax.tree.map(lambda leaf: leaf[t], episode.action)
        observation = model.observe(state, at_step(scenario.observation, t))
        next_state = model.transition(state, action, at_step(scenario.transition, t))
        return next_state, (observation, model.reward(state, action, next_state))

    last, (observations, rewards) = jax.lax.scan(step, model.initial(scenario.initial), jnp.arange(model.horizon))
    closing = model.observe(last, at_step(scenario.observation, model.horizon))
    observations = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), observations, closing)
    seen = jax.tree.leaves(jax.tree.map(_same_rows, observations, episode.observation))
    paid = jnp.concatenate([jnp.ones(1, bool), _same_rows(rewards, episode.reward)])
    within = jnp.arange(model.horizon + 1) < jnp.minimum(steps, episode.length + 1)
    return Replay(jnp.sum(within & paid & jnp.stack(seen).all(0)), jnp.sum(within))


def _same_rows(a: Array, b: Array) -> Array:
    """Whether rows are equal, numbers to 1e-3 of their size: inferred noise passes through float32 and back."""
    a, b = a.reshape(len(a), -1).astype(float), b.reshape(len(b), -1).astype(float)
    return (jnp.abs(a - b) <= 1e-3 * (1 + jnp.abs(b))).all(1)


def replay_diagnostic(source: ScenarioSource, replays: Replay) -> tuple[Diagnostic, ...]:
    """Posterior-predictive replay; nothing to say of the prior, which was given no history."""
    if isinstance(source, Prior) or not np.sum(replays.steps):
        return ()
    missed = 1 - float(np.sum(replays.agrees) / np.sum(replays.steps))
    return (
        Diagnostic(
            "replay",
            1 - missed,
            # An exact posterior misses nothing. One step in a hundred is an episode in two of 50 steps that is not
            # quite the logged one; one in ten is no hindsight at all.
            graded(missed, 0.01, 0.1),
            f"Under the logged actions the inferred scenarios reproduce {1 - missed:.1%} of the logged steps.",
        ),
    )
