"""What `calibrate` asks: which numbers of a scenario are ranked, in episodes whose noise is known."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from coulda.hindsight.likelihood import Evidence, seen_in
from coulda.hindsight.particles import Sampler
from coulda.hindsight.source import Inference, ScenarioSource, fresh
from coulda.noise import Point, merge
from coulda.pomdp import POMDP, Actor, Episode, LazyNoise, Policy, Scenario, batched, rollout
from coulda.pomdp.observing import no_density
from coulda.progress import Advance

COORDINATES = 3
"""Of each field of the noise that are ranked, spread evenly over all that vary."""
PIECE = 100
"""Episodes that are worked on between two looks at the clock."""
LIKELIHOOD = "log p(h | u)"


class Asked(eqx.Module):
    """What is measured in an episode, and how it comes about."""

    model: POMDP
    policies: dict[str, Policy]
    behavior: Actor
    evidence: Evidence | None
    fields: frozenset[str] = eqx.field(static=True)
    """Of the scenario, those that the source infers."""
    coordinates: dict[str, tuple[str, int]] = eqx.field(static=True, converter=lambda found: _Frozen(found))
    """By their names: a field, and the place in it when it is laid out flat."""
    discount: float = eqx.field(static=True)
    """γ of the returns."""

    @property
    def names(self) -> list[str]:
        """Of the numbers that `measure` gives, in their order."""
        returns = [f"return of {name}" for name in self.policies]
        return [*self.coordinates, *returns, *([LIKELIHOOD] if self.evidence is not None else [])]

    def measure(self, scenario: Scenario, episode: Episode, steps: Array) -> Array:
        """All numbers of one scenario, beside the history h_t that it is to explain."""
        flat = {field: ravel_pytree(_numbers(getattr(scenario, field)))[0] for field, _ in self.coordinates.values()}
        found = [flat[field][place] for field, place in self.coordinates.values()]
        found += [
            rollout(self.model, policy, scenario).episode.discounted_return(self.discount)
            for policy in self.policies.values()
        ]
        if self.evidence is not None:
            path = scenario.initial, scenario.transition
            agreement = self.evidence.of_path(*path, seen_in(episode, steps), jnp.zeros((), bool))
            found.append(jnp.where(agreement.flawed, jnp.nan, agreement.log_likelihood))
        return jnp.stack([jnp.asarray(one, jnp.float32) for one in found])

    def only_inferred(self, scenario: Scenario, key: Array) -> Scenario:
        """The scenario with fresh noise where none is inferred. Consumes `key`."""
        return merge(scenario, fresh(key, self.model), self.fields)

    def logged(self, scenario: Scenario, key: Array) -> Episode:
        """What is left of a scenario in the log; with errors in its rewards where the source counts on them."""
        episode = rollout(self.model, self.behavior, scenario).episode
        if self.evidence is None or self.evidence.reward_scale is None:
            return episode
        errors = self.evidence.reward_scale * jax.random.normal(key, episode.reward.shape)
        return eqx.tree_at(lambda e: e.reward, episode, episode.reward + jnp.where(episode.live, errors, 0.0))


class _Frozen(dict[str, tuple[str, int]]):
    """A dict that can be part of a program's identity."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self.items()))


@eqx.filter_jit
def _piece(asked: Asked, source: ScenarioSource, draws: int, keys: Array) -> tuple[Array, Array, Inference]:
    """The truth `[n, Q]`, the draws `[n, L, Q]` and what the source says of itself `[n]`, for each key an episode."""

    def one(key: Array) -> tuple[Array, Array, Inference]:
        key_world, key_log, key_infer, key_fresh = jax.random.split(key, 4)
        scenario = fresh(key_world, asked.model)
        episode = asked.logged(scenario, key_log)
        drawn, inference = source.infer_many(key_infer, episode, draws)
        # The truth is one more of them, also for the compiler.
        all_of_them = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), scenario, drawn)
        all_of_them = jax.vmap(asked.only_inferred)(all_of_them, jax.random.split(key_fresh, draws + 1))
        found = jax.vmap(lambda u: asked.measure(u, episode, source.steps))(all_of_them)
        return found[0], found[1:], inference

    return batched(one, keys)


