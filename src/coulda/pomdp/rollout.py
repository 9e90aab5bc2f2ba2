"""`rollout`: run an actor, or given actions, in a model on one scenario. All chance is in it; there is no key.

What an episode leaves behind: `Episode` is what can be logged, `Trajectory` adds the hidden states. `walk` goes along
an episode that was made already: what an actor would have remembered, and what it says at each step.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical
from coulda.pomdp.actors import Actor, Carry, Policy, choose
from coulda.pomdp.model import POMDP
from coulda.pomdp.scenario import Scenario, at_step, entry

FIELDS = ("state", "observation", "action", "reward")
"""What a step makes, in that order."""
FINE = -1
Ask = Callable[..., tuple[Carry, Any]]
"""(carry, observation, action, *extra) -> the carry after the observation, and what is told of the step."""


class Episode(eqx.Module):
    """The visible part of one episode of at most T steps: the history h, padded to T."""

    observation: Any
    """o_1 … o_{T+1}, `[T + 1, ...]`: the last one follows the last action."""
    action: Any
    """a_1 … a_T, `[T, ...]`."""
    reward: Array
    """r_1 … r_T, `[T]`; zero after the end."""
    live: Array
    """`[T]`, True where the step was taken, False after the episode's end."""
    log_prob: Array
    """log μ(a_t | h_t) under the policy that acted, `[T]`; NaN where it is not known."""

    @property
    def episode_return(self) -> Array:
        """G = Σ_t r_t, undiscounted."""
        return jnp.sum(self.reward, axis=-1)

    def discounted_return(self, discount: float) -> Array:
        """G = Σ_t γ^t r_t, t from 0."""
        if discount == 1:
            return self.episode_return
        worth = np.asarray(discount ** np.arange(self.reward.shape[-1]), np.float32)
        return jnp.einsum("...t,t->...", self.reward, worth)

    @property
    def length(self) -> Array:
        """The number of steps taken."""
        return jnp.sum(self.live, axis=-1)


class Trajectory(eqx.Module):
    """τ: an episode together with its hidden states."""

    state: Any
    """s_1 … s_{T+1}, `[T + 1, ...]`."""
    episode: Episode

    @property
    def episode_return(self) -> Array:
        """G, undiscounted."""
        return self.episode.episode_return

    @property
    def first_flaw(self) -> Array:
        """Step and field of the first number that is none, as step · 4 + field of `FIELDS`; `FINE` where all are fine.

        States and observations may hold infinities, rewards and actions may not. A discrete action that was drawn from
        probabilities that are NaN is flawed too. Only live steps count.
        """
        episode, steps = self.episode, self.episode.reward.shape[0]
        action = _any(lambda leaf: ~jnp.isfinite(leaf), episode.action, steps)
        if not any(map(_is_float, jax.tree.leaves(episode.action))):
            action |= jnp.isnan(episode.log_prob)
        seen = _any(jnp.isnan, self.state, steps), _any(jnp.isnan, episode.observation, steps)
        flaws = jnp.stack([*seen, action, ~jnp.isfinite(episode.reward)], axis=1)
        flaws = (flaws & episode.live[:, None]).reshape(-1)
        return jnp.where(flaws.any(), jnp.argmax(flaws), FINE).astype(jnp.int32)


def check_discount(discount: float) -> None:
    """Refuse what is no discount."""
    if not 0 < discount <= 1:
        raise CouldaError(f"discount is {discount}; it must lie in (0, 1], such as 0.99, 1 being no discount")


def _any(test: Callable[[Array], Array], tree: Any, steps: int) -> Array:
    """Whether any number of each of the first steps fails the test, `[T]`; integers never do."""
    found = [test(leaf[:steps]).reshape(steps, -1).any(1) for leaf in jax.tree.leaves(tree) if _is_float(leaf)]
    return jnp.stack(found).any(0) if found else jnp.zeros(steps, bool)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


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
        action = entry(actions, t)
        observation = model.observe(state, at_step(scenario.observation, t))
        next_state = model.transition(state, action, at_step(scenario.transition, t))
        return next_state, (state, observation, model.reward(state, action, next_state))

    start, times = model.initial(scenario.initial), jnp.arange(model.horizon)
    last, (states, observations, rewards) = jax.lax.scan(step, start, times)
    last_observation = model.observe(last, at_step(scenario.observation, model.horizon))
    return _append(states, last), _append(observations, last_observation), rewards


def _append(steps: Any, last: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), steps, last)


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
