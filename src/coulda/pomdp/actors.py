"""Who acts: a `Policy` sees the history only; a `Planner` may also see the hidden state."""

import abc
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution

Carry = Any
"""What an actor remembers of the history: a pytree of arrays of fixed shapes."""


class Policy(eqx.Module):
    """π(a_t | h_t), with h_t = (o_1, a_1, r_1, …, o_t) summarized in a carry.

    At each step `__call__` is given the observation, and after the action is drawn `remember` is given the
    action and the reward, so that together they can see all of the history and nothing else.
    """

    def initial_carry(self) -> Carry:
        """The carry before the first observation; none by default."""
        return ()

    @abc.abstractmethod
    def __call__(self, carry: Carry, observation: Any) -> tuple[Carry, NoiseDistribution]:
        """The carry after this observation, and the distribution of the next action."""

    def remember(self, carry: Carry, action: Any, reward: Array) -> Carry:  # noqa: ARG002
        """The carry after the action and its reward; unchanged by default."""
        return carry

    def check_spaces(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> int | None:
        """How many discrete actions it knows; raises `CouldaError` if it cannot see or do all that there is.

        By default it is asked for its distribution of one observation, by shapes alone.
        """
        seen = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _example(observation_space))
        try:
            _, distribution = eqx.filter_eval_shape(lambda o: self(self.initial_carry(), o), seen)
        except (TypeError, ValueError, IndexError) as error:
            name, what = type(self).__name__, f"{type(error).__name__}: {error}"
            raise CouldaError(f"{name} cannot see observations of {observation_space}: {what}") from error
        return _known_actions(type(self).__name__, distribution, action_space)


class Planner(eqx.Module):
    """λ(a_t | s_t, h_t): a policy that may also see the hidden state, as only a planner may."""

    def initial_carry(self) -> Carry:
        """The carry before the first step; none by default."""
        return ()

    @abc.abstractmethod
    def __call__(self, carry: Carry, state: Any, observation: Any) -> tuple[Carry, NoiseDistribution]:
        """The carry after this observation, and the distribution of the next action."""

    def remember(self, carry: Carry, action: Any, reward: Array) -> Carry:  # noqa: ARG002
        """The carry after the action and its reward; unchanged by default."""
        return carry


Actor = Policy | Planner
"""Whoever acts."""


def _example(space: gymnasium.Space) -> Any:
    """An element of the space as JAX would be given it."""
    return jax.tree.map(jnp.asarray, space.sample())


def _known_actions(name: str, distribution: Any, space: gymnasium.Space) -> int | None:
    if not isinstance(space, gymnasium.spaces.Discrete):
        return None
    if not isinstance(distribution, Categorical):
        raise CouldaError(f"{name} returns a {type(distribution).__name__}; actions in {space} need a Categorical.")
    known = distribution.logits.shape[-1]
    if known < int(space.n):
        raise CouldaError(f"{name} knows {known} actions, but there are {int(space.n)}.")
    return known


def choose(actor: Actor, carry: Carry, state: Any, observation: Any) -> tuple[Carry, Any]:
    """Ask the actor; this is the one place where a state can reach anyone, and only a planner gets it."""
    if isinstance(actor, Planner):
        return actor(carry, state, observation)
    return actor(carry, observation)
