"""`Amortized`: p(U | h_t) of any simulator, by a network that was trained on simulated pairs (u, h)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.coding import Code
from coulda.hindsight.hindsight_network import Architecture, HindsightNetwork, Known
from coulda.hindsight.likelihood import next_state, seen_in, states_under
from coulda.hindsight.pairs import Codings, model_fingerprint, shows_states
from coulda.hindsight.source import (
    ALL_STEPS,
    FAR,
    FINE,
    Inference,
    ScenarioSource,
    history_length,
    other_key,
    where_known,
)
from coulda.noise import NoiseDistribution, Point
from coulda.pomdp import POMDP, Episode, Policy, Scenario
from coulda.pomdp.observing import infers_noise
from coulda.storage import Kind, load_weights, read_artifact, save_tree, write_artifact

SOURCE = "source"
"""Where a training's folder keeps what was learned."""
_WEIGHTS = "weights.safetensors"


class AmortizedMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trained source says of itself, beside its weights."""

    architecture: Architecture
    model: str
    """The class of the model that it was trained on."""
    fingerprint: str
    """Of that model's numbers and structure."""
    simulations: int
    policies: tuple[str, ...]
    """Who acted in them, in equal shares."""
    steps: int | None
    """The t of all pairs; None where one network serves every t."""
    passes: int
    """Over the pairs, until the best."""
    held_out: float
    """-log q(u | h_t) of pairs that were held out, in nats."""


AMORTIZED = Kind("hindsight", 3, AmortizedMetadata)


