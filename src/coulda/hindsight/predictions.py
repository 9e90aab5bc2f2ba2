"""Where each observation lies among those that a filter foresaw just before it: uniform numbers, if the model is right.

Given all that came before, p(o_i | h_{i-1}, a_{i-1}) is a mixture over the filter's particles. The place of the logged
observation among simulated ones (its probability integral transform; Rosenblatt, 1952) is uniform and independent of
everything before it, whoever acted. So a wrong prior, wrong dynamics and wrong noise of observations all show in it,
and where: in the first observations, in their means after an action, or in their spread.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtr

from coulda.hindsight.gaussian import gaussian_predictions
from coulda.hindsight.likelihood import Evidence, seen_in
from coulda.hindsight.moves import ISLANDS
from coulda.hindsight.particles import filter_islands
from coulda.hindsight.source import ALL_STEPS, history_length
from coulda.noise import Iid
from coulda.pomdp import Episode, LinearGaussianPOMDP

MOST_NUMBERS = 8
"""Of an observation that are looked at; of more, so many that are spread evenly over it."""


class Foreseen(eqx.Module):
    """The numbers of each observation among those that were foreseen, `[T + 1, D]` each."""

    places: Array
    """In (0, 1); ties are broken at random."""
    known: Array
    """Which there are: within the history, not missing, and not after a step that nothing explains."""
    apart: Array
    """How far apart the places are by two filters that know nothing of each other."""


def foreseen(key: Array, evidence: Evidence, episode: Episode, particles: int) -> Foreseen:
    """Of one episode: exactly in a linear-Gaussian model, else by a filter of so many particles. Consumes `key`."""
    if isinstance(evidence.model, LinearGaussianPOMDP):
        return _by_kalman(evidence.model, episode)
    key_filter, key_noise, key_dice = jax.random.split(key, 3)
    seen, size = seen_in(episode, jnp.int32(ALL_STEPS)), particles // ISLANDS
    numbers = jax.vmap(_numbers)(episode.observation)
    count = len(numbers)
    # Both filters see the same noise of observations: what sets them apart is that of their states.
    noise = Iid(Iid(evidence.model.observation_noise, size), count).sample(key_noise)
    dice = jax.random.uniform(key_dice, numbers.shape)

    def place(states: Any, log_weights: Array, i: Array) -> Array:
        u = jax.tree.map(lambda leaf: leaf[i], noise)
        made = jax.vmap(lambda s, u: _numbers(evidence.model.observe(s, u)))(states, u)
        return _place(numbers[i], made, jnp.exp(log_weights), dice[i])

    islands, _ = filter_islands(key_filter, evidence, seen, size, ISLANDS, look=place)
    lost = jnp.where(islands.step < 0, count, islands.step).min()
    known = seen.within & (jnp.arange(count) <= lost)
    found = islands.looks
    return Foreseen(found.mean(0), known[:, None] & ~jnp.isnan(numbers), jnp.abs(found[0] - found[1]))


def _by_kalman(model: LinearGaussianPOMDP, episode: Episode) -> Foreseen:
    means, spreads, seen = gaussian_predictions(model, episode, history_length(episode, jnp.int32(ALL_STEPS)))
    deviations = jnp.sqrt(jax.vmap(jnp.diag)(spreads))
    kept = jax.vmap(_numbers)
    places = ndtr(kept((jnp.where(seen[:, None], episode.observation, 0.0) - means) / deviations))
    # As near to 0 and 1 as a filter of many particles would say.
    places = jnp.clip(places, 1e-6, 1 - 1e-6)
    return Foreseen(places, jnp.broadcast_to(seen[:, None], places.shape), jnp.zeros_like(places))


def _place(seen: Array, made: Array, weights: Array, dice: Array) -> Array:
    """Of numbers `[D]` among weighted ones `[N, D]`, any place among equals being as likely, by `dice` in [0, 1)."""
    below, equal = (weights @ jnp.where(which, 1.0, 0.0) for which in (made < seen[None], made == seen[None]))
    size = len(weights)
    return (size * (below + dice * equal) + dice) / (size + 1)


def _numbers(observation: Any) -> Array:
    """Those that are looked at, `[D]`."""
    flat = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), observation))[0]
    if flat.size <= MOST_NUMBERS:
        return flat
    return flat[jnp.linspace(0, flat.size - 1, MOST_NUMBERS).round().astype(int)]
