"""IMPALA (Espeholt et al., 2018): actors with slightly outdated copies of the policy, one learner, and V-trace between.

The model-free way to a policy: no model, no scenarios, no expert; many episodes.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from coulda.devices import on_all_devices
from coulda.errors import CouldaError
from coulda.executors import Executor, Stream, Work, seeded
from coulda.learners.loss import ActorCriticLoss, LossInfo
from coulda.policies.actor_critic import ActorCritic
from coulda.pomdp import POMDP, Episode, Policy, batched, rollout, sum_over_batch
from coulda.trainer import descend, first_state


class ImpalaState(eqx.Module):
    """What the next step needs."""

    policy: ActorCritic
    """π^k."""
    older: tuple[ActorCritic, ...]
    """π^{k - max_staleness} … π^{k-1}, whose episodes are still to come; π^0 where there was none yet."""
    optimizer_state: Any
    updates: Array
    """k."""


class ImpalaInfo(eqx.Module):
    """What a person wants to know of one step; scalars."""

    loss: LossInfo
    episode_return: Array
    """Mean return of the behavior policy, undiscounted."""
    frames: Array
    """Live steps in the batch."""
    staleness: Array
    """How many updates behind π the behavior policy was."""
    gradient_norm: Array


class Impala:
    """Learn from batches of episodes that an executor's actors make, `max_staleness` updates behind.

    Each batch is a pure function of the policy that acted and of the batch's number, and the state holds the policies
    whose episodes are still to come. So a run is the same on every executor, and the same when it is resumed.

    Args:
        executor: whose work is `episodes_of` an environment.
        optimizer: the policy's; gradient clipping and the learning rate's schedule are parts of it.
        loss: policy, value and entropy.
        max_staleness: how many updates behind the actors are, once the run is that old; with 0 they wait for the
            learner, with 1 they act while it learns.
        width: batches per update, each made by one worker.
    """

    def __init__(
        self,
        executor: Executor,
        optimizer: optax.GradientTransformation,
        loss: ActorCriticLoss | None = None,
        max_staleness: int = 0,
        width: int = 1,
    ):
        self.optimizer, self.loss = optimizer, ActorCriticLoss() if loss is None else loss
        self.stream = Stream(executor, max_staleness, width)

    def init(self, policy: ActorCritic) -> ImpalaState:
        """The state before the first step."""
        if not isinstance(policy, ActorCritic):
            raise CouldaError(
                f"IMPALA needs a policy that estimates its value, an ActorCritic; got a {type(policy).__name__}."
            )
        older = (policy,) * self.stream.staleness
        return on_all_devices(ImpalaState(policy, older, first_state(self.optimizer, policy), jnp.int32(0)))

    def step(self, key: Array, state: ImpalaState) -> tuple[ImpalaState, ImpalaInfo]:  # noqa: ARG002
        """Take the next episodes and learn from them. Actors draw by the number of their batch: `key` is not used."""
        updates, behaviors = int(state.updates), (*state.older, state.policy)
        batches = self.stream.next(updates, behaviors)
        episodes = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(batch.value for batch in batches))
        staleness = jnp.float32(updates - batches[0].version)
        policy, optimizer_state, info = improve(
            self.loss, self.optimizer, state.policy, state.optimizer_state, episodes, staleness
        )
        return ImpalaState(policy, behaviors[1:], optimizer_state, jnp.int32(updates + 1)), info


def episodes_of(environment: POMDP, policy: Policy, *, batch: int, seed: int) -> Work:
    """What an actor does: batch i is `batch` episodes `[batch, ...]` of the published policy, drawn with key i.

    Args:
        environment: where to act.
        policy: any of the structure that will be published.
        batch: episodes per batch, split over all local devices.
        seed: the seed of all batches.
    """
    return Work(policy, seeded(seed), eqx.Partial(_episodes, environment, batch))


def _episodes(environment: POMDP, batch: int, policy: Policy, key: Array) -> Episode:
    draw = environment.scenario_prior.sample
    return batched(lambda key: rollout(environment, policy, draw(key)).episode, jax.random.split(key, batch))


@eqx.filter_jit
def improve(
    loss: ActorCriticLoss,
    optimizer: optax.GradientTransformation,
    policy: ActorCritic,
    optimizer_state: Any,
    episodes: Episode,
    staleness: Array,
) -> tuple[ActorCritic, Any, ImpalaInfo]:
    """One update from episodes `[B, ...]`, on all local devices."""

    def gradient_of(policy: ActorCritic, some: Episode) -> tuple[Any, Array]:
        """The gradient, and the terms, of the sum over the live steps of some episodes, and how many these are."""
        count = jnp.sum(some.live).astype(jnp.float32)
        means = eqx.filter_grad(loss.__call__, has_aux=True)(policy, some)
        return jax.tree.map(lambda mean: mean * count, means), count

    sums, count = sum_over_batch(gradient_of, policy, episodes)
    gradient, terms = jax.tree.map(lambda total: total / jnp.maximum(count, 1.0), sums)
    improved, optimizer_state = descend(optimizer, gradient, optimizer_state, policy)
    info = ImpalaInfo(
        loss=terms,
        episode_return=jnp.mean(episodes.episode_return),
        frames=jnp.sum(episodes.live).astype(jnp.float32),
        staleness=staleness,
        gradient_norm=optax.tree.norm(gradient),
    )
    return improved, optimizer_state, info
