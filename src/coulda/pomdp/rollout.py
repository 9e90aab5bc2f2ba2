"""`rollout`: run an actor, or given actions, in a model on one scenario. All chance is in it; there is no key."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp.actors import Actor, choose
from coulda.pomdp.episode import Episode, Trajectory
from coulda.pomdp.model import POMDP
from coulda.pomdp.scenario import Scenario, at_step


def rollout(model: POMDP, actor: Actor, scenario: Scenario) -> Trajectory:
    """The trajectory of `actor` in `model` on `scenario`, of `model.horizon` steps.

    Terminal states are absorbing: once there, the state stays, the reward is 0 and `live` is False.
    For many scenarios, `batched(lambda u: rollout(model, actor, u), scenarios)`.
    """

    def step(carry: Any, t: Any) -> tuple[Any, Any]:
        state, memory = carry
        live = ~model.terminal(state)
        observation = model.observe(state, at_step(scenario.observation, t))
        memory, distribution = choose(actor, memory, state, observation)
        action = model.action_mechanism(distribution, at_step(scenario.action, t))
        moved = model.transition(state, action, at_step(scenario.transition, t))
        next_state = jax.tree.map(lambda new, old: jnp.where(live, new, old), moved, state)
        reward = jnp.where(live, model.reward(state, action, next_state), 0.0)
        memory = actor.remember(memory, action, reward)
        return (next_state, memory), (state, observation, action, reward, live, distribution.log_prob(action))

    start = model.initial(scenario.initial), actor.initial_carry()
    (last, _), steps = jax.lax.scan(step, start, jnp.arange(model.horizon))
    states, observations, action, reward, live, log_prob = steps
    last_observation = model.observe(last, at_step(scenario.observation, model.horizon))
    episode = Episode(_append(observations, last_observation), action, reward, live, log_prob)
    return Trajectory(_append(states, last), episode)


def run_actions(model: POMDP, scenario: Scenario, actions: Any) -> tuple[Any, Any, Array]:
    """States and observations `[T + 1, ...]` and rewards `[T]` of given actions `[T, ...]` on `scenario`.

    They go on after an end: what was logged has its own, and whether it is the model's is a question.
    """

    def step(state: Any, t: Array) -> tuple[Any, tuple[Any, Any, Array]]:
        action = jax.tree.map(lambda leaf: leaf[t], actions)
        observation = model.observe(state, at_step(scenario.observation, t))
        next_state = model.transition(state, action, at_step(scenario.transition, t))
        return next_state, (state, observation, model.reward(state, action, next_state))

    start, times = model.initial(scenario.initial), jnp.arange(model.horizon)
    last, (states, observations, rewards) = jax.lax.scan(step, start, times)
    last_observation = model.observe(last, at_step(scenario.observation, model.horizon))
    return _append(states, last), _append(observations, last_observation), rewards


def _append(steps: Any, last: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), steps, last)
