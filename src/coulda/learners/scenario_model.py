"""Training a scenario model p(U_s1 | h_t) by the ELBO (section 3.2, appendix C), from pairs or from a log alone.

`ScenarioTraining` is privileged, as in the paper: it sees the scenario u of every history. `LogTraining` sees what was
logged, and what that is evidence of.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from coulda.devices import on_all_devices
from coulda.episodes import EpisodeLog
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import negative_elbo, random_lengths
from coulda.hindsight.source import history_length
from coulda.learners.imitation import Experts, draw
from coulda.planners.mixture import ExpertMixture
from coulda.pomdp import POMDP, Actor, Episode, Policy, Scenario, rollout, sum_over_batch
from coulda.trainer import descend, first_state

SHARES = (0.0, 0.5, 1.0)
"""How much of its acting an expert does, in equal parts of a batch."""

Pairs = Callable[[Any, Any], tuple[Episode, Callable[[ConvDRAW, Array], Array]]]
"""(shared, a batch) -> episodes `[b]`, and log-evidence `[b, height, width, tiles]` given how much of each is known."""

LogEvidence = Callable[[Episode, Array], Array]
"""(an episode, how many observations h_t has) -> the log-likelihood of what follows h_t, and of what is known for
certain, of every category of every tile, `[height, width, tiles]`."""


class ScenarioState(eqx.Module):
    """What the next step needs."""

    network: ConvDRAW
    optimizer_state: Any


class Ascent(eqx.Module):
    """What both ways of training share: a step up the ELBO of a batch of pairs (evidence of u, h_t)."""

    optimizer: optax.GradientTransformation = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    steps: int | None = eqx.field(static=True)

    def init(self, network: ConvDRAW) -> ScenarioState:
        """The state before the first step."""
        return on_all_devices(ScenarioState(network, first_state(self.optimizer, network)))

    def step(
        self, key: Array, state: ScenarioState, pairs: Pairs, shared: Any, batch: Any, horizon: int, shape: Any
    ) -> tuple[ScenarioState, dict[str, Array]]:
        """Climb. Consumes `key`.

        Args:
            key: a key.
            state: the state before.
            pairs: makes the pairs, on the device that learns from them.
            shared: its first argument, the same for all of the batch.
            batch: its second, `[B]` in each leaf.
            horizon: T.
            shape: (height, width).
        """
        key_length, key_noise = jax.random.split(key)
        lengths = self._lengths(key_length, horizon)
        noise = jax.vmap(state.network.noise(*shape).sample)(jax.random.split(key_noise, self.batch))

        def gradient_of(shared: Any, share: Any) -> tuple[Any, dict[str, Array]]:
            """The gradient of the sum of the losses of some pairs, `[b]`, and the sums of what they tell."""
            (network, shared), (some, lengths, noise) = shared, share
            episodes, evidence = pairs(shared, some)
            lengths = jax.vmap(history_length)(episodes, lengths)
            loss = eqx.filter_value_and_grad(negative_elbo, has_aux=True)
            (_, info), gradient = loss(network, evidence(network, lengths), episodes, lengths, noise)
            return jax.tree.map(lambda mean: mean * lengths.size, (gradient, info))

        gradient, info = sum_over_batch(gradient_of, (state.network, shared), (batch, lengths, noise))
        gradient, info = jax.tree.map(lambda total: total / self.batch, (gradient, info))
        network, optimizer_state = descend(self.optimizer, gradient, state.optimizer_state, state.network)
        info |= {"gradient_norm": optax.tree.norm(gradient)}
        return ScenarioState(network, optimizer_state), info

    def _lengths(self, key: Array, horizon: int) -> Array:
        if self.steps is not None:
            return jnp.full(self.batch, self.steps, jnp.int32)
        return random_lengths(key, self.batch, horizon)


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
    ascent: Ascent
    experts: Experts | None = eqx.field(static=True)

    def __init__(
        self,
        environment: POMDP,
        behavior: Policy,
        optimizer: optax.GradientTransformation,
        batch: int = 32,
        steps: int | None = None,
        experts: Experts | None = None,
    ):
        self.environment, self.behavior, self.experts = environment, behavior, experts
        self.ascent = Ascent(optimizer, batch, steps)

    def init(self, network: ConvDRAW) -> ScenarioState:
        """The state before the first step."""
        return self.ascent.init(network)

    def step(self, key: Array, state: ScenarioState) -> tuple[ScenarioState, dict[str, Array]]:
        """Log a batch, and climb its ELBO. Consumes `key`."""
        key_scenarios, key_improve = jax.random.split(key)
        scenarios = draw(self.environment, jax.random.split(key_scenarios, self.ascent.batch))
        expert = None if self.experts is None else self.experts(scenarios)
        return self._improve(key_improve, state, scenarios, expert)

    @eqx.filter_jit
    def _improve(
        self, key: Array, state: ScenarioState, scenarios: Scenario, expert: Any
    ) -> tuple[ScenarioState, dict[str, Array]]:
        horizon, shape = self.environment.horizon, scenarios.initial.shape[1:]
        batch = jnp.arange(self.ascent.batch), scenarios
        return self.ascent.step(key, state, self._pairs, expert, batch, horizon, shape)

    def _pairs(self, expert: Any, batch: Any) -> tuple[Episode, Callable[[ConvDRAW, Array], Array]]:
        """Episodes, and certainty about their levels."""
        numbers, scenarios = batch
        act = lambda number, u: rollout(self.environment, self._actor(number, expert), u).episode
        return jax.vmap(act)(numbers, scenarios), lambda network, _: network.certain(scenarios.initial)

    def _actor(self, number: Array, expert: Any) -> Actor:
        if expert is None:
            return self.behavior
        return ExpertMixture(expert(number), self.behavior, jnp.asarray(SHARES)[number % len(SHARES)])


@dataclass(frozen=True, eq=False)
class LogTraining:
    """Episodes of a log, and nothing else: what follows h_t, and what the history reveals, is evidence of the scenario.

    The loss bounds -log E_{p(u | h_t)} p(what follows | u, h_t): what nobody saw of u is neither guessed nor left out.

    Args:
        log: the episodes.
        horizon: T.
        evidence: what the rules of the world make of one episode.
        optimizer: the optimizer of the network's parameters.
        batch: episodes per step, drawn with replacement.
        steps: t of every pair; None draws it at random for each.
    """

    log: EpisodeLog
    horizon: int
    evidence: LogEvidence
    optimizer: optax.GradientTransformation
    batch: int = 32
    steps: int | None = None

    def init(self, network: ConvDRAW) -> ScenarioState:
        """The state before the first step."""
        return Ascent(self.optimizer, self.batch, self.steps).init(network)

    def step(self, key: Array, state: ScenarioState) -> tuple[ScenarioState, dict[str, Array]]:
        """Draw a batch of the log, and climb its ELBO. Consumes `key`."""
        key_draw, key_improve = jax.random.split(key)
        episodes = self.log.sample(key_draw, self.batch).padded(self.horizon)
        ascent = Ascent(self.optimizer, self.batch, self.steps)
        return _improve_on_log(ascent, self.evidence, key_improve, state, episodes)


@eqx.filter_jit
def _improve_on_log(
    ascent: Ascent, evidence: LogEvidence, key: Array, state: ScenarioState, episodes: Episode
) -> tuple[ScenarioState, dict[str, Array]]:
    pairs = lambda _, some: (some, lambda _, lengths: jax.vmap(evidence)(some, lengths))
    _, steps, *shape = episodes.observation.shape
    return ascent.step(key, state, pairs, None, episodes, steps - 1, shape)
