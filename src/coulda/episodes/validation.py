"""The door: what is not a proper log is refused, with the file, the episode, the step and the field."""

import io
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from gymnasium import spaces

from coulda.episodes.log import EpisodeLog, Schema
from coulda.episodes.spaces import leaf, named_leaves, space_tree
from coulda.errors import CouldaError
from coulda.pomdp import Episode


class LogError(CouldaError):
    """A log was refused; the message says where, what was found, and the fix."""

    def __init__(
        self,
        problem: str,
        *,
        file: Any,
        row: int | None = None,
        episode: Any = None,
        step: int | None = None,
        field: str | None = None,
    ):
        self.file, self.row, self.episode, self.step, self.field = str(file), row, episode, step, field
        places = [
            self.file,
            None if row is None else f"row {row}",
            None if episode is None else f"episode {episode}",
            None if step is None else f"step {step}",
            None if field is None else f"field '{field}'",
        ]
        super().__init__(f"{', '.join(place for place in places if place)}: {problem}")


@dataclass(frozen=True)
class Source:
    """Where numbers come from, so that an error can say so."""

    file: str | Path = "memory"
    labels: Sequence[Any] | np.ndarray | None = None
    """The episodes' own names; their places in the log by default."""

    def refuse(
        self, problem: str, episode: int | None = None, step: int | None = None, field: str | None = None
    ) -> NoReturn:
        """Raise a `LogError`."""
        name = episode if episode is None or self.labels is None else self.labels[episode]
        raise LogError(problem, file=self.file, episode=name, step=step, field=field)


def checked_log(
    schema: Schema,
    observation: Any,
    action: Any,
    reward: Any,
    lengths: Any,
    terminated: Any,
    log_prob: Any = None,
    source: Source | None = None,
) -> EpisodeLog:
    """An `EpisodeLog` of flat columns (see its fields), after everything about them was found right."""
    source = Source() if source is None else source
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        source.refuse(f"expected whole numbers, got {lengths.dtype}{list(lengths.shape)}", field="lengths")
    lengths = lengths.astype(int)
    for empty in np.flatnonzero(lengths < 1)[:1]:
        source.refuse("the episode has no steps; drop it", episode=int(empty))
    steps = int(lengths.sum())
    log_prob = np.full(steps, np.nan, np.float32) if log_prob is None else np.asarray(log_prob)
    reward, terminated = np.asarray(reward), np.asarray(terminated)
    if terminated.shape != lengths.shape or terminated.dtype != bool:
        source.refuse(
            f"expected bool[{len(lengths)}], one flag per episode, got {terminated.dtype}{list(terminated.shape)}",
            field="terminated",
        )
    log = EpisodeLog(
        schema,
        _column(schema.observation_space, "observation", observation, lengths + 1, source),
        _column(schema.action_space, "action", action, lengths, source),
        _column(_NUMBER, "reward", reward, lengths, source),
        _column(_ANY_NUMBER, "log_prob", log_prob, lengths, source),
        lengths.astype(np.int32),
        terminated,
    )
    _check_probabilities(log, source)
    return log


def from_episodes(schema: Schema, episodes: Iterable[Episode], terminated: Any, source: Source | None = None):
    """An `EpisodeLog` of single unpadded episodes, `[T_i, ...]` each with `[T_i + 1, ...]` observations."""
    source = Source() if source is None else source
    episodes = list(episodes)
    lengths = np.array([np.shape(episode.reward)[0] for episode in episodes], int)
    for i, (episode, length) in enumerate(zip(episodes, lengths, strict=True)):
        _check_shapes(schema.observation_space, "observation", episode.observation, length + 1, source, i)
        _check_shapes(schema.action_space, "action", episode.action, length, source, i)
        _check_shapes(_NUMBER, "reward", episode.reward, length, source, i)
        _check_shapes(_ANY_NUMBER, "log_prob", episode.log_prob, length, source, i)

    def join(field: str) -> Any:
        columns = [getattr(episode, field) for episode in episodes]
        return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *columns)

    columns = {field: join(field) for field in ("observation", "action", "reward", "log_prob")}
    return checked_log(schema, lengths=lengths, terminated=terminated, source=source, **columns)


