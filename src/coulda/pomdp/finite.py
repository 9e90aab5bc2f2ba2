"""`FinitePOMDP`: finitely many states, with all that exact planning and exact inference ask of a model."""

import abc
from typing import Any, NamedTuple

import gymnasium
from jax import Array

from coulda.errors import CouldaError
from coulda.pomdp.model import POMDP


class TransitionChoices(NamedTuple):
    """A transition as one choice among K categories, whose noise all states and actions share."""

    probabilities: Array
    """Of each category, `[A, S, K]`."""
    next_state: Array | None
    """The number of the state that each category leads to, `[A, S, K]`; None where category k is state k."""
    reparameterization: str
    """"gumbel_max" or "inverse_cdf"."""


class FinitePOMDP(POMDP):
    """A POMDP with numbered states: a state is a pytree with an `index`, an int32 scalar in 0 … S-1.

    Inference never enumerates more than the states that agree with what was seen (`states`), so that a model of
    many states of which little is hidden stays cheap. Posteriors of noise are transports of a fresh draw.
    """

    @property
    @abc.abstractmethod
    def num_states(self) -> int:
        """S."""

    @property
    @abc.abstractmethod
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(A)."""

    @property
    def num_actions(self) -> int:
        """A."""
        return int(self.action_space.n)

    @property
    def rewards_vary(self) -> bool:
        """Whether logged rewards vary round those of the model, and are no evidence; they do not by default."""
        return False

    @abc.abstractmethod
    def tables(self) -> tuple[Array, Array, Array]:
        """Transition probabilities `[A, S, S]`, rewards `[A, S, S]` and terminal states `[S]`, for planning."""

    def transition_choices(self) -> TransitionChoices:
        """Its transitions as choices, where they are: then counterfactuals have a closed form."""
        raise CouldaError(
            f"no closed form is known for counterfactual transitions of {type(self).__name__}; draw scenarios from a "
            "source, such as Exact(model), instead."
        )

    @abc.abstractmethod
    def states(self, previous_action: Array, observation: Any) -> Any:
        """All states `[K, ...]` in which `observation` may be seen after `previous_action` (-1: before the first)."""

    @abc.abstractmethod
    def initial_log_prob(self, state: Any) -> Array:
        """Log p(s_1)."""

    @abc.abstractmethod
    def transition_log_prob(self, state: Any, action: Array, next_state: Any) -> Array:
        """Log p(s_{t+1} | s_t, a_t)."""

    @abc.abstractmethod
    def initial_posterior(self, state: Any, fresh: Any) -> Any:
        """A draw of p(U_s1 | s_1)."""

    @abc.abstractmethod
    def transition_posterior(self, state: Any, action: Array, next_state: Any, fresh: Any) -> Any:
        """A draw of p(U_s | s_t, a_t, s_{t+1})."""
