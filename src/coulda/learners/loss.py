"""The loss of an actor–critic on whole episodes (Espeholt et al., 2018, section 4.2): policy, value and entropy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.learners.vtrace import vtrace
from coulda.policies.actor_critic import ActorCritic
from coulda.pomdp import Episode
from coulda.pomdp.rollout import walk


class Unrolled(eqx.Module):
    """What an actor–critic says along one logged episode, `[T]` each."""

    log_prob: Array
    """log π(a_t | h_t) of the action that was taken."""
    value: Array
    """V(h_t)."""
    entropy: Array
    """The entropy of π(· | h_t), in nats."""


class LossInfo(eqx.Module):
    """The terms of the loss, means over live steps."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    ratio: Array
    """π/μ of the actions that were taken: 1 on the policy's own episodes."""
    clipped: Array
    """Share of steps whose ratio is above ρ̄."""


class ActorCriticLoss(eqx.Module):
    """-log π(a_t | h_t) A_t + ½ w_V (v_t - V(h_t))² - w_H H(π(· | h_t)), with V-trace's v_t and A_t; a mean over steps.

    Args:
        discount: γ.
        decay: λ, of the traces.
        value_weight: w_V.
        entropy_weight: w_H.
        clip_rho: ρ̄ of V-trace.
        clip_c: c̄ of V-trace.
    """

    discount: float = 1.0
    decay: float = 1.0
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    clip_rho: float = 1.0
    clip_c: float = 1.0

    def __call__(self, policy: ActorCritic, episodes: Episode) -> tuple[Array, LossInfo]:
        """The loss on episodes `[B, ...]`, a scalar, and its terms."""
        terms = jax.vmap(self._steps, (None, 0))(policy, episodes)
        live = episodes.live
        count = jnp.maximum(jnp.sum(live), 1).astype(jnp.float32)
        info = jax.tree.map(lambda term: jnp.sum(jnp.where(live, term, 0.0)) / count, terms)
        total = info.policy_loss + self.value_weight * info.value_loss - self.entropy_weight * info.entropy
        return total, info

    def _steps(self, policy: ActorCritic, episode: Episode) -> LossInfo:
        """The terms of one episode, `[T]` each."""
        said = unroll(policy, episode)
        log_ratio = jnp.where(episode.live, said.log_prob - episode.log_prob, 0.0)
        found = jax.lax.stop_gradient(
            vtrace(
                log_ratio,
                episode.reward,
                said.value,
                episode.live,
                discount=self.discount,
                decay=self.decay,
                clip_rho=self.clip_rho,
                clip_c=self.clip_c,
            )
        )
        ratio = jnp.exp(jax.lax.stop_gradient(log_ratio))
        return LossInfo(
            policy_loss=-said.log_prob * found.advantage,
            value_loss=0.5 * (found.target - said.value) ** 2,
            entropy=said.entropy,
            ratio=ratio,
            clipped=(ratio > self.clip_rho).astype(jnp.float32),
        )


def unroll(policy: ActorCritic, episode: Episode) -> Unrolled:
    """Run the policy over a whole logged episode, so that it remembers what it would have remembered."""

    def ask(carry: Any, observation: Any, action: Array) -> tuple[Any, Unrolled]:
        carry, distribution, value = policy.with_value(carry, observation)
        log_probs = jax.nn.log_softmax(distribution.logits)
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs)
        return carry, Unrolled(log_probs[action], value, entropy)

    return walk(policy, episode, ask)
