"""conv-DRAW (Gregor et al., 2016) of a grid of categories given a history: p(u | h_t) (appendix C).

The history is summarized by a backward conv-LSTM. Then K layers of latent grids follow, each drawn from a Gaussian
whose parameters depend on the layers before and on the summary, p(z_k | z_<k, h), and each adding to a canvas of tile
logits, from which every tile is drawn by itself. For training, q(z_k | z_<k, u, h) sees the grid too, or what is known
of it: evidence about each tile, as a likelihood of every category.

The latents Z are not the noise U of the SCM; integrating them out gives its distribution.
"""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from coulda.networks import ConvLSTM, Convolution
from coulda.noise import Gumbel, Independent, Normal
from coulda.pomdp import Episode
from coulda.storage import Count, Few, Kind, load_network, save_network


class ScenarioArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that makes a `ConvDRAW` but its weights."""

    num_layers: Few = 4
    """K, the number of layers (paper: 8)."""
    channels: Count = 16
    """The channels of every hidden state (paper: 32)."""
    latents: Count = 8
    """The channels of each z_k."""
    shared: bool = False
    """Whether the K layers share their weights."""
    num_tiles: Count = 7
    num_actions: Count = 5
    wall: int = 1


_KIND = Kind("scenario-model", 1, ScenarioArchitecture)


class Layer(eqx.Module):
    """The networks of one latent layer."""

    prior: Convolution
    """(decoder, summary) → mean and log-scale of p(z_k | z_<k, h)."""
    encoder: ConvLSTM
    """(evidence of u, what the canvas misses of it, decoder, summary) → memory of q."""
    posterior: Convolution
    """encoder → mean and log-scale of q(z_k | z_<k, u, h)."""
    decoder: ConvLSTM
    """(z_k, summary) → memory of p."""
    write: Convolution
    """decoder → what is added to the canvas."""

    def __init__(self, key: Array, channels: int, latents: int, num_tiles: int):
        keys = jax.random.split(key, 5)
        self.prior = Convolution(keys[0], 2 * channels, 2 * latents)
        self.encoder = ConvLSTM(keys[1], 2 * num_tiles + 2 * channels, channels=channels)
        self.posterior = Convolution(keys[2], channels, 2 * latents)
        self.decoder = ConvLSTM(keys[3], latents + channels, channels=channels)
        self.write = Convolution(keys[4], channels, num_tiles)


class Gaussian(NamedTuple):
    """A diagonal Gaussian over a latent grid."""

    mean: Array
    log_scale: Array

    @classmethod
    def of(cls, parameters: Array) -> "Gaussian":
        """The Gaussian of parameters `[..., 2 C]`; the log-scale is kept within ±5, where exp is tame."""
        mean, log_scale = jnp.split(parameters, 2, axis=-1)
        return cls(mean, 5 * jnp.tanh(log_scale / 5))

    def at(self, noise: Array) -> Array:
        """Mean + scale · noise."""
        return self.mean + jnp.exp(self.log_scale) * noise

    def divergence(self, other: "Gaussian") -> Array:
        """KL(self ‖ other), summed."""
        ratio = jnp.exp(2 * (self.log_scale - other.log_scale))
        distance = ((self.mean - other.mean) * jnp.exp(-other.log_scale)) ** 2
        return 0.5 * jnp.sum(ratio + distance - 1) - jnp.sum(self.log_scale - other.log_scale)


class Drawn(NamedTuple):
    """One pass through the layers."""

    logits: Array
    """The canvas, `[height, width, tiles]`."""
    divergence: Array
    """Σ_k KL(q ‖ p); zero for a sample from the prior."""
    prior: Gaussian
    """p(z_k | z_<k, h), `[K, height, width, latents]`."""
    posterior: Gaussian
    """q(z_k | z_<k, u, h) likewise; the prior where there is no u."""


class ConvDRAW(eqx.Module):
    """p(u | h_t) for grids u of `num_tiles` categories whose border is always wall."""

    reader: ConvLSTM
    layers: Layer
    """The layers, with a leading axis of K, or of 1 where the weights are shared."""
    architecture: ScenarioArchitecture = eqx.field(static=True)

    def __init__(self, key: Array, **options: Any):
        """`options` are those of `ScenarioArchitecture`."""
        self.architecture = a = ScenarioArchitecture(**options)
        key_reader, key_layers = jax.random.split(key)
        # A step of the history: the tiles, the action that follows, the reward that it brought, and "there is one".
        self.reader = ConvLSTM(key_reader, a.num_tiles + a.num_actions + 2, channels=a.channels)
        keys = jax.random.split(key_layers, 1 if a.shared else a.num_layers)
        # Drawn one by one: under vmap XLA:CPU compiles each kernel's draw for seconds.
        layers = [Layer(k, a.channels, a.latents, a.num_tiles) for k in keys]
        self.layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)

    def noise(self, height: int, width: int) -> Independent:
        """What `sample` and `elbo` are given: the noise of the latents, and of the tiles."""
        inner = (height - 2, width - 2)
        return Independent(
            {
                "latents": Normal(shape=(self.architecture.num_layers, *inner, self.architecture.latents)),
                "tiles": Gumbel((*inner, self.architecture.num_tiles)),
            }
        )

    def sample(self, episode: Episode, length: Array, noise: dict[str, Array]) -> Array:
        """A grid from p(u | h_t), tile by tile; nothing is repaired.

        Args:
            episode: the history, of grids `uint8[T + 1, height, width]`.
            length: how many of its observations are known; none is the unconditional model.
            noise: a draw of `noise`.
        """
        drawn = self.draw(self.read(episode, length), noise["latents"])
        inner = jnp.argmax(drawn.logits + noise["tiles"], -1).astype(episode.observation.dtype)
        return jnp.pad(inner, 1, constant_values=self.architecture.wall)

    def certain(self, u: Array) -> Array:
        """The evidence of who knows the grid: log 1 for its own categories, `[..., height, width, tiles]`."""
        return jnp.log(jax.nn.one_hot(u, self.architecture.num_tiles))

    def elbo(
        self, log_evidence: Array, episode: Episode, length: Array, noise: dict[str, Array]
    ) -> tuple[Array, Drawn]:
        """E_q[log p(evidence | z, h)] - KL, in nats, by one reparameterized draw; and the pass itself.

        Args:
            log_evidence: log-likelihoods of every category of every tile, `[height, width, tiles]`: `certain(u)` where
                u is known, and nothing but zeros for a tile of which nothing is.
            episode: the history, of grids `uint8[T + 1, height, width]`.
            length: how many of its observations are known.
            noise: a draw of `noise`.
        """
        inner = log_evidence[1:-1, 1:-1]
        drawn = self.draw(self.read(episode, length), noise["latents"], inner)
        log_likelihood = jnp.sum(jax.nn.logsumexp(jax.nn.log_softmax(drawn.logits) + inner, -1))
        return log_likelihood - drawn.divergence, drawn

    def read(self, episode: Episode, length: Array) -> Array:
        """The summary of h_t, `[height, width, channels]`: a conv-LSTM from o_t back to o_1. Zeros for no history."""
        observation = episode.observation[:, 1:-1, 1:-1]
        steps, height, width = observation.shape

        def read_step(carry, inputs):
            i, tiles, action, reward = inputs
            # a_i and r_i belong to h_t only if o_{i+1} does.
            follows = (i + 1 < length).astype(jnp.float32)
            extras = jnp.concatenate(
                [jax.nn.one_hot(action, self.architecture.num_actions) * follows, jnp.stack([reward * follows])]
            )
            plane = jnp.broadcast_to(jnp.append(extras, 1.0), (height, width, self.architecture.num_actions + 2))
            new, _ = self.reader(
                carry, jnp.concatenate([jax.nn.one_hot(tiles, self.architecture.num_tiles), plane], -1)
            )
            # The state is zero until the first step that is known. Its gradient keeps whether that was, and no mask.
            known = jax.checkpoint(lambda state, length: state * (i < length).astype(state.dtype), prevent_cse=False)
            return jax.tree.map(lambda state: known(state, length), new), None

        pad = lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])])
        inputs = jnp.arange(steps), observation, pad(episode.action), pad(episode.reward)
        carry, _ = jax.lax.scan(read_step, self.reader.initial_carry(height, width), inputs, reverse=True)
        return carry[-1][1]

    def draw(self, summary: Array, noise: Array, log_evidence: Array | None = None) -> Drawn:
        """All K layers: from q where there is evidence about u, else from p.

        Args:
            summary: a summary of the history, `[height, width, channels]`.
            noise: standard normal, `[K, height, width, latents]`.
            log_evidence: `[height, width, num_tiles]`.
        """
        height, width, _ = summary.shape
        shared = self.architecture.shared
        only = jax.tree.map(lambda leaf: leaf[0], self.layers)

        def step(state, inputs):
            layer, epsilon = (only, inputs) if shared else inputs
            encoder, decoder, canvas = state
            prior = Gaussian.of(layer.prior(decoder[-1][1], summary))
            posterior = prior
            if log_evidence is not None:
                # The slope of the log-likelihood of the evidence along the canvas; u - softmax where u is certain.
                missing = jax.nn.softmax(canvas + log_evidence) - jax.nn.softmax(canvas)
                seen = jnp.concatenate([jnp.exp(log_evidence), missing, decoder[-1][1], summary], -1)
                encoder, top = layer.encoder(encoder, seen)
                posterior = Gaussian.of(layer.posterior(top))
            z = posterior.at(epsilon)
            decoder, top = layer.decoder(decoder, jnp.concatenate([z, summary], -1))
            return (encoder, decoder, canvas + layer.write(top)), (prior, posterior)

        start = (
            only.encoder.initial_carry(height, width),
            only.decoder.initial_carry(height, width),
            jnp.zeros((height, width, self.architecture.num_tiles)),
        )
        inputs = noise if shared else (self.layers, noise)
        (_, _, canvas), (prior, posterior) = jax.lax.scan(step, start, inputs)
        divergence = jnp.zeros(()) if log_evidence is None else posterior.divergence(prior)
        return Drawn(canvas, divergence, prior, posterior)


def save_scenario_model(path: Path, network: ConvDRAW, log: bytes | None = None) -> None:
    """Commit a network as an artifact at `path`, which must not exist yet; with the log of its training."""
    save_network(path, _KIND, network, network.architecture, log)


def load_scenario_model(path: Path) -> ConvDRAW:
    """The network that `save_scenario_model` wrote; anything else raises `coulda.storage.ArtifactError`."""
    return load_network(path, _KIND, lambda key, architecture: ConvDRAW(key, **msgspec.structs.asdict(architecture)))
