"""A policy over logged histories: the probabilities that it would have given to what was done.

Recurrent policies are run over the logged history, so that what they remember is what they would have remembered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog, StoredLog
from coulda.pomdp import Episode, Policy, batched
from coulda.pomdp.walk import taken_log_probs

Log = EpisodeLog | StoredLog


def over_log(function: Callable[..., Any], log: Log, horizon: int) -> Iterator[Any]:
    """`function(episode, index)` of every episode, as NumPy arrays `[n, ...]` a batch; memory stays flat.

    `function` is an `eqx.Partial` of a function and what it needs, so that equal shapes share one program.
    """
    for inputs, count in filled_batches(log, horizon):
        yield to_numpy(run(function, inputs), count)


def filled_batches(log: Log, horizon: int) -> Iterator[tuple[tuple[Episode, Array], int]]:
    """Padded episodes `[size, T, ...]` with their numbers, and how many of them count.

    A shorter batch is filled up with episodes that do not count, which is cheaper than compiling for its size.
    """
    size, first = _batch_size(log), 0
    for batch in log.batches(size):
        yield _filled(batch, first, horizon, size), len(batch)
        first += len(batch)


def filled_batch(log: Log, horizon: int, index: int) -> tuple[Episode, Array]:
    """The padded episodes and numbers of `filled_batches` at `index`, without reading those before."""
    size = _batch_size(log)
    return _filled(log.batch(index, size), sum(log.batch_sizes(size)[:index]), horizon, size)


def batch_sizes(log: Log) -> list[int]:
    """How many episodes count in each of `filled_batches`."""
    return log.batch_sizes(_batch_size(log))


def _batch_size(log: Log, most: int = 4096) -> int:
    """At most `most`, and so that little is filled up: equal shares of the log, and no more than its shards hold."""
    shares = -(-len(log) // most)
    return max(log.batch_sizes(-(-len(log) // shares)))


def _filled(batch: EpisodeLog, first: int, horizon: int, size: int) -> tuple[Episode, Array]:
    rows = np.arange(size) % len(batch)
    return batch.take(rows).padded(horizon), jnp.asarray(first + rows, jnp.int32)


@eqx.filter_jit
def run(function: Callable[..., Any], inputs: Any) -> Any:
    """`function(*inputs)` of each element of a batch."""
    return batched(lambda element: function(*element), inputs)


def to_numpy(tree: Any, count: int) -> Any:
    """The first `count` rows of every array."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], tree)


@dataclass(frozen=True)
class Weighted:
    """What importance weighting needs of a log: a few numbers a step, whatever the observations are."""

    log_ratio: np.ndarray
    """log π(a_t | h_t) - log μ(a_t | h_t), `[N, T]`, zero after the end."""
    reward: np.ndarray
    """`[N, T]`, zero after the end."""

    @property
    def log_cumulative(self) -> np.ndarray:
        """Log ρ_{1:t}, `[N, T]`; after the end it stays what it was."""
        return np.cumsum(self.log_ratio, axis=1)


def weigh(policy: Policy, log: Log) -> Weighted:
    """The log-ratios of `policy` to the behavior policy, and the rewards, in float64."""
    function = eqx.Partial(_log_ratios, policy)
    parts = list(over_log(function, log, log.max_length))
    joined = [np.concatenate(part).astype(float) for part in zip(*parts, strict=True)]
    return Weighted(*joined)


def _log_ratios(policy: Policy, episode: Episode, index: Array) -> tuple[Array, Array]:  # noqa: ARG001
    return taken_log_probs(policy, episode) - episode.log_prob, episode.reward


def known_probabilities(log: Log) -> bool:
    """Whether every step has a behavior probability, read in pieces."""
    return all(batch.has_probabilities for batch in log.batches())


def generator(key: Array) -> np.random.Generator:
    """NumPy's generator for the bootstrap, seeded by a JAX key, which it consumes."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def cut_short(log: Log) -> int:
    """How many episodes were cut off before the longest of them ended."""
    each = partial(_cut, horizon=log.max_length)
    return sum(each(batch) for batch in log.batches())


def _cut(batch: EpisodeLog, horizon: int) -> int:
    return int((~batch.terminated & (batch.lengths < horizon)).sum())
