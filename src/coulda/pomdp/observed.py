"""`ObservedPOMDP`: the state is seen, so that the noise of a transition is inferred from a pair of states."""

import abc
from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
from jax import Array

from coulda.pomdp.actions import LocationScaleAction
from coulda.pomdp.model import POMDP, VectorPOMDP, real_space


class ObservedPOMDP(POMDP):
    """A Markov decision process, O_t = S_t, that knows the posteriors of its own noise.

    A posterior takes no key: it carries a fresh draw of the noise to p(u | what was seen).
    """

    def observe(self, state: Any, u: Any) -> Any:  # noqa: ARG002
        """The state."""
        return state

    @abc.abstractmethod
    def initial_posterior(self, state: Any, fresh: Any) -> Any:
        """A draw of p(U_s1 | s_1)."""

    @abc.abstractmethod
    def transition_posterior(self, state: Any, action: Any, next_state: Any, fresh: Any) -> Any:
        """A draw of p(U_s | s_t, a_t, s_{t+1})."""


class AdditiveNoisePOMDP(ObservedPOMDP, VectorPOMDP):
    """s_1 = m + σ_1 u and s_{t+1} = f(s_t, a_t) + σ u, with standard normal u: a deterministic model, and residuals.

    Given a logged transition, σ u is the residual of f: what Abbeel et al. (2006) add to an inaccurate model so that
    it follows a real trajectory exactly. A subclass holds the fields below and writes `predict` and `reward`.
    """

    initial_scale: eqx.AbstractVar[Array]
    """σ_1 > 0, `[n]`."""
    transition_scale: eqx.AbstractVar[Array]
    """σ > 0, `[n]`."""
    num_controls: eqx.AbstractVar[int]
    """k: an action is `[k]`."""

    @abc.abstractmethod
    def predict(self, state: Array, action: Array) -> Array:
        """f(s, a), `[n]`."""

    @property
    def action_mechanism(self) -> LocationScaleAction:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Mean + scale · u."""
        return LocationScaleAction((self.num_controls,))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^n."""
        return real_space(self.initial_mean.shape[0])

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """R^k."""
        return real_space(self.num_controls)

    def initial(self, u: Array) -> Array:
        """The first state, m + σ_1 u."""
        return self.initial_mean + self.initial_scale * u

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """The next state, f(s, a) + σ u."""
        return self.predict(state, action) + self.transition_scale * u

    def initial_posterior(self, state: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        return (state - self.initial_mean) / self.initial_scale

    def transition_posterior(self, state: Array, action: Array, next_state: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual: there is no choice."""
        return (next_state - self.predict(state, action)) / self.transition_scale

    def observation_log_prob(self, observation: Array, state: Array) -> Array:
        """0 where the observation is the state, else -inf."""
        return jnp.where(jnp.all(observation == state), 0.0, -jnp.inf)
