"""Who acts: a `Policy` sees the history only; a `Planner` may also see the hidden state."""

import abc
from typing import Any

import equinox as eqx
from jax import Array

from coulda.noise import NoiseDistribution

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


def choose(actor: Actor, carry: Carry, state: Any, observation: Any) -> tuple[Carry, Any]:
    """Ask the actor; this is the one place where a state can reach anyone, and only a planner gets it."""
    if isinstance(actor, Planner):
        return actor(carry, state, observation)
    return actor(carry, observation)
