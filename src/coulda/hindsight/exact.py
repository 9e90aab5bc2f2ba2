"""`Exact`: p(U | h_t) without approximation, for finite and for linear-Gaussian models.

Hidden states first, then noise. In a finite model the hidden states are drawn from p(s_1 … s_t | h_t) by forward
filtering and backward sampling over the states that agree with each observation; given them, each noise has a
posterior of its own, which its mechanism knows. In a linear-Gaussian model see `coulda.hindsight.gaussian`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from coulda.errors import CouldaError
from coulda.hindsight.gaussian import gaussian_log_evidence, gaussian_noise
from coulda.hindsight.source import (
    ALL_STEPS,
    Inference,
    ScenarioSource,
    action_noise,
    fresh,
    history_length,
    other_key,
    reward_unit,
    where_known,
)
from coulda.pomdp import Actor, Episode, FinitePOMDP, LinearGaussianPOMDP, Planner, Scenario
from coulda.pomdp.rollout import walk
from coulda.pomdp.scenario import entry


class Exact(ScenarioSource):
    """Draws of the exact posterior p(U | h_t) under `model`.

    Args:
        model: a `FinitePOMDP` or a `LinearGaussianPOMDP`.
        behavior: who acted. With it the noise of its actions is inferred as well, so that replaying the episode
            returns it; without it that noise is drawn afresh (Corollary 2). If a planner acted, its actions tell
            of the hidden state: then it must be given, or the posterior is wrong (confounded). A planner's memory
            must not depend on the state.

    Rewards are evidence in finite models, unless they vary round the model's (`rewards_vary`). In linear-Gaussian
    models only observations and actions are, so that the posterior stays Gaussian; by Lemma 1 any part of the history
    gives unbiased counterfactuals.
    """

    model: FinitePOMDP | LinearGaussianPOMDP
    behavior: Actor | None
    steps: Array

    def __init__(self, model: FinitePOMDP | LinearGaussianPOMDP, behavior: Actor | None = None):
        if not isinstance(model, FinitePOMDP | LinearGaussianPOMDP):
            raise CouldaError(
                f"no exact posterior is known for {type(model).__name__}; it is for subclasses of FinitePOMDP and "
                "LinearGaussianPOMDP."
            )
        if isinstance(behavior, Planner) and isinstance(model, LinearGaussianPOMDP) and model.C is not None:
            raise CouldaError("a planner's actions tell of a hidden Gaussian state; only policies are exact there.")
        self.model, self.behavior, self.steps = model, behavior, jnp.int32(ALL_STEPS)

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        return self._draw(key, episode, self._filtered(episode))

    def _draw(self, key: Array, episode: Episode, filtered: tuple[Any, Array] | None) -> Scenario:
        noise, length = fresh(key, self.model), history_length(episode, self.steps)
        if isinstance(self.model, LinearGaussianPOMDP):
            inferred, states = gaussian_noise(self.model, episode, length, noise)
        else:
            assert filtered is not None
            states = _sample_states(other_key(key), self.model, episode, length, *filtered)
            inferred = finite_noise(self.model, states, episode, noise)
        if self.behavior is not None:
            actions = action_noise(self.model, self.behavior, states, episode, noise.action)
            inferred = eqx.tree_at(lambda s: s.action, inferred, actions)
        return _only_history(inferred, noise, length)

    @property
    def answers_many(self) -> bool:
        """By a smoother; in finite models every draw walks back by itself, and carries `fresh` onto the posterior."""
        return isinstance(self.model, LinearGaussianPOMDP)

    @property
    def weighs_rewards(self) -> bool:
        """Where the states are finite, or seen, and rewards do not vary round those of the model."""
        if isinstance(self.model, FinitePOMDP):
            return not self.model.rewards_vary
        return self.model.C is None

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """Each by itself, from one filter, whose evidence it is."""
        filtered = self._filtered(episode)
        drawn = jax.vmap(lambda one: self._draw(one, episode, filtered))(jax.random.split(key, count))
        return drawn, Inference.exact(self._evidence(episode, filtered))

    def log_evidence(self, episode: Episode) -> Array:
        """Log p(h_t), -inf for what the model holds to be impossible.

        Of observations, ends and rewards in a finite model; of observations in a linear-Gaussian one.
        """
        return self._evidence(episode, self._filtered(episode))

    def _filtered(self, episode: Episode) -> tuple[Any, Array] | None:
        """What `filter_states` says of a finite model; None of a linear-Gaussian one."""
        if isinstance(self.model, LinearGaussianPOMDP):
            return None
        return filter_states(self.model, self.behavior, episode, history_length(episode, self.steps))

    def _evidence(self, episode: Episode, filtered: tuple[Any, Array] | None) -> Array:
        length = history_length(episode, self.steps)
        if isinstance(self.model, LinearGaussianPOMDP):
            return gaussian_log_evidence(self.model, episode, length)
        assert filtered is not None
        return jnp.where(length == 0, 0.0, logsumexp(filtered[1][jnp.maximum(length - 1, 0)]))


def filter_states(model: FinitePOMDP, behavior: Actor | None, episode: Episode, length: Array) -> tuple[Any, Array]:
    """Forward filtering: states `[T + 1, K, ...]`, and log p(s_i, h_i) `[T + 1, K]` for i < `length`.

    Entries past the history repeat the last one and mean nothing.
    """
    previous = jnp.concatenate([jnp.full((1,), -1, episode.action.dtype), episode.action])
    states = jax.vmap(model.states)(previous, episode.observation)
    node = _node_log_probs(model, behavior, states, episode, length)
    first, unit = jax.vmap(model.initial_log_prob)(entry(states, 0)) + node[0], reward_unit(episode, length)

    def step(message: Array, i: Array) -> tuple[Array, Array]:
        arrived = logsumexp(message[:, None] + _edge_log_probs(model, states, episode, i, unit), axis=0) + node[i]
        message = jnp.where(i < length, arrived, message)
        return message, message

    _, later = jax.lax.scan(step, first, jnp.arange(1, model.horizon + 1))
    return states, jnp.concatenate([first[None], later])


def _sample_states(
    key: Array, model: FinitePOMDP, episode: Episode, length: Array, states: Any, log_filter: Array
) -> Any:
    """Backward sampling after `filter_states`: s_1 … s_t ~ p(· | h_t), `[T + 1, ...]`; what follows means nothing."""
    unit = reward_unit(episode, length)

    def step(chosen: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        i, key = inputs
        onward = _edge_log_probs(model, states, episode, jnp.minimum(i + 1, model.horizon), unit)[:, chosen]
        logits = log_filter[i] + jnp.where(i + 1 < length, onward, 0.0)
        chosen = jax.random.categorical(key, logits)
        return chosen, chosen

    order, keys = jnp.arange(model.horizon + 1), jax.random.split(key, model.horizon + 1)
    # 0, made of what is batched, as in `TabularPOMDP.initial`.
    _, path = jax.lax.scan(step, (length * 0).astype(int), (order, keys), reverse=True)
    return jax.vmap(entry)(states, path)


def finite_noise(model: FinitePOMDP, states: Any, episode: Episode, noise: Scenario) -> Scenario:
    """Each noise from its own posterior, given the hidden states `[T + 1, ...]`; actions keep their noise."""
    before, after = (jax.tree.map(lambda leaf, s=s: leaf[s], states) for s in (slice(-1), slice(1, None)))
    return Scenario(
        initial=model.initial_posterior(entry(states, 0), noise.initial),
        transition=jax.vmap(model.transition_posterior)(before, episode.action, after, noise.transition),
        observation=jax.vmap(model.observation_posterior)(states, episode.observation, noise.observation),
        action=noise.action,
    )


def _node_log_probs(model: FinitePOMDP, behavior: Actor | None, states: Any, episode: Episode, length: Array) -> Array:
    """What h_t says of each state by itself, `[T + 1, K]`: observations, whether it was the end, a planner's acts."""
    seen = jax.vmap(lambda o, s: jax.vmap(lambda one: model.observation_log_prob(o, one))(s))
    log_probs = seen(episode.observation, states)
    over = jax.vmap(jax.vmap(model.terminal))(jax.tree.map(lambda leaf: leaf[:-1], states))
    # A log that ends where no state can be terminal was cut short, which says nothing.
    ended = ~episode.live[:, None] & over.any(1, keepdims=True)
    agrees = jnp.where(over == ended, 0.0, -jnp.inf)
    if isinstance(behavior, Planner):
        acts = jnp.arange(model.horizon) + 1 < length
        agrees += jnp.where(acts[:, None], _planner_log_probs(behavior, states, episode), 0.0)
    return log_probs + jnp.concatenate([agrees, jnp.zeros_like(agrees[:1])])