def taken_probability(probabilities: np.ndarray, action: np.ndarray, lengths: Any, source: Source) -> np.ndarray:
    """π(a_t) out of whole distributions `[ΣT_i, K]` over discrete actions, each of which must sum to 1."""
    bad = ~(np.abs(probabilities.sum(-1) - 1) < 1e-4) | (probabilities < 0).any(-1)
    _refuse_first(
        bad,
        np.asarray(lengths),
        lambda i: f"{probabilities[i].tolist()} is not a distribution; it must be ≥ 0 and sum to 1",
        "probability",
        source,
    )
    inside = (action >= 0) & (action < probabilities.shape[1])
    text = f"there are only {probabilities.shape[1]} probabilities"
    _refuse_first(~inside, np.asarray(lengths), lambda i: f"action {action[i]}, but {text}", "action", source)
    return np.take_along_axis(probabilities, action[:, None].astype(int), 1)[:, 0]


def refuse_probabilities(probabilities: np.ndarray, field: str, lengths: Any, source: Source) -> None:
    """Refuse what no policy can have said of a step, `[ΣT_i, K]`: it may be 0, but neither missing nor below."""
    _refuse_first(
        ~(np.isfinite(probabilities) & (probabilities >= 0)).all(-1),
        np.asarray(lengths),
        lambda i: f"{_show(probabilities[i])} is missing, infinite or below 0; give a probability at every step",
        field,
        source,
    )


def log_of_probability(probability: Any, lengths: Any, source: Source) -> np.ndarray:
    """Log μ(a_t | h_t); a probability that the behavior policy could not have had is refused."""
    probability = np.asarray(probability, np.float64)
    text = "the action was taken, so its probability is > 0; leave it missing where it is not known"
    _refuse_first(
        probability <= 0, np.asarray(lengths), lambda i: f"is {probability[i]}; {text}", "probability", source
    )
    text = "so little that no weight can be made of it; leave it missing where it is not known"
    least = float(np.finfo(np.float32).tiny)
    _refuse_first(
        probability < least, np.asarray(lengths), lambda i: f"is {probability[i]}, {text}", "probability", source
    )
    return np.log(probability).astype(np.float32)


_NUMBER = spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, ())
_ANY_NUMBER = spaces.Box(-np.inf, np.inf, ())


def _column(space: Any, field: str, column: Any, lengths: np.ndarray, source: Source) -> Any:
    """The column as arrays of the space's dtypes, after structure, shapes, dtypes and values were checked."""
    _check_shapes(space, field, column, int(lengths.sum()), source)
    tree, structure = space_tree(space), jax.tree.structure(space_tree(space))
    checked = [
        _check_values(name, leaf(part), np.asarray(array), lengths, source)
        for (name, part), array in zip(named_leaves(space, field), structure.flatten_up_to(column), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), checked)


def _check_shapes(space: Any, field: str, column: Any, length: int, source: Source, episode: int | None = None) -> None:
    structure = jax.tree.structure(space_tree(space))
    if (found := jax.tree.structure(column)) != structure:
        source.refuse(f"expected the structure {structure} of {space}, got {found}", episode, field=field)
    for (name, part), array in zip(named_leaves(space, field), jax.tree.leaves(column), strict=True):
        expected, array = leaf(part), np.asarray(array)
        if array.shape != (length, *expected.shape):
            wanted = [int(length), *expected.shape]
            source.refuse(f"expected shape {wanted}, got {list(array.shape)}", episode, field=name)
        if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, expected.dtype, "same_kind"):
            source.refuse(f"expected {expected.dtype}, got {array.dtype}", episode, field=name)


