"""What a history says of a scenario: log p(h_t | u), step by step and for whole paths.

Evidence is the observations; whether the episode was over, where the log does not stop before the model would;
rewards where they take separate values, or with a stated standard deviation; and, of a planner, its actions, which tell
of the state. A part of it is a density, the other holds or does not: the two are kept apart (`Agreement`), so that
tempering can bring in both little by little.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.abduction import flat_in
from coulda.errors import CouldaError
from coulda.hindsight.source import history_length, reward_unit
from coulda.pomdp import POMDP, Actor, BlackBoxPOMDP, Episode, Planner
from coulda.pomdp.observing import no_density, state_shapes, weight_of

TOLERANCE = 1e-4
"""Of a reward: logs may have passed through another float type; this still tells apart rewards that differ at all."""


class Agreement(eqx.Module):
    """How well something agrees with a history."""

    log_density: Array
    """Of what has a density; finite."""
    violations: Array
    """How many steps are impossible, as a float: then the likelihood is zero."""
    flawed: Array
    """Whether a density was NaN or +inf, which is a mistake in the model."""

    @property
    def log_likelihood(self) -> Array:
        """Log p(h_t | u)."""
        return jnp.where(self.violations > 0, -jnp.inf, self.log_density)

    def tempered(self, temperature: Array) -> Array:
        """β log p for β in [0, 1]; what is impossible is forbidden little by little, and for good at β = 1."""
        penalty = temperature / jnp.maximum(1 - temperature, 1e-9)
        forbidden = jnp.where(temperature >= 1, -jnp.inf, -penalty * self.violations)
        return temperature * self.log_density + jnp.where(self.violations > 0, forbidden, 0.0)


class Seen(eqx.Module):
    """An episode by the states it may tell of: entry i of `[T + 1, ...]` is what is seen in s_i and done there."""

    observation: Any
    within: Array
    """Whether h_t has the observation."""
    live: Array
    """Whether an action was taken: then the state was not terminal."""
    ended: Array
    """Whether the episode stopped here, before the horizon."""
    action: Any
    reward: Array
    unit: Array
    """What rewards near 0 are compared with."""
    acted: Array
    """Whether h_t has the action and its reward."""


def seen_in(episode: Episode, steps: Array) -> Seen:
    """What h_t, t = `steps`, has of `episode`."""
    length, horizon = history_length(episode, steps), episode.reward.shape[0]
    order = jnp.arange(horizon + 1)
    closing = lambda leaf: jnp.concatenate([leaf, leaf[-1:]])
    live = jnp.concatenate([episode.live, jnp.zeros(1, bool)])
    return Seen(
        observation=episode.observation,
        within=order < length,
        live=live,
        ended=(order == episode.length) & (order < horizon),
        action=jax.tree.map(closing, episode.action),
        reward=closing(episode.reward),
        unit=jnp.full(horizon + 1, reward_unit(episode, length)),
        acted=order + 1 < length,
    )


class Evidence(eqx.Module):
    """Which parts of a history are held against a scenario of `model`."""

    model: POMDP
    behavior: Actor | None
    rewards: bool = eqx.field(static=True)
    """Whether rewards are evidence."""
    reward_scale: float | None = eqx.field(static=True)
    """The standard deviation of logged rewards; without it they must agree."""

    @classmethod
    def of(cls, model: POMDP, behavior: Actor | None = None, reward_scale: float | None = None) -> "Evidence":
        """All that can be used: rewards where they take separate values, or their standard deviation is stated."""
        if reason := no_density(model):
            raise CouldaError(f"scenarios cannot be weighed by what was seen: {reason}")
        if reward_scale is not None and not reward_scale > 0:
            raise CouldaError(f"reward_scale is {reward_scale}; it is a standard deviation, and more than 0.")
        return cls(model, behavior, reward_scale is not None or separate_rewards(model), reward_scale)

    @property
    def names(self) -> tuple[str, ...]:
        """What is used, for people."""
        found = ["observations", "ends"]
        return (*found, *(["rewards"] if self.rewards else []), *(["a planner's actions"] if self.confounded else []))

    @property
    def confounded(self) -> bool:
        """Whether actions tell of the state."""
        return isinstance(self.behavior, Planner)

    def of_state(self, memory: Any, state: Any, seen: Seen, cut_short: Array) -> tuple[Any, Agreement]:
        """What one entry of `Seen` says of a state, and what the planner remembers afterwards.

        Args:
            memory: the planner's, or () without one; it must not depend on the state.
            state: s_i.
            seen: entry i.
            cut_short: whether the log stopped where the model would have gone on, so that the end says nothing.
        """
        density = weight_of(self.model, seen.observation, state)
        over = self.model.terminal(state)
        wrong = jnp.where(seen.live, over, seen.ended & ~over & ~cut_short)
        if self.confounded:
            memory, distribution = self.behavior(memory, state, seen.observation)  # pyright: ignore
            density = density + jnp.where(seen.acted, distribution.log_prob(seen.action), 0.0)
            memory = self.behavior.remember(memory, seen.action, seen.reward)  # pyright: ignore[reportOptionalMemberAccess]
        flawed = jnp.isnan(density) | (density == jnp.inf)
        possible = jnp.isfinite(density)
        violations = jnp.where(wrong, 1.0, 0.0) + jnp.where(possible, 0.0, 1.0)
        return memory, Agreement(
            jnp.where(seen.within & possible, density, 0.0),
            jnp.where(seen.within, violations, 0.0),
            seen.within & flawed,
        )

    def of_reward(self, state: Any, next_state: Any, seen: Seen) -> Agreement:
        """What the reward of entry i says of s_i and s_{i+1}."""
        nothing = jnp.zeros(())
        if not self.rewards:
            return Agreement(nothing, nothing, jnp.zeros((), bool))
        paid = self.model.reward(state, seen.action, next_state)
        if self.reward_scale is not None:
            density = jax.scipy.stats.norm.logpdf(seen.reward, paid, self.reward_scale)
            known = seen.acted & ~jnp.isnan(seen.reward)
            return Agreement(jnp.where(known, density, 0.0), nothing, known & ~jnp.isfinite(paid))
        agrees = jnp.abs(paid - seen.reward) <= TOLERANCE * (seen.unit + jnp.abs(seen.reward))
        return Agreement(nothing, jnp.where(seen.acted & ~agrees, 1.0, 0.0), seen.acted & jnp.isnan(paid))

    def first_memory(self) -> Any:
        """A planner's memory before the first step."""
        return self.behavior.initial_carry() if isinstance(self.behavior, Planner) else ()

    def next_state(self, state: Any, action: Any, u: Any) -> Any:
        """S_{i+1}; terminal states are absorbing, as in `rollout`."""
        return next_state(self.model, state, action, u)

    def of_path(self, initial: Any, transition: Any, seen: Seen, cut_short: Array) -> Agreement:
        """What the whole history says of the noise of one path: U_s1, and U_s `[T, ...]`."""

        def step(carry: Any, inputs: tuple[Seen, Any]) -> tuple[Any, Agreement]:
            memory, state = carry
            now, u = inputs
            memory, one = self.of_state(memory, state, now, cut_short)
            after = self.next_state(state, now.action, u)
            paid = self.of_reward(state, after, now)
            return (memory, after), jax.tree.map(lambda a, b: a | b if a.dtype == bool else a + b, one, paid)

        start = self.first_memory(), self.model.initial(initial)
        early = jax.tree.map(lambda leaf: leaf[:-1], seen)
        (memory, last), agreements = jax.lax.scan(step, start, (early, transition))
        _, closing = self.of_state(memory, last, jax.tree.map(lambda leaf: leaf[-1], seen), cut_short)
        return Agreement(
            agreements.log_density.sum() + closing.log_density,
            agreements.violations.sum() + closing.violations,
            agreements.flawed.any() | closing.flawed,
        )


def next_state(model: POMDP, state: Any, action: Any, u: Any) -> Any:
    """S_{i+1}; terminal states are absorbing, as in `rollout`."""
    over, moved = model.terminal(state), model.transition(state, action, u)
    return jax.tree.map(lambda new, old: jnp.where(over, old, new), moved, state)


def states_under(model: POMDP, initial: Any, transition: Any, actions: Any) -> Any:
    """The states `[T + 1, ...]` that noise U_s1 and U_s `[T, ...]` makes under given actions `[T, ...]`."""

    def step(state: Any, inputs: Any) -> tuple[Any, Any]:
        return next_state(model, state, *inputs), state

    last, states = jax.lax.scan(step, model.initial(initial), (actions, transition))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), states, last)


def separate_rewards(model: POMDP) -> bool:
    """Whether rewards take separate values: they do not vary with the states little by little, as their slope tells.

    Of a program that can only be run there is no slope: its rewards are held to be as precise as what is seen of it.
    """
    if isinstance(model, BlackBoxPOMDP):
        return model.observation_scale is None
    state = state_shapes(model)
    action = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, model.action_space.sample()))
    given = lambda pair: model.reward(pair[0], jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), action), pair[1])
    return flat_in(given, (state, state))
