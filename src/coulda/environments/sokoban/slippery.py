"""PO-Sokoban on ice: moves fail now and then, so that chance is left after the level is known."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from coulda.environments.sokoban.environment import Sokoban
from coulda.errors import CouldaError
from coulda.mechanisms import category_at
from coulda.noise import Uniform
from coulda.pomdp import Outcomes


class SlipperySokoban(Sokoban):
    """PO-Sokoban in which a step slips with some probability: then agent and box stay where they are.

    A Bernoulli variable by inverse CDF, one uniform number a step: the step slips where it lies below the probability,
    whatever was tried. So somebody who would have gone another way would have slipped in the same steps. As the
    probability is the same everywhere, Gumbel-max would say the same. Where nothing would have moved no slip is seen.
    """

    slip_probability: float = eqx.field(static=True, default=0.1)

    def __check_init__(self):
        if not 0 <= self.slip_probability < 1:
            raise CouldaError(f"slip_probability must lie in [0, 1), got {self.slip_probability}")

    @property
    def transition_noise(self) -> Uniform:
        """One uniform number."""
        return Uniform()

    def outcomes(self, state: Array, action: Array) -> Outcomes:
        """To stay, and to move."""
        chance = jnp.array([self.slip_probability, 1 - self.slip_probability])
        return Outcomes(jnp.stack([state, super().transition(state, action, ())]), chance)

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """The outcome in whose interval u falls."""
        possible = self.outcomes(state, action)
        return possible.next_state[category_at(possible.probabilities, u)]