def _check_values(field: str, part: Any, array: np.ndarray, lengths: np.ndarray, source: Source) -> np.ndarray:
    rest = tuple(range(1, array.ndim))
    if array.dtype.kind == "f":
        wrong = np.isposinf(array) if field == "log_prob" else np.isnan(array)
        if field.startswith("observation"):  # what is missing in an observation is NaN, and says nothing
            wrong = np.zeros_like(wrong)
        text = "is not a number"
        _refuse_first(wrong.any(rest), lengths, lambda i: f"{_show(array[i])} {text}", field, source)
    # Missing log-probabilities are NaN, for which both comparisons are False.
    outside = np.asarray((array < part.low) | (array > part.high)).any(rest)
    bounds = f"{_show(part.low)} … {_show(part.high)}"
    _refuse_first(outside, lengths, lambda i: f"{_show(array[i])} is outside {bounds}", field, source)
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, part.dtype)
    if found.dtype.kind == "f":
        lost = np.isinf(found) & np.isfinite(array) if array.dtype.kind == "f" else found.astype(float) != array
        text = f"is not held by {found.dtype}; subtract an offset, or divide it"
        _refuse_first(np.asarray(lost).any(rest), lengths, lambda i: f"{_show(array[i])} {text}", field, source)
    return found


def _check_probabilities(log: EpisodeLog, source: Source) -> None:
    discrete = isinstance(log.schema.action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    # A density may be larger than 1; a float32 logarithm of 1 may be one rounding above 0.
    bad = np.isneginf(log.log_prob) | ((log.log_prob > 2e-7) & discrete)
    text = "the behavior probability of an action that was taken is in (0, 1]"
    _refuse_first(bad, log.lengths, lambda i: f"log-probability {log.log_prob[i]}; {text}", "probability", source)


def _refuse_first(bad: Any, lengths: np.ndarray, problem: Any, field: str, source: Source) -> None:
    """Refuse at the first step that is bad, if one is."""
    if not bad.any():
        return
    index = int(bad.argmax())
    ends = np.cumsum(lengths)
    episode = int(np.searchsorted(ends, index, side="right"))
    source.refuse(problem(index), episode, index - int(ends[episode] - lengths[episode]), field)


def _show(value: Any) -> str:
    value = np.asarray(value)
    if value.size > 8:
        return f"a value between {value.min()} and {value.max()}"
    return str(value.tolist())


# What files say of their own size, held against what they are, before anything is read.

MOST_TIMES, SMALL = 1100, 2**28
"""Deflate makes at most 1032 bytes of one: a file that promises more is none; below 256 MB nobody is hurt."""


def check_regular(path: Path) -> None:
    """Refuse what is no plain file: a pipe would be waited for without end."""
    if not path.is_file():
        raise LogError("is no regular file", file=path)


def check_promise(promised: int, size: int, source: Source, field: str | None = None) -> None:
    """Refuse a file of `size` bytes that says that it holds `promised` ones."""
    if promised > max(SMALL, MOST_TIMES * size):
        source.refuse(f"{size:,} bytes are said to hold {promised:,}; it is damaged, or made to harm", field=field)


def check_npz(data: bytes, source: Source) -> None:
    """Refuse arrays whose headers do not fit what is stored, and archives that grow without measure."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            names = [info.filename for info in infos]
            for name in {name for name in names if names.count(name) > 1}:
                source.refuse("is there twice", field=name)
            # Stored bytes are as many as they are; what is compressed may be a bomb.
            check_promise(sum(info.file_size for info in infos), len(data), source)
            for info in infos:
                with archive.open(info) as file:
                    promised = _promised(file)
                if promised != info.file_size:
                    source.refuse(
                        f"its header is of {promised:,} bytes, the file of {info.file_size:,}", field=info.filename
                    )
    except LogError:
        raise
    except (ValueError, EOFError, OSError, KeyError, NotImplementedError, RuntimeError, zipfile.BadZipFile) as error:
        source.refuse(f"not an npz of plain arrays: {error}")


def _promised(file: Any) -> int:
    """Bytes of an npy file, by its header."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("object arrays are pickled")
    count = 1
    for size in shape:
        count *= int(size)
    return file.tell() + count * dtype.itemsize
