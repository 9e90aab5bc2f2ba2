"""`FittedTable`: frequencies of a log as a finite model, in which what was never tried leads to a place of its own."""

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments import TabularPOMDP, TabularState


class FittedTable(TabularPOMDP):
    """A table that was fitted to a log; made by `fit` with a `TabularFit`.

    State o is "o was seen, and the episode goes on". Where an episode may or may not end with the same observation,
    state `seen + o` is "o was seen, and it is over". The last two states are the end of a log that does not tell what
    was seen then, and `unknown`: what was never tried leads there. Both are over, and nothing is paid there.
    """

    seen: int = eqx.field(static=True)
    """How many observations there are."""
    twins: bool = eqx.field(static=True)
    """Whether ends are not told by the observation."""
    varies: bool = eqx.field(static=True)
    """Whether rewards vary, given states and action: then theirs are means."""

    def __init__(
        self,
        initial: np.ndarray,
        transition: np.ndarray,
        reward: np.ndarray,
        terminal: np.ndarray,
        *,
        horizon: int,
        reparameterization: str,
        seen: int,
        twins: bool,
        varies: bool,
    ):
        states = len(initial)
        shown = np.arange(states) % seen
        shown[-2:] = 0
        super().__init__(
            initial,
            transition,
            np.eye(seen)[shown],
            reward,
            horizon=horizon,
            reparameterization=reparameterization,
            terminal=terminal,
        )
        self.seen, self.twins, self.varies = seen, twins, varies

    @property
    def unknown(self) -> int:
        """The number of the state that what was never tried leads to."""
        return self.num_states - 1

    @property
    def rewards_vary(self) -> bool:
        """As in the log."""
        return self.varies

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """Those of the log."""
        return gymnasium.spaces.Discrete(self.seen)

    def states(self, previous_action: Array, observation: Array) -> TabularState:
        """The state of the observation, and its end; nobody logs an episode in a place that is unknown."""
        number = jnp.asarray(observation, jnp.int32)
        found = jnp.stack([number, number + self.seen]) if self.twins else number[None]
        return TabularState(found, jnp.full_like(found, previous_action))


def states_of(seen: int, twins: bool) -> int:
    """How many states a table has."""
    return seen * (2 if twins else 1) + 2
