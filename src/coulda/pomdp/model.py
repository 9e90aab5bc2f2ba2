"""`POMDP`: deterministic kernels of (state, action, noise), written for one episode."""

import abc
from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
from jax import Array

from coulda.noise import Iid, Independent, NoiseDistribution, Point
from coulda.pomdp import observing
from coulda.pomdp.actions import ActionMechanism
from coulda.pomdp.scenario import Scenario


class POMDP(eqx.Module):
    """A partially observed Markov decision process in which all chance is noise (Figure 1, right).

    Subclass it and write the kernels as pure functions: no batch axis and no PRNG key. States,
    observations, actions and noise are pytrees of arrays of fixed shapes. A model must run on any scenario
    that a scenario source may produce, also a malformed one.
    """

    horizon: eqx.AbstractVar[int]
    """T: the number of actions in an episode."""
    action_mechanism: eqx.AbstractVar[ActionMechanism]
    """The named reparameterization that turns π(a | h) and U_a into an action."""

    @property
    @abc.abstractmethod
    def observation_space(self) -> gymnasium.Space:
        """The space of one observation."""

    @property
    @abc.abstractmethod
    def action_space(self) -> gymnasium.Space:
        """The space of one action."""

    @property
    @abc.abstractmethod
    def initial_noise(self) -> NoiseDistribution:
        """P(U_s1)."""

    @property
    def transition_noise(self) -> NoiseDistribution:
        """P(U_s) of one step; none by default."""
        return Point()

    @property
    def observation_noise(self) -> NoiseDistribution:
        """P(U_o) of one step; none by default."""
        return Point()

    @property
    def scenario_prior(self) -> NoiseDistribution:
        """P(U) over a `Scenario`: independent over time."""
        return Independent(
            Scenario(
                initial=self.initial_noise,
                transition=Iid(self.transition_noise, self.horizon),
                observation=Iid(self.observation_noise, self.horizon + 1),
                action=Iid(self.action_mechanism.noise, self.horizon),
            )
        )

    @abc.abstractmethod
    def initial(self, u: Any) -> Any:
        """S_1 = f(U_s1)."""

    @abc.abstractmethod
    def transition(self, state: Any, action: Any, u: Any) -> Any:
        """S_{t+1} = f(S_t, A_t, U_s)."""

    @abc.abstractmethod
    def reward(self, state: Any, action: Any, next_state: Any) -> Array:
        """R_t, a float scalar."""

    @abc.abstractmethod
    def observe(self, state: Any, u: Any) -> Any:
        """O_t = f(S_t, U_o)."""

    def observation_log_prob(self, observation: Any, state: Any) -> Array:
        """Log p(o | s), with U_o integrated out; NaN in an observation is missing and says nothing.

        By default it is derived: from the noise's own density where `observe` is affine in it; without noise it is 0
        where the observation is equal, else -inf.
        """
        return observing.log_density(self, observation, state)

    def observation_posterior(self, state: Any, observation: Any, fresh: Any) -> Any:
        """A draw of p(U_o | s_t, o_t), carried there from `fresh`, a draw of p(U_o).

        By default it is derived where `observe` is affine in its noise; elsewhere the noise stays fresh.
        """
        return observing.noise_given(self, state, observation, fresh)

    def malformed(self, scenario: Scenario) -> Array:  # noqa: ARG002
        """Whether the world could not have made this scenario, such as a level without an agent; False by default.

        A source that was learned may draw such scenarios. They are scored as they fall, and their share is reported.
        """
        return jnp.zeros((), bool)

    def terminal(self, state: Any) -> Array:  # noqa: ARG002
        """Whether the episode is over in this state: it is absorbing, and rewards there are not paid."""
        return jnp.zeros((), bool)
