"""`Learned`: a scenario source p(U_s1 | h_t) from a network, and the loss by which it is trained."""

from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.source import ALL_STEPS, ScenarioSource, fresh, history_length, other_key
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.trainer import descend, first_state

if TYPE_CHECKING:  # whoever trains imports it: a first table is waited for
    import optax


class Learned(ScenarioSource):
    """Levels from a network, all other noise afresh from the model.

    `given(steps=0)` is the unconditional model p(U_s1) of MB-PE, `given(steps=1)` the filtering one.
    """

    knows_the_prior: ClassVar[bool] = False

    model: POMDP
    """Its initial noise is a grid of categories, and so are its observations."""
    network: ConvDRAW
    steps: Array

    def __init__(self, model: POMDP, network: ConvDRAW):
        self.model, self.network, self.steps = model, network, jnp.int32(ALL_STEPS)

    @property
    def infers_observation_noise(self) -> bool:
        """It is fresh."""
        return False

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw; every tile as it falls."""
        scenario = fresh(key, self.model)
        noise = self.network.noise(*episode.observation.shape[1:]).sample(other_key(key))
        level = self.network.sample(episode, history_length(episode, self.steps), noise)
        # A log may keep the tiles as wider integers than the model does.
        return eqx.tree_at(lambda s: s.initial, scenario, level.astype(scenario.initial.dtype))


class LearnedOnline(Learned):
    """A `Learned` source that goes on learning: `PolicySearch(learn=LearnedOnline.learn)` trains it on what it logs.

    Args:
        model: the SCM we believe in.
        network: before it learns.
        optimizer: the optimizer of its parameters.
    """

    optimizer_state: Any
    optimizer: "optax.GradientTransformation" = eqx.field(static=True)

    def __init__(self, model: POMDP, network: ConvDRAW, optimizer: "optax.GradientTransformation"):
        super().__init__(model, network)
        self.optimizer, self.optimizer_state = optimizer, first_state(optimizer, network)

    @staticmethod
    def learn(key: Array, source: "LearnedOnline", u: Scenario, episodes: Episode) -> "LearnedOnline":
        """One step of the ELBO on privileged pairs (u, h_t) `[N, ...]`, t drawn for each. Consumes `key`."""
        key_length, key_noise = jax.random.split(key)
        count, shape = u.initial.shape[0], u.initial.shape[1:]
        lengths = random_lengths(key_length, count, source.model.horizon)
        lengths = jax.vmap(history_length)(episodes, lengths)
        noise = jax.vmap(source.network.noise(*shape).sample)(jax.random.split(key_noise, count))
        loss = lambda network: negative_elbo(network, network.certain(u.initial), episodes, lengths, noise)[0]
        gradient: Any = eqx.filter_grad(loss)(source.network)
        network, state = descend(source.optimizer, gradient, source.optimizer_state, source.network)
        return eqx.tree_at(lambda s: (s.network, s.optimizer_state), source, (network, state))


def negative_elbo(
    network: ConvDRAW, log_evidence: Array, episodes: Episode, lengths: Array, noise: Any
) -> tuple[Array, dict[str, Array]]:
    """The loss of a batch of pairs (evidence of u, h_t), in nats per level, and its parts.

    Args:
        network: the scenario model.
        log_evidence: log-likelihoods of every tile's categories, `[B, height, width, tiles]`; `network.certain(u)`
            where u is known.
        episodes: `[B]` in each leaf.
        lengths: t of each, `[B]`.
        noise: draws of `network.noise`, `[B]` in each leaf.
    """
    elbo, drawn = jax.vmap(network.elbo)(log_evidence, episodes, lengths, noise)
    likeliest = jnp.argmax(drawn.logits, -1)[..., None]
    right = jnp.take_along_axis(log_evidence[:, 1:-1, 1:-1], likeliest, -1) == 0
    return -jnp.mean(elbo), {
        "elbo": jnp.mean(elbo),
        "divergence": jnp.mean(drawn.divergence),
        "reconstruction": jnp.mean(elbo + drawn.divergence),
        "tiles_reconstructed": jnp.mean(right.astype(jnp.float32)),
    }


def random_lengths(key: Array, batch: int, horizon: int) -> Array:
    """The t of each pair of a batch, so that one model serves every t: uniform over 0 … T + 1. Consumes `key`."""
    return jax.random.randint(key, (batch,), 0, horizon + 2)
