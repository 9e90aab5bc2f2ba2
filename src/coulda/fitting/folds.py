"""Who has seen an episode: episodes are dealt to folds, and are known again by what is in them.

Member k of a fit has never seen fold k. The noise of an episode is inferred with the member that has not seen it, since
the residuals of what a model was fitted to are too small. A source is given an episode and no number of it, so that the
fold belongs to the episode's own digest; equal episodes are in one fold.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog, StoredLog
from coulda.errors import CouldaError
from coulda.pomdp import Episode, batched

SAMPLE = 256
"""Episodes by which a log is known again: of another log one that is the same by chance is one in millions."""


class Folds(eqx.Module):
    """The digests of all episodes of a log, sorted, and the fold of each."""

    digests: Array
    """`[M]`, uint32, of the M different episodes."""
    fold: Array
    """`[M]`, int32."""
    cut: Array
    """Whether the episode was cut off, `[M]`."""
    count: int = eqx.field(static=True)
    """K."""

    def of(self, episode: Episode) -> Array:
        """The fold of an episode, an int32; nobody has seen one that is not in the log, and any fold will do."""
        found, place, known = self._place(episode)
        return jnp.where(known, self.fold[place], (found % self.count).astype(jnp.int32))

    def was_cut(self, episode: Episode) -> Array:
        """Whether the log says that the episode was cut off; of another nothing is known, and it came to its end."""
        _, place, known = self._place(episode)
        return known & self.cut[place]

    def hold(self, log: EpisodeLog | StoredLog) -> bool:
        """Whether the first episodes of a log, as many as `SAMPLE`, are among these."""
        found = np.asarray(_digests(log.batch(0, SAMPLE).padded()))
        return bool(np.isin(found, np.asarray(self.digests)).all())

    def _place(self, episode: Episode) -> tuple[Array, Array, Array]:
        found = digest(episode)
        place = jnp.minimum(jnp.searchsorted(self.digests, found), self.digests.shape[0] - 1)
        return found, place, self.digests[place] == found


def deal(log: EpisodeLog, count: int) -> tuple[Folds, np.ndarray]:
    """Folds of about the same size, and the fold of every episode `[N]`."""
    if count < 2:
        raise CouldaError(f"folds is {count}; at least 2 are needed, so that each episode is unseen by somebody.")
    found = np.asarray(_digests(log.padded()))
    different, one = np.unique(found, return_index=True)
    if len(different) < count:
        raise CouldaError(
            f"the log has {len(log)} episodes, of which {len(different)} are different, and {count} folds are asked "
            "for. Give more episodes, or fewer folds."
        )
    fold = np.arange(len(different)) % count
    folds = Folds(jnp.asarray(different), jnp.asarray(fold, jnp.int32), jnp.asarray(~log.terminated[one]), count)
    return folds, fold[np.searchsorted(different, found)]


def digest(episode: Episode) -> Array:
    """A number of what was seen, done and paid, uint32, however far the episode is padded."""
    live = episode.live
    seen = jnp.arange(live.shape[0] + 1) <= jnp.sum(live)
    parts = [
        *((leaf, seen) for leaf in jax.tree.leaves(episode.observation)),
        *((leaf, live) for leaf in jax.tree.leaves(episode.action)),
        (episode.reward, live),
    ]
    total = jnp.uint32(0)
    for number, (leaf, counts) in enumerate(parts):
        bits = _bits(leaf)
        place = jnp.arange(bits.shape[0], dtype=jnp.uint32)[:, None] * jnp.uint32(0x9E3779B1)
        salt = jnp.arange(bits.shape[1], dtype=jnp.uint32)[None] * jnp.uint32(0x85EBCA77) + jnp.uint32(number + 1)
        mixed = _mix(bits ^ _mix(place + salt))
        total = total + jnp.sum(jnp.where(counts[:, None], mixed, jnp.uint32(0)), dtype=jnp.uint32)
    return _mix(total)


@eqx.filter_jit
def _digests(episodes: Episode) -> Array:
    return batched(digest, episodes)


def _bits(leaf: Array) -> Array:
    """`[T, n]`, uint32."""
    flat = leaf.reshape(leaf.shape[0], -1)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        # Both zeros are one number.
        return jax.lax.bitcast_convert_type(flat.astype(jnp.float32) + 0.0, jnp.uint32)
    return flat.astype(jnp.uint32)


def _mix(x: Array) -> Array:
    """The last steps of MurmurHash3: every bit moves all others."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
