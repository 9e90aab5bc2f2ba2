"""`EpisodeLog`: ragged episodes of pytrees, kept end to end in flat columns."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import jax
import numpy as np
from jax import Array

from coulda.drawing import Picture
from coulda.episodes.facts import draw_log, facts_of
from coulda.errors import CouldaError
from coulda.noise import check_key
from coulda.notebooks import facts_table
from coulda.pomdp import Episode

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Schema:
    """What is known of a log apart from its numbers."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    behavior: Literal["logged", "fitted"] = "logged"
    """Whether the probabilities come with the log or were fitted to it afterwards."""
    last_observation: Literal["logged", "repeated"] = "logged"
    """Many logs lack the observation after the last action; there the one before it is repeated."""
    observation_names: tuple[str, ...] = ()
    """What the categories of a discrete observation are called, or the numbers of a vector; nothing by default."""
    action_names: tuple[str, ...] = ()
    """The same of actions."""
    notes: tuple[str, ...] = ()
    """What was understood where a table left it open, in sentences for people."""

    @property
    def sentence(self) -> str:
        """What a log holds, in one line.

        >>> spaces = gymnasium.spaces
        >>> Schema(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), observation_names=("bp", "glucose")).sentence
        '2 actions; 2 columns of observations (bp, glucose)'
        """
        done = _called(self.action_space, self.action_names, "actions", "actions")
        seen = _called(self.observation_space, self.observation_names, "different observations", "observations")
        return "; ".join([done, seen, *self.notes])


