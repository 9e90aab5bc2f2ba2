"""Learning from an expert that sees the state: behavior cloning, and DAgger (Ross et al., 2011).

The policy acts, at first together with the expert (`ExpertMixture`), and in every state that it gets itself into the
expert says what it would do. The loss is -log of the probability that the policy, which sees the history alone, gives
to the expert's actions; where the expert has several that are as good, they count together.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from coulda.devices import on_all_devices
from coulda.planners.mixture import ExpertMixture
from coulda.pomdp import POMDP, Planner, Policy, Scenario, Trajectory, rollout, sum_over_batch
from coulda.pomdp.rollout import all_log_probs
from coulda.trainer import descend, first_state

Experts = Callable[[Scenario], Callable[[Array], Planner]]
"""Scenarios `[B, ...]` -> the planner of the i-th of them. Runs on the host, once per step: it may search."""


class ImitationState(eqx.Module):
    """What the next step needs."""

    policy: Policy
    optimizer_state: Any
    updates: Array


class ImitationInfo(eqx.Module):
    """What a person wants to know of one step; scalars."""

    loss: Array
    """The loss in nats per step that the expert had an answer for."""
    agreement: Array
    """Share of those steps in which the policy's likeliest action is one of the expert's."""
    episode_return: Array
    """The return of the mixture that acted."""
    answered: Array
    """Share of live steps that the expert had an answer for."""
    gradient_norm: Array


class Imitation(eqx.Module):
    """DAgger. With `cloning_updates` larger than the number of steps it is behavior cloning.

    Args:
        environment: where the policy acts.
        experts: for a batch of scenarios, what the expert would do in each.
        optimizer: the optimizer of the policy's parameters.
        batch: episodes per step.
        cloning_updates: over so many updates the expert's share in acting falls from 1 to 0.
    """

    environment: POMDP
    experts: Experts = eqx.field(static=True)
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=32)
    cloning_updates: int = eqx.field(static=True, default=100)

    def init(self, policy: Policy) -> ImitationState:
        """The state before the first step."""
        return on_all_devices(ImitationState(policy, first_state(self.optimizer, policy), jnp.int32(0)))

    def step(self, key: Array, state: ImitationState) -> tuple[ImitationState, ImitationInfo]:
        """Draw scenarios, ask the expert for its tables, act, and learn. Consumes `key`."""
        scenarios = draw(self.environment, jax.random.split(key, self.batch))
        return self._improve(state, scenarios, self.experts(scenarios))

    @eqx.filter_jit
    def _improve(self, state: ImitationState, scenarios: Scenario, expert: Any) -> tuple[ImitationState, ImitationInfo]:
        beta = jnp.clip(1 - state.updates / self.cloning_updates, 0.0, 1.0).astype(jnp.float32)
        batch = jnp.arange(self.batch), scenarios
        gradient, sums = sum_over_batch(self._gradient, (state.policy, expert, beta), batch)
        advised = jnp.maximum(sums["advised"], 1.0)
        gradient = jax.tree.map(lambda total: total / advised, gradient)
        policy, optimizer_state = descend(self.optimizer, gradient, state.optimizer_state, state.policy)
        info = ImitationInfo(
            loss=sums["loss"] / advised,
            agreement=sums["agreement"] / advised,
            episode_return=sums["return"] / self.batch,
            answered=sums["advised"] / jnp.maximum(sums["live"], 1.0),
            gradient_norm=optax.tree.norm(gradient),
        )
        return ImitationState(policy, optimizer_state, state.updates + 1), info

    def _gradient(self, shared: Any, batch: Any) -> tuple[Any, dict[str, Array]]:
        """Act in some scenarios, `[b]`; the gradient of the summed losses of all advised steps, and sums to tell."""
        (policy, expert, beta), (numbers, scenarios) = shared, batch

        def act(number: Array, scenario: Scenario) -> tuple[Trajectory, Array]:
            planner = expert(number)
            trajectory = rollout(self.environment, ExpertMixture(planner, policy, beta), scenario)
            return trajectory, _advice(planner, trajectory)

        trajectories, advice = jax.vmap(act)(numbers, scenarios)
        advised = jnp.sum(advice.any(-1)).astype(jnp.float32)
        count = jnp.maximum(advised, 1.0)
        loss = eqx.filter_value_and_grad(imitation_loss, has_aux=True)
        (mean_loss, agreement), gradient = loss(policy, trajectories, advice)
        sums = {
            "advised": advised,
            "loss": mean_loss * count,
            "agreement": agreement * count,
            "return": jnp.sum(trajectories.episode_return),
            "live": jnp.sum(trajectories.episode.live).astype(jnp.float32),
        }
        return jax.tree.map(lambda mean: mean * count, gradient), sums


def imitation_loss(policy: Policy, trajectories: Trajectory, advice: Array) -> tuple[Array, Array]:
    """Mean of -log Σ_{a advised} π(a | h_t) over advised steps, and how often the likeliest action is advised.

    Args:
        policy: who learns; it sees the episodes only.
        trajectories: `[B]` in each leaf.
        advice: `[B, T, A]`, the expert's actions; none where it has no answer or the episode is over.
    """
    log_probs = jax.vmap(lambda t: all_log_probs(policy, t.episode)[:-1])(trajectories)
    answered = advice.any(-1)
    # The inner where keeps the gradient finite where nothing is advised.
    advised = jnp.where(advice | ~answered[..., None], log_probs, -jnp.inf)
    loss = -jax.scipy.special.logsumexp(advised, axis=-1)
    right = jnp.take_along_axis(advice, jnp.argmax(log_probs, -1, keepdims=True), -1)[..., 0]
    count = jnp.maximum(jnp.sum(answered), 1).astype(jnp.float32)
    mean = lambda x: jnp.sum(jnp.where(answered, x, 0.0)) / count
    return mean(loss), mean(right.astype(jnp.float32))


def _advice(planner: Planner, trajectory: Trajectory) -> Array:
    """The expert's actions in each live state of a trajectory, `[T, A]`."""
    states, observations = jax.tree.map(lambda leaf: leaf[:-1], (trajectory.state, trajectory.episode.observation))

    def advise(state: Any, observation: Any, live: Array) -> Array:
        _, distribution = planner(planner.initial_carry(), state, observation)
        return jnp.isfinite(distribution.logits) & live  # pyright: ignore[reportAttributeAccessIssue]

    return jax.vmap(advise)(states, observations, trajectory.episode.live)


@eqx.filter_jit
def draw(environment: POMDP, keys: Array) -> Scenario:
    """Scenarios `[B, ...]` of the environment, one per key."""
    return jax.vmap(environment.scenario_prior.sample)(keys)
