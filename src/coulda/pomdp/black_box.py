"""`BlackBoxPOMDP`: a program elsewhere as a model. Its state is what was put into it, so that running it is pure."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.pomdp.model import POMDP
from coulda.pomdp.rollout import Episode
from coulda.pomdp.scenario import Scenario
from coulda.scales import unit_of

TOLERANCE = 1e-5
"""Of numbers that are seen, where no scale of errors is stated: logs may have passed through another float type."""


class Played(eqx.Module):
    """A state of a program that can only be run: all that was put into it so far, and what it showed last."""

    initial: Any
    """U_s1."""
    transition: Any
    """U_s so far, `[T, ...]`; zeros from `step` on."""
    action: Any
    """Actions so far, likewise."""
    step: Array
    observation: Any
    reward: Array
    """Of the last step."""
    ended: Array


class Inverted(eqx.Module):
    """Scenarios that explain an episode, or why there are none."""

    initial: Any
    """`[count, ...]`."""
    transition: Any
    """`[count, T, ...]`."""
    log_evidence: Array
    """NaN where numbers were solved for, which have no probability."""
    failed: Array
    """The first step that nothing explains; -1 where all is explained."""


class BlackBoxPOMDP(POMDP):
    """A model of which nothing is known but how to run it, on the noise of a scenario."""

    observation_scale: eqx.AbstractVar[float | None]
    """The standard deviation of logged numbers that were seen, where they are to be weighed with an error."""

    @abc.abstractmethod
    def run(self, before: Played) -> tuple[Any, Array, Array]:
        """Observation, reward and end after all of `before`'s actions; pure, whatever ran before."""

    def invert(self, episode: Episode, steps: Array, fresh: Scenario, dice: Array) -> Inverted:  # noqa: ARG002
        """Draws of p(U_s | h_t), t = `steps`, exactly, by going through the program's choices.

        Args:
            episode: one.
            steps: t.
            fresh: draws of the prior `[count, ...]`, which are carried to the posterior.
            dice: uniform numbers `[count, T + 1]`, for the choice among explanations.
        """
        raise CouldaError(f"{type(self).__name__} does not know what its noise is used for; GymSimulator does")

    def check_invertible(self) -> None:
        """Refuse where `invert` cannot work, with the reason."""
        raise CouldaError(f"{type(self).__name__} does not know what its noise is used for; GymSimulator does")

    def initial(self, u: Any) -> Played:
        """The program, begun."""
        key = jax.random.key(0)
        zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros((self.horizon, *x.shape), x.dtype), tree)
        noise = jax.eval_shape(self.transition_noise.sample, key)
        seen, action = jax.eval_shape(lambda: (_example(self.observation_space), _example(self.action_space)))
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), seen)
        before = Played(u, zeros(noise), zeros(action), jnp.int32(0), nothing, jnp.zeros(()), jnp.zeros((), bool))
        return self._after(before)

    def transition(self, state: Played, action: Any, u: Any) -> Played:
        """One step more; nothing happens after the end, or after T steps."""
        over = state.ended | (state.step >= self.horizon)
        put = lambda leaf, value: leaf.at[state.step].set(jnp.asarray(value, leaf.dtype), mode="drop")
        before = Played(
            state.initial,
            jax.tree.map(put, state.transition, u),
            jax.tree.map(put, state.action, action),
            state.step + 1,
            state.observation,
            state.reward,
            over,
        )
        moved = self._after(before)
        stays = eqx.tree_at(lambda s: s.reward, state, jnp.zeros(()))
        return jax.tree.map(lambda old, new: jnp.where(over, old, new), stays, moved)

    def _after(self, before: Played) -> Played:
        observation, reward, ended = self.run(before)
        return Played(before.initial, before.transition, before.action, before.step, observation, reward, ended)

    def reward(self, state: Played, action: Any, next_state: Played) -> Array:  # noqa: ARG002
        """What the program paid."""
        return next_state.reward

    def observe(self, state: Played, u: Any) -> Any:  # noqa: ARG002
        """What the program showed."""
        return state.observation

    def terminal(self, state: Played) -> Array:
        """Whether the program said so."""
        return state.ended

    def observation_log_prob(self, observation: Any, state: Played) -> Array:
        """Equal or not; of numbers, with the stated error where there is one."""

        def one(seen: Array, made: Array) -> Array:
            if not jnp.issubdtype(made.dtype, jnp.inexact):
                return jnp.where(jnp.all(seen == made), 0.0, -jnp.inf)
            if self.observation_scale is None:
                close = jnp.abs(seen - made) <= TOLERANCE * (unit_of(seen) + jnp.abs(seen))
                return jnp.where(jnp.all(close), 0.0, -jnp.inf)
            return jnp.sum(jax.scipy.stats.norm.logpdf(seen, made, self.observation_scale))

        return sum(jax.tree.leaves(jax.tree.map(one, observation, state.observation)), jnp.zeros(()))


def _example(space: Any) -> Any:
    return jax.tree.map(jnp.asarray, space.sample())