@dataclass(frozen=True, repr=False)
class EpisodeLog(Sequence[Episode]):
    """N episodes of any lengths T_1 … T_N: a sequence of `Episode`s without padding.

    Made by the readers of this package, by `collect`, `checked_log` or `from_episodes`, all of which validate;
    never by hand. Arrays are NumPy's.
    """

    schema: Schema
    observation: Any
    """`[Σ(T_i + 1), ...]`: each episode's observations and the one after its last action."""
    action: Any
    """`[ΣT_i, ...]`."""
    reward: np.ndarray
    """`[ΣT_i]`."""
    log_prob: np.ndarray
    """log μ(a_t | h_t), `[ΣT_i]`; NaN where it is not known."""
    lengths: np.ndarray
    """`[N]`, T_i ≥ 1."""
    terminated: np.ndarray
    """`[N]`: whether the episode came to its own end, or (False) was cut off."""

    def __len__(self) -> int:
        """N."""
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        """The `Episode` at an index, `[T_i, ...]`; or the log of a slice."""
        if isinstance(index, slice):
            chosen = range(len(self))[index]
            return self._between(chosen.start, chosen.stop) if chosen.step == 1 else self.take(chosen)
        i = self._number(index)
        start, end = self.starts[i], self.starts[i] + self.lengths[i]
        observed = slice(start + i, end + i + 1)
        observation = jax.tree.map(lambda x: x[observed], self.observation)
        action = jax.tree.map(lambda x: x[start:end], self.action)
        return unpadded(observation, action, self.reward[start:end], self.log_prob[start:end])

    def _number(self, index: Any) -> int:
        """Of an episode, counted from 0 or, below it, from the end."""
        try:
            return range(len(self))[index]
        except IndexError:
            raise IndexError(f"log[{index}]: the log has {len(self):,} episodes, 0 to {len(self) - 1}") from None
        except TypeError:
            raise TypeError(f"log[{index!r}]: an episode is named by its number, or several by a slice") from None

    def _between(self, first: int, end: int) -> "EpisodeLog":
        """The log of neighbors, which share their memory with this one."""
        end = max(first, end)
        steps = slice(*(int(self.lengths[:i].sum()) for i in (first, end)))
        observed = slice(steps.start + first, steps.stop + end)
        return self._of(slice(first, end), steps, observed)

    def _of(self, episodes: Any, steps: Any, observed: Any) -> "EpisodeLog":
        """The log of these rows of its columns: of episodes, of steps, and of observations."""
        return EpisodeLog(
            self.schema,
            jax.tree.map(lambda x: x[observed], self.observation),
            jax.tree.map(lambda x: x[steps], self.action),
            self.reward[steps],
            self.log_prob[steps],
            self.lengths[episodes],
            self.terminated[episodes],
        )

    def __repr__(self) -> str:
        return f"<EpisodeLog of {len(self):,} episodes, {self.num_steps:,} steps; {self.schema.sentence}>"

    def _repr_html_(self) -> str:
        return facts_table("EpisodeLog", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """Counts, lengths, returns, ends, spaces and probabilities, each in a few words."""
        return facts_of(self.schema, [self])

    def plot(self) -> Picture:
        """How often which return, and which length; needs the extra `plots`."""
        return draw_log(self)

    def to_frame(self) -> "pd.DataFrame":
        """One row per step, with the default `Columns`; the last observation is a row of its own. Needs `tables`."""
        from coulda.episodes.tables import frame_of  # which reads logs, and so imports this file

        return frame_of(self)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each episode's steps begin, `[N]`."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def num_steps(self) -> int:
        """ΣT_i."""
        return len(self.reward)

    @property
    def max_length(self) -> int:
        """The longest episode's number of steps."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the schema and of all numbers."""
        columns = self.observation, self.action, self.reward, self.log_prob, self.lengths, self.terminated
        digest = hashlib.sha256(str(self.schema).encode())
        for column in jax.tree.leaves(columns):
            digest.update(f"{column.dtype}{column.shape}".encode() + np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    @property
    def has_probabilities(self) -> bool:
        """Whether log μ(a_t | h_t) is known at every step."""
        return not bool(np.isnan(self.log_prob).any())

    @property
    def episode_returns(self) -> np.ndarray:
        """G_i = Σ_t r_t, `[N]`."""
        return np.add.reduceat(self.reward.astype(float), self.starts) if len(self) else np.zeros(0)

    def discounted_returns(self, discount: float) -> np.ndarray:
        """G_i = Σ_t γ^t r_t, `[N]`."""
        if discount == 1 or not len(self):
            return self.episode_returns
        time = np.arange(self.num_steps) - np.repeat(self.starts, self.lengths)
        return np.add.reduceat(self.reward.astype(float) * discount**time, self.starts)

    def take(self, indices: Any) -> "EpisodeLog":
        """The log of the chosen episodes, in that order, repeats allowed."""
        i = np.asarray(indices, int)
        steps = spans(self.starts[i], self.lengths[i])
        observed = spans(self.starts[i] + i, self.lengths[i] + 1)
        return self._of(i, steps, observed)

    def padded(self, horizon: int | None = None) -> Episode:
        """All episodes as one batch for JAX, `[N, T, ...]` with T = `horizon`, the longest length by default.

        After the end the last observation and action are repeated, rewards and log-probabilities are zero and
        `live` is False.
        """
        horizon = self.max_length if horizon is None else horizon
        if horizon < self.max_length:
            longest = int(self.lengths.argmax())
            raise CouldaError(f"horizon {horizon} is shorter than episode {longest}, which has {self.max_length} steps")
        live = np.arange(horizon) < self.lengths[:, None]
        at, observed = padding(self.lengths, horizon), padding(self.lengths + 1, horizon + 1)
        columns = (
            jax.tree.map(lambda x: x[observed], self.observation),
            jax.tree.map(lambda x: x[at], self.action),
            np.where(live, self.reward[at], 0),
            live,
            np.where(live, self.log_prob[at], 0),
        )
        return Episode(*jax.device_put(columns))  # which, unlike `asarray`, compiles no program

    def sample(self, key: Array, num_episodes: int) -> "EpisodeLog":
        """A minibatch: episodes drawn uniformly with replacement. Consumes `key`."""
        check_key(key)
        return self.take(jax.random.randint(key, (num_episodes,), 0, len(self)))

    def batches(self, size: int = 4096) -> Iterator["EpisodeLog"]:
        """The log in batches of at most `size` episodes, in order."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def batch(self, index: int, size: int = 4096) -> "EpisodeLog":
        """The batch of `batches(size)` at `index`."""
        return self[index * size : (index + 1) * size]

    def batch_sizes(self, size: int = 4096) -> list[int]:
        """How many episodes each batch of `batches(size)` has."""
        return sizes_of_batches(len(self), size)

    def with_log_prob(self, log_prob: np.ndarray, behavior: Literal["logged", "fitted"]) -> "EpisodeLog":
        """The same log with other behavior log-probabilities, `[ΣT_i]`, marked as such."""
        schema = replace(self.schema, behavior=behavior)
        return replace(self, schema=schema, log_prob=np.asarray(log_prob, np.float32))


def _called(space: gymnasium.Space, names: tuple[str, ...], categories: str, numbers: str) -> str:
    """A space for people, with the first of its names."""
    shown = f" ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})" if names else ""
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"{int(space.n):,} {categories if space.n > 1 else categories[:-1]}{shown}"
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) < 2:
        count = space.shape[0] if space.shape else 1
        return f"{count} column{'s' if count > 1 else ''} of {numbers}{shown}"
    return f"{numbers} in {space}"


def unpadded(observation: Any, action: Any, reward: Any, log_prob: Any) -> Episode:
    """An episode all of whose steps are live."""
    return Episode(observation, action, reward, live=np.ones(len(reward), bool), log_prob=log_prob)  # pyright: ignore[reportArgumentType]


def concatenate(logs: Sequence[EpisodeLog]) -> EpisodeLog:
    """One log of several with the same schema."""

    def join(*columns: np.ndarray) -> np.ndarray:
        return np.concatenate(columns)

    fields = ("observation", "action", "reward", "log_prob", "lengths", "terminated")
    joined = {name: jax.tree.map(join, *(getattr(log, name) for log in logs)) for name in fields}
    return EpisodeLog(logs[0].schema, **joined)


def sizes_of_batches(count: int, size: int) -> list[int]:
    """The sizes of batches of at most `size` that hold `count` episodes.

    >>> sizes_of_batches(5, 2)
    [2, 2, 1]
    """
    return [min(size, count - start) for start in range(0, count, size)]


def padding(lengths: np.ndarray, horizon: int) -> np.ndarray:
    """Where each row of a padded column `[N, T]` is in the flat one; after the end it is the last row again.

    >>> padding(np.array([1, 2]), 3).tolist()
    [[0, 0, 0], [1, 2, 2]]
    """
    starts = np.cumsum(lengths) - lengths
    return starts[:, None] + np.minimum(np.arange(horizon), lengths[:, None] - 1)


def spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers start … start + length - 1 of each pair, end to end.

    >>> spans(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(lengths.sum())