def _edge_log_probs(model: FinitePOMDP, states: Any, episode: Episode, i: Array, unit: Array) -> Array:
    """Log p(s_i, r_{i-1} | s_{i-1}, a_{i-1}), `[K, K]`: rewards are noiseless, so they agree or they do not."""
    action, reward = episode.action[i - 1], episode.reward[i - 1]

    def edge(state: Any, next_state: Any) -> Array:
        paid = model.reward(state, action, next_state)
        # Logs may have passed through another float type; this still tells apart rewards that differ at all.
        agrees = (jnp.abs(paid - reward) <= 1e-4 * (unit + jnp.abs(reward))) | model.rewards_vary
        return model.transition_log_prob(state, action, next_state) + jnp.where(agrees, 0.0, -jnp.inf)

    before, after = entry(states, i - 1), entry(states, i)
    return jax.vmap(lambda s: jax.vmap(lambda n: edge(s, n))(after))(before)


def _planner_log_probs(planner: Planner, states: Any, episode: Episode) -> Array:
    """Log λ(a_t | s_t, h_t) for each state that s_t may be, `[T, K]`."""

    def ask(carry: Any, observation: Any, action: Any, candidates: Any) -> tuple[Any, Array]:
        def one(state: Any) -> tuple[Any, Array]:
            after, distribution = planner(carry, state, observation)
            return after, distribution.log_prob(action)

        carries, log_probs = jax.vmap(one)(candidates)
        return entry(carries, 0), log_probs

    return walk(planner, episode, ask, jax.tree.map(lambda leaf: leaf[:-1], states))


def _only_history(inferred: Scenario, noise: Scenario, length: Array) -> Scenario:
    """Inferred noise where h_t reaches, and fresh noise beyond."""
    horizon = jax.tree.leaves(noise.action)[0].shape[0]
    seen = jnp.arange(horizon + 1) < length
    return Scenario(
        initial=where_known(length > 0, inferred.initial, noise.initial),
        transition=where_known(seen[1:], inferred.transition, noise.transition),
        observation=where_known(seen, inferred.observation, noise.observation),
        action=where_known(seen[1:], inferred.action, noise.action),
    )
