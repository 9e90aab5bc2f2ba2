"""`rollout`: run an actor in a model on one scenario. All chance is in the scenario; there is no key."""

from typing import Any

import jax
import jax.numpy as jnp

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


def _append(steps: Any, last: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), steps, last)
