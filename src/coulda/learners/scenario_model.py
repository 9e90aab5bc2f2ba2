"""Training a scenario model p(U_s1 | h_t) on privileged pairs (u, h_t), by the ELBO (section 3.2, appendix C)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from coulda.devices import on_all_devices, sum_over_devices
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import negative_elbo, random_lengths
from coulda.hindsight.source import history_length
from coulda.learners.imitation import Experts, draw
from coulda.planners.mixture import ExpertMixture
from coulda.pomdp import POMDP, Actor, Episode, Policy, Scenario, rollout
from coulda.trainer import descend, first_state

SHARES = (0.0, 0.5, 1.0)
"""How much of its acting an expert does, in equal parts of a batch."""


class ScenarioState(eqx.Module):
    """What the next step needs."""

    network: ConvDRAW
    optimizer_state: Any


class ScenarioTraining(eqx.Module):
    """Episodes of a behavior policy in an environment whose levels may be seen, which only this training may do.

    Args:
        environment: where the pairs come from.
        behavior: μ.
        optimizer: the optimizer of the network's parameters.
        batch: pairs per step (paper: 4).
        steps: t of every pair, as the paper trains a model for each t; None draws it at random for each pair, so that
            one model serves every t.
        experts: in two thirds of the episodes an expert acts instead of μ, half of the time or always; so that the
            histories of a policy that is being improved are known too. None by default.
    """

    environment: POMDP
    behavior: Policy
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=32)
    steps: int | None = eqx.field(static=True, default=None)
    experts: Experts | None = eqx.field(static=True, default=None)

    def init(self, network: ConvDRAW) -> ScenarioState:
        """The state before the first step."""
        return on_all_devices(ScenarioState(network, first_state(self.optimizer, network)))

    def step(self, key: Array, state: ScenarioState) -> tuple[ScenarioState, dict[str, Array]]:
        """Log a batch, and climb its ELBO. Consumes `key`."""
        key_scenarios, key_improve = jax.random.split(key)
        scenarios = draw(self.environment, jax.random.split(key_scenarios, self.batch))
        expert = None if self.experts is None else self.experts(scenarios)
        return self._improve(key_improve, state, scenarios, expert)

    @eqx.filter_jit
    def _improve(
        self, key: Array, state: ScenarioState, scenarios: Scenario, expert: Any
    ) -> tuple[ScenarioState, dict[str, Array]]:
        key_length, key_noise = jax.random.split(key)
        lengths, shape = self._lengths(key_length), scenarios.initial.shape[1:]
        noise = jax.vmap(state.network.noise(*shape).sample)(jax.random.split(key_noise, self.batch))
        batch = jnp.arange(self.batch), scenarios, lengths, noise
        gradient, info = sum_over_devices(self._gradient, (state.network, expert), batch)
        gradient, info = jax.tree.map(lambda total: total / self.batch, (gradient, info))
        network, optimizer_state = descend(self.optimizer, gradient, state.optimizer_state, state.network)
        info |= {"gradient_norm": optax.tree.norm(gradient)}
        return ScenarioState(network, optimizer_state), info

    def _gradient(self, shared: Any, batch: Any) -> tuple[Any, dict[str, Array]]:
        """Log some episodes, `[b]`; the gradient of the sum of their losses, and the sums of what they tell."""
        (network, expert), (numbers, scenarios, lengths, noise) = shared, batch
        act = lambda number, u: rollout(self.environment, self._actor(number, expert), u).episode
        episodes: Episode = jax.vmap(act)(numbers, scenarios)
        lengths = jax.vmap(history_length)(episodes, lengths)
        loss = eqx.filter_value_and_grad(negative_elbo, has_aux=True)
        (_, info), gradient = loss(network, scenarios.initial, episodes, lengths, noise)
        return jax.tree.map(lambda mean: mean * numbers.size, (gradient, info))

    def _actor(self, number: Array, expert: Any) -> Actor:
        if expert is None:
            return self.behavior
        return ExpertMixture(expert(number), self.behavior, jnp.asarray(SHARES)[number % len(SHARES)])

    def _lengths(self, key: Array) -> Array:
        if self.steps is not None:
            return jnp.full(self.batch, self.steps, jnp.int32)
        return random_lengths(key, self.batch, self.environment.horizon)
