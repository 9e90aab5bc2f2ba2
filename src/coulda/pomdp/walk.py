"""An actor over a logged episode: what it would have remembered, and what it says at each step.

`rollout` makes an episode; `walk` goes along one that was made already. Recurrent policies are run over the logged
history, so that what they remember is what they would have remembered.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical
from coulda.pomdp.actors import Actor, Carry, Policy
from coulda.pomdp.rollout import Episode

Ask = Callable[..., tuple[Carry, Any]]
"""(carry, observation, action, *extra) -> the carry after the observation, and what is told of the step."""


def walk(actor: Actor, episode: Episode, ask: Ask, *extra: Any, closing: bool = False) -> Any:
    """What `ask` tells at each step of `episode`, `[T, ...]`.

    Args:
        actor: who remembers; `ask` is what calls it, and may look at more than its distribution.
        episode: an episode of T steps; what is told after its end means nothing.
        ask: see `Ask`.
        *extra: pytrees `[T, ...]` that `ask` is given a step of each, such as hidden states or noise.
        closing: whether to ask after the last observation too, `[T + 1, ...]`. Nothing was done there: `ask` is given
            the last action again, and what is remembered of it is not used.
    """
    observations, actions, rewards = episode.observation, episode.action, episode.reward
    if closing:
        actions = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), actions)
        rewards = jnp.concatenate([rewards, jnp.zeros(1)])
    else:
        observations = jax.tree.map(lambda leaf: leaf[:-1], observations)

    def step(carry: Carry, inputs: tuple[Any, ...]) -> tuple[Carry, Any]:
        observation, action, reward, *more = inputs
        carry, told = ask(carry, observation, action, *more)
        return actor.remember(carry, action, reward), told

    start, inputs = actor.initial_carry(), (observations, actions, rewards, *extra)
    if not remembers(actor):  # and so can be asked about all steps at once
        return jax.vmap(lambda one: step(start, one)[1])(inputs)
    return jax.lax.scan(step, start, inputs)[1]


def remembers(actor: Actor) -> bool:
    """Whether what the actor says of a step may depend on those before."""
    return bool(jax.tree.leaves(actor.initial_carry()))


def log_probs_of(actions: Array, every: Array) -> Array:
    """Those of the actions `[T]`, out of log-probabilities of all `[T, A]`; -inf of what is none of them."""
    inside = (actions >= 0) & (actions < every.shape[-1])
    at = jnp.clip(actions, 0, every.shape[-1] - 1)
    return jnp.where(inside, jnp.take_along_axis(every, at[:, None], 1)[:, 0], -jnp.inf)


def taken_log_probs(policy: Policy, episode: Episode) -> Array:
    """Log π(a_t | h_t) of the logged actions, `[T]`; zero after the end."""

    def ask(carry: Carry, observation: Any, action: Any) -> tuple[Carry, Array]:
        carry, distribution = policy(carry, observation)
        return carry, distribution.log_prob(action)

    return jnp.where(episode.live, walk(policy, episode, ask), 0.0)


def next_actions(policy: Policy, episode: Episode, points: np.ndarray) -> Array:
    """What π would do after each observation where its noise were each of `points` `[K, k]`, `[T + 1, K, k]`.

    The points are of a standard normal distribution, which the policy's own is made from (`from_normal`).
    """

    def ask(carry: Carry, observation: Any, action: Any) -> tuple[Carry, Array]:
        carry, distribution = policy(carry, observation)
        given = jnp.asarray(points, jnp.float32).reshape(len(points), *action.shape)
        return carry, jax.vmap(distribution.from_normal)(given).reshape(points.shape)

    return walk(policy, episode, ask, closing=True)


def all_log_probs(policy: Policy, episode: Episode) -> Array:
    """Log π(a | h_t) of every discrete action after each observation, `[T + 1, A]`."""

    def ask(carry: Carry, observation: Any, action: Any) -> tuple[Carry, Array]:  # noqa: ARG001
        carry, distribution = policy(carry, observation)
        if not isinstance(distribution, Categorical):
            raise CouldaError(f"this needs discrete actions; the policy returns a {type(distribution).__name__}")
        return carry, jax.nn.log_softmax(distribution.logits)

    return walk(policy, episode, ask, closing=True)
