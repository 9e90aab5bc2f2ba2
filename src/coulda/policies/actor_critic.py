"""A policy that also says what it expects to earn, as actor–critic methods need."""

import abc
from typing import Any

from jax import Array

from coulda.noise import Categorical
from coulda.pomdp import Policy


class ActorCritic(Policy):
    """π(a | h) over discrete actions, together with V(h), the estimated return from here on."""

    @abc.abstractmethod
    def with_value(self, carry: Any, observation: Any) -> tuple[Any, Categorical, Array]:
        """The carry after this observation, the distribution of the next action, and V(h), a scalar."""

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, Categorical]:
        """The distribution of the next action."""
        carry, distribution, _ = self.with_value(carry, observation)
        return carry, distribution
