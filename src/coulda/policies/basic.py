"""Small policies: any action, a table, and two that are made of others."""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from coulda.errors import CouldaError
from coulda.noise import Categorical, Normal
from coulda.pomdp import POMDP, Policy


class UniformPolicy(Policy):
    """Each of `num_actions` actions with the same probability, whatever is seen."""

    num_actions: int = eqx.field(static=True)

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, Categorical]:  # noqa: ARG002
        """1 / A."""
        return carry, Categorical(logits=jnp.zeros(self.num_actions))


class AnyAction(Policy):
    """A policy that tries everything: uniform over discrete actions, standard normal over others."""

    space: gymnasium.Space = eqx.field(static=True)
    mechanism: Any

    @classmethod
    def of(cls, model: POMDP) -> "AnyAction":
        """All that can be done in a model."""
        return cls(model.action_space, model.action_mechanism)

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, Any]:  # noqa: ARG002
        """The same in every history."""
        family = getattr(self.mechanism, "family", None)
        if isinstance(self.space, gymnasium.spaces.Discrete) and family in (Categorical, None):
            return carry, Categorical(logits=jnp.zeros(int(self.space.n)))
        shape = self.space.shape or ()
        return carry, Normal(jnp.zeros(shape), jnp.ones(shape))


class TabularPolicy(Policy):
    """π(a | o) from a table `[O, A]`, for numbered observations and no memory.

    >>> _, distribution = TabularPolicy([[0.0, 1.0], [0.5, 0.5]])((), jnp.int32(0))
    >>> distribution.probabilities.tolist()
    [0.0, 1.0]
    """

    logits: Array

    def __init__(self, probabilities: ArrayLike):
        table = np.asarray(probabilities, float)
        if table.ndim != 2 or (table < 0).any() or (np.abs(table.sum(-1) - 1) > 1e-4).any():
            raise CouldaError(
                f"a tabular policy needs [observations, actions], rows ≥ 0 that sum to 1; got shape {table.shape} "
                f"with row sums {np.round(table.sum(-1), 6).tolist()}."
            )
        with np.errstate(divide="ignore"):
            self.logits = jax.device_put(np.log(table).astype(np.float32))

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """The observation's row; NaN where there is none, and never that of another observation."""
        # Not a gather that fills: it does not shard.
        there = (observation >= 0) & (observation < self.logits.shape[0])
        return carry, Categorical(logits=jnp.where(there, self.logits[observation], jnp.nan))

    def check_spaces(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> int | None:
        """There must be a row for each observation."""
        rows = self.logits.shape[0]
        if not isinstance(observation_space, gymnasium.spaces.Discrete):
            raise CouldaError(f"a tabular policy is for numbered observations; these are {observation_space}.")
        if rows < int(observation_space.start) + int(observation_space.n):
            raise CouldaError(f"its table has {rows} rows; observations are {observation_space}: give one for each.")
        return super().check_spaces(observation_space, action_space)


class NoisyPolicy(Policy):
    """(1 - ε) π + ε / A: another policy with extra stochasticity in its choice (section 3.2)."""

    policy: Policy
    epsilon: Array

    def __init__(self, policy: Policy, epsilon: float):
        if not 0 <= epsilon <= 1:
            raise CouldaError(f"epsilon is a probability, between 0 and 1; got {epsilon}.")
        self.policy, self.epsilon = policy, jnp.asarray(epsilon, jnp.float32)

    def initial_carry(self) -> Any:
        """The policy's own."""
        return self.policy.initial_carry()

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, Categorical]:
        """The policy's distribution, mixed with the uniform."""
        carry, distribution = self.policy(carry, observation)
        log_probs = _log_probs(distribution)
        log_uniform = jnp.log(self.epsilon) - jnp.log(log_probs.shape[-1])
        return carry, Categorical(logits=jnp.logaddexp(jnp.log1p(-self.epsilon) + log_probs, log_uniform))

    def remember(self, carry: Any, action: Any, reward: Array) -> Any:
        """As the policy does."""
        return self.policy.remember(carry, action, reward)


class Mixture(Policy):
    """Σ_i w_i π_i(a | h): at each step one of several policies is asked, drawn anew by its weight."""

    policies: tuple[Policy, ...]
    log_weights: Array

    def __init__(self, policies: tuple[Policy, ...], weights: ArrayLike):
        weights = np.asarray(weights, float)
        if weights.shape != (len(policies),) or (weights < 0).any() or abs(weights.sum() - 1) > 1e-4:
            raise CouldaError(
                f"weights must be ≥ 0, sum to 1 and be one per policy; got {weights.tolist()} "
                f"for {len(policies)} policies."
            )
        with np.errstate(divide="ignore"):
            self.policies, self.log_weights = tuple(policies), jnp.asarray(np.log(weights), jnp.float32)

    def initial_carry(self) -> tuple[Any, ...]:
        """One carry a policy."""
        return tuple(policy.initial_carry() for policy in self.policies)

    def __call__(self, carry: tuple[Any, ...], observation: Any) -> tuple[tuple[Any, ...], Categorical]:
        """The weighted mean of the policies' probabilities."""
        answers = [policy(c, observation) for policy, c in zip(self.policies, carry, strict=True)]
        log_probs = jnp.stack([_log_probs(distribution) for _, distribution in answers])
        logits = jax.nn.logsumexp(log_probs + self.log_weights[:, None], axis=0)
        return tuple(c for c, _ in answers), Categorical(logits=logits)

    def remember(self, carry: tuple[Any, ...], action: Any, reward: Array) -> tuple[Any, ...]:
        """Every policy remembers."""
        pairs = zip(self.policies, carry, strict=True)
        return tuple(policy.remember(c, action, reward) for policy, c in pairs)


def _log_probs(distribution: Any) -> Array:
    if not isinstance(distribution, Categorical):
        raise CouldaError(f"only discrete actions can be mixed; the policy gave a {type(distribution).__name__}.")
    return jax.nn.log_softmax(distribution.logits)