def simulated(
    key: Array, asked: Asked, source: ScenarioSource, episodes: int, draws: int, advance: Advance
) -> tuple[np.ndarray, np.ndarray, Inference]:
    """All episodes, in pieces of one size and so by one program. Consumes `key`."""
    pieces = -(-episodes // PIECE)
    size = -(-episodes // pieces)
    keys = jax.random.split(key, pieces * size).reshape(pieces, size)
    found = []
    for i in range(pieces):
        found.append(jax.tree.map(np.asarray, _piece(asked, source, draws, keys[i])))
        advance(min(size, episodes - i * size))
    truth, drawn, inference = jax.tree.map(lambda *parts: np.concatenate(parts)[:episodes], *found)
    return truth.astype(float), drawn.astype(float), inference


def inferred_fields(source: ScenarioSource) -> frozenset[str]:
    """Of the scenario, those that the source infers."""
    fields = {"initial", "transition"}
    fields |= {"observation"} if source.infers_observation_noise else set()
    return frozenset(fields | ({"action"} if getattr(source, "behavior", None) is not None else set()))


def evidence_of(source: ScenarioSource, model: POMDP) -> tuple[Evidence | None, tuple[str, ...]]:
    """What the source holds against scenarios, for log p(h | u); or why that is not known."""
    if isinstance(source, Sampler):
        return source.evidence, ()
    seen = jax.tree.leaves(model.observation_space.sample())
    if isinstance(model.observation_noise, Point) and any(
        np.issubdtype(np.asarray(o).dtype, np.floating) for o in seen
    ):
        return None, (f"{LIKELIHOOD} is not ranked, since numbers are observed without noise and have no density.",)
    if reason := no_density(model):
        return None, (f"{LIKELIHOOD} is not ranked: {reason}",)
    found = Evidence.of(model, getattr(source, "behavior", None))
    return Evidence(model, found.behavior, found.rewards and source.weighs_rewards, None), ()


def coordinates_of(key: Array, model: POMDP, fields: frozenset[str]) -> dict[str, tuple[str, int]]:
    """A few numbers of each field that vary under the prior, spread evenly. Consumes `key`."""
    scenarios = _prior(model, jax.random.split(key, 64))
    found = {}
    for field in (name for name in ("initial", "transition", "observation", "action") if name in fields):
        leaves = jax.tree_util.tree_leaves_with_path(_numbers(getattr(scenarios, field)))
        names = [f"{field}{_place(path, i)}" for path, leaf in leaves for i in np.ndindex(leaf.shape[1:])]
        values = [np.asarray(leaf, float).reshape(len(leaf), -1) for _, leaf in leaves]
        varying = np.flatnonzero(np.concatenate(values, 1).std(0) > 0) if values else np.zeros(0, int)
        if len(varying):
            chosen = varying[np.linspace(0, len(varying) - 1, min(COORDINATES, len(varying))).round().astype(int)]
            found |= {names[place]: (field, int(place)) for place in chosen}
    return found


@eqx.filter_jit
def _prior(model: POMDP, keys: Array) -> Scenario:
    return jax.vmap(model.scenario_prior.sample)(keys)


def _numbers(noise: Any) -> list[Array] | Any:
    """The leaves of noise that are numbers, as floats; noise that is computed from a seed has none."""
    if isinstance(noise, LazyNoise):
        return []
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda leaf: None if is_key(leaf) else jnp.asarray(leaf, jnp.float32), noise)


def _place(path: Any, index: tuple[int, ...]) -> str:
    """Where a number is in its field, such as `.wear[3, 0]`."""
    return jax.tree_util.keystr(path) + (f"[{', '.join(map(str, index))}]" if index else "")