class Amortized(ScenarioSource):
    """Draws of a network's p(U | h_t), of any simulator: a POMDP, or a black box such as a `HostSimulator`.

    Its draws take no time to speak of, and need no density. That they are right is not certain: `calibrate` asks, and
    `Corrected` weighs them where a density exists. The noise of the first state and of transitions is inferred where it
    has `from_normal` or `atoms`; that of observations where its posterior is known; all else is fresh.

    Args:
        model: that it was trained on.
        network: trained on its pairs.
    """

    model: POMDP | None
    """None of a black box."""
    prior: NoiseDistribution
    codings: Codings
    network: HindsightNetwork
    horizon: int = eqx.field(static=True)
    steps: Array

    def __init__(self, model: POMDP, network: HindsightNetwork):
        self.model = model if shows_states(model) else None
        self.prior, self.codings, self.network = model.scenario_prior, Codings.of(model), network
        self.horizon, self.steps = model.horizon, jnp.int32(ALL_STEPS)

    @property
    def infers_observation_noise(self) -> bool:
        """Where its posterior is known."""
        known = self.model is not None and infers_noise(self.model)
        return known and not isinstance(getattr(self.model, "observation_noise", None), Point)

    @property
    def is_exact(self) -> bool:
        """A network is not."""
        return False

    @property
    def weighs_rewards(self) -> bool:
        """Nothing makes them come out as logged, even where the network is shown them."""
        return False

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of q(U | h_t)."""
        return self._draw(key, episode, self.network.known(seen_in(episode, self.steps)))

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """Many draws, from one reading of the history; an episode unlike all that was simulated says so."""
        seen = seen_in(episode, self.steps)
        known, far = self.network.known(seen), self.network.far(seen)
        drawn = jax.vmap(lambda one: self._draw(one, episode, known))(jax.random.split(key, count))
        reason, step = jnp.where(far.any(), FAR, FINE), jnp.where(far.any(), jnp.argmax(far), -1)
        exact = Inference.exact()
        said = reason.astype(jnp.int32), step.astype(jnp.int32)
        return drawn, eqx.tree_at(lambda i: (i.reason, i.step), exact, said)

    def codes(self, key: Array, known: Known, actions: Any) -> tuple[Code, Code, Array]:
        """A draw of the codes of U_s1 and U_s `[T, ...]`, and log q of it as far as h_t tells of it. Consumes `key`."""
        codings, model = self.codings, self.model
        key_dice, key_rest = jax.random.split(key)
        first, later = (coding.coordinates.sample(key_rest) for coding in (codings.initial, codings.transition))

        def begin(code: Code) -> Any:
            assert model is not None
            return model.initial(codings.initial.coordinates.noise(codings.initial.position(code, first)))

        def move(state: Any, i: Array, code: Code) -> Any:
            assert model is not None
            u = codings.transition.coordinates.noise(codings.transition.position(code, later))
            return next_state(model, state, jax.tree.map(lambda leaf: leaf[i], actions), u)

        return self.network.draw(codings, known, self.network.dice(key_dice, self.horizon), begin, move)

    def positions(self, key: Array, first: Code, rest: Code) -> tuple[list[Any], list[Any]]:
        """Of codes, in the coordinates of U_s1 and U_s `[T, ...]`; what has no code is drawn. Consumes `key`."""
        key_first, key_rest = jax.random.split(key)
        initial, transition = self.codings.initial, self.codings.transition
        place = lambda one, code: transition.position(code, transition.coordinates.sample(one))
        rest_keys = jax.random.split(key_rest, self.horizon)
        return initial.position(first, initial.coordinates.sample(key_first)), jax.vmap(place)(rest_keys, rest)

    def _draw(self, key: Array, episode: Episode, known: Known) -> Scenario:
        noise, length = self.prior.sample(key), history_length(episode, self.steps)
        key_codes, key_rest = jax.random.split(other_key(key))
        first, rest, _ = self.codes(key_codes, known, episode.action)
        initial, transition = self.positions(key_rest, first, rest)
        initial = self.codings.initial.coordinates.noise(initial)
        transition = jax.vmap(self.codings.transition.coordinates.noise)(transition)
        seen = jnp.arange(self.horizon + 1) < length
        initial = where_known(length > 0, initial, noise.initial)
        transition = where_known(seen[1:], transition, noise.transition)
        observation = noise.observation
        if self.infers_observation_noise:
            assert self.model is not None
            states = states_under(self.model, initial, transition, episode.action)
            inferred = jax.vmap(self.model.observation_posterior)(states, episode.observation, noise.observation)
            observation = where_known(seen, inferred, noise.observation)
        return Scenario(initial=initial, transition=transition, observation=observation, action=noise.action)

    @classmethod
    def train(
        cls, key: Array, model: POMDP, policies: Mapping[str, Policy] | None = None, **options: Any
    ) -> "Amortized":
        """A source for `model`, trained on pairs that are simulated under `policies`; see `train_hindsight`."""
        from coulda.hindsight.training import train_hindsight

        return train_hindsight(key, model, policies, **options).source

    def save(self, path: Path, metadata: AmortizedMetadata) -> None:
        """Commit what was learned as an artifact at `path`, which must not exist yet."""
        write_artifact(path, AMORTIZED, [(_WEIGHTS, save_tree(self.network))], metadata)

    @classmethod
    def load(cls, path: Path | str, model: POMDP) -> "Amortized":
        """The source that training kept in a folder, over the model that it was trained on."""
        folder = Path(path)
        artifact = read_artifact(folder / SOURCE if (folder / SOURCE).is_dir() else folder, AMORTIZED)
        found = artifact.metadata
        if found.fingerprint != model_fingerprint(model):
            other = "one with other numbers in it" if found.model == type(model).__name__ else f"a {found.model}"
            raise CouldaError(
                f"{folder} infers the noise of {other}, not of this {type(model).__name__}; train it anew: "
                "`coulda train-hindsight --model … --out DIR`."
            )
        make = lambda: HindsightNetwork(jax.random.key(0), Codings.of(model), found.architecture)
        network = load_weights(artifact.only(_WEIGHTS), eqx.filter_eval_shape(make))
        source = cls(model, network)
        return source if found.steps is None else source.given(found.steps)
