"""`POMDP`: deterministic kernels of (state, action, noise), written for one episode.

Two kinds have more structure: a `FinitePOMDP` has all that exact planning and exact inference ask of a model, and in a
`LinearGaussianPOMDP` inference is linear algebra.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Iid, Independent, NoiseDistribution, Normal, Point
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


class Outcomes(NamedTuple):
    """What a step may lead to, by inverse CDF: the noise of a transition is one uniform number."""

    next_state: Any
    """The states, `[K, ...]`; some may be equal."""
    probabilities: Array
    """`[K]`."""


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


class VectorPOMDP(POMDP):
    """States are vectors, and so is their noise: standard normal, one number for each."""

    initial_mean: eqx.AbstractVar[Array]
    """m, `[n]`."""

    @property
    def initial_noise(self) -> Normal:
        """Standard normal `[n]`."""
        return Normal(shape=self.initial_mean.shape)

    @property
    def transition_noise(self) -> Normal:
        """Standard normal `[n]`."""
        return Normal(shape=self.initial_mean.shape)


class LinearGaussianPOMDP(VectorPOMDP):
    """s_1 = m + L_1 u, s_{t+1} = A s_t + B a_t + L_s u, o_t = C s_t + L_o u, with standard normal u (location-scale).

    A subclass says what the reward is. `C = None` is an observed state, o_t = s_t.
    """

    A: Array
    """`[n, n]`."""
    B: Array
    """`[n, k]`."""
    C: Array | None
    """`[m, n]`, or None where the state is observed."""
    initial_mean: Array
    """m, `[n]`."""
    initial_scale: Array
    """L_1, `[n, n]`: a square root of the covariance."""
    transition_scale: Array
    """L_s, `[n, n]`."""
    observation_scale: Array | None
    """L_o, `[m, m]`; None where the state is observed."""
    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^m."""
        return real_space(self.A.shape[0] if self.C is None else self.C.shape[0])

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """R^k."""
        return real_space(self.B.shape[1])

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Standard normal `[m]`, or none."""
        return Point() if self.C is None else Normal(shape=(self.C.shape[0],))

    def initial(self, u: Array) -> Array:
        """The first state, m + L_1 u."""
        return self.initial_mean + self.initial_scale @ u

    def transition(self, state: Array, action: Array, u: Array) -> Array:
        """A s + B a + L_s u."""
        return self.A @ state + self.B @ action + self.transition_scale @ u

    def observe(self, state: Array, u: Any) -> Array:
        """C s + L_o u, or s."""
        if self.C is None or self.observation_scale is None:
            return state
        return self.C @ state + self.observation_scale @ u


def real_space(size: int) -> gymnasium.spaces.Box:
    """R^size."""
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
