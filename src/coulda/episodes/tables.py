"""Data frames, Parquet and CSV: one row per step, with a mapping of columns. Needs the extra `tables`."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from coulda.episodes.arrays import repeat_last
from coulda.episodes.cells import Cells, Understood, as_action, as_flags, as_numbers, as_observation
from coulda.episodes.log import EpisodeLog, Schema
from coulda.episodes.rows import NAMES, Columns, Part, Place, Rows, check_header, ordered
from coulda.episodes.validation import (
    LogError,
    Source,
    check_promise,
    check_regular,
    checked_log,
    log_of_probability,
    taken_probability,
)
from coulda.errors import CouldaError
from coulda.extras import require
from coulda.storage import replace_file

if TYPE_CHECKING:
    import pandas as pd


ROWS = "rows_in_file"
"""The column of a CSV that says how many rows it has."""


def from_frame(
    frame: "pd.DataFrame",
    columns: Columns | None = None,
    *,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    file: str | Path = "data frame",
) -> EpisodeLog:
    """A log of a data frame, one row per step.

    The observation after the last action is a row of its own, with action and reward empty. Where no episode has such a
    row, the observation before it is repeated, and the schema says so. Spaces that are not given are understood from
    the columns, see `coulda.episodes.cells`; the schema has the names of columns and categories, and notes of what was
    not plain.
    """
    place = Place([(file, len(frame))])
    return _understood(frame, place, Columns() if columns is None else columns, observation_space, action_space)


def _understood(
    frame: Any,
    place: Place,
    columns: Columns,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
) -> EpisodeLog:
    parts, rows = ordered(frame, columns, place)
    lengths, is_last, keep = steps_of(parts, columns, rows)
    steps = {name: part.taken(keep) for name, part in parts.items()}
    alone = {name: list(parts[name].frame.columns) == list(getattr(columns, name)[:1]) for name in NAMES[:2]}
    context = _context(parts.get("context"), rows)
    seen = as_observation([*parts["observation"].cells, *context], alone["observation"] and not context)
    done = actions_of(steps["action"], columns, bool(is_last.any()), alone["action"])
    reward = as_numbers(steps["reward"].cells[0], steps["reward"].refuse(columns.reward))
    terminated, ends = _terminated(steps, columns, lengths, rows)
    schema = Schema(
        observation_space or seen.space,
        action_space or done.space,
        last_observation="logged" if is_last.any() else "repeated",
        observation_names=_fitting(seen, observation_space),
        action_names=_fitting(done, action_space),
        notes=(*seen.notes, *done.notes, ends),
    )
    observation = seen.values if is_last.any() else seen.values[repeat_last(lengths)]
    log_prob = _log_prob(steps, done.values, lengths, rows)
    return checked_log(schema, observation, done.values, reward, lengths, terminated, log_prob, rows)


def frame_of(log: EpisodeLog) -> "pd.DataFrame":
    """What `EpisodeLog.to_frame` gives."""
    pandas = require("pandas", extra="tables")
    if not isinstance(log.observation, np.ndarray) or not isinstance(log.action, np.ndarray):
        raise CouldaError("a table holds one array of observations and one of actions, not trees; use write_log")
    if log.observation.ndim > 2 or log.action.ndim > 2:
        raise CouldaError(f"a table has no room for observations {log.observation.shape[1:]}; use write_log")
    counts = log.lengths + 1
    last = np.cumsum(counts) - 1
    keep = np.ones(int(counts.sum()), bool)
    keep[last] = False
    step = np.arange(len(keep)) - np.repeat(last - log.lengths, counts)
    ends = np.zeros(log.num_steps, bool)
    ends[np.cumsum(log.lengths) - 1] = True
    terminated = np.repeat(log.terminated, log.lengths)
    data = {"episode": np.repeat(np.arange(len(log)), counts), "step": step}
    data |= _split("observation", log.observation, log.schema.observation_names)
    per_step = _split("action", log.action, log.schema.action_names) | {
        "reward": log.reward,
        "probability": np.exp(log.log_prob.astype(float)),
        "terminated": ends & terminated,
        "truncated": ends & ~terminated,
    }
    frame = pandas.DataFrame(data)
    index = np.flatnonzero(keep)
    for name, values in per_step.items():
        # Nullable types, so that an integer column with empty places stays one.
        frame[name] = pandas.Series(pandas.array(values), index=index)
    return frame


def read_table(path: Path | str | Sequence[Path], columns: Columns | None = None, **spaces: Any) -> EpisodeLog:
    """A log of a `.parquet` or `.csv` file, or of several, each with whole episodes of its own; see `from_frame`."""
    return _understood(*read_frame(path), columns=Columns() if columns is None else columns, **spaces)


def read_frame(path: Path | str | Sequence[Path]) -> tuple[Any, Place]:
    """The data frame of one file or of several, and where its rows are from."""
    pandas = require("pandas", extra="tables")
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    frames = [_read(one) for one in paths]
    for one, frame in zip(paths, frames, strict=True):
        if list(frame.columns) != list(frames[0].columns):
            raise LogError(f"has the columns {list(frame.columns)}, {paths[0]} has {list(frames[0].columns)}", file=one)
    whole = frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)
    return whole, Place([(one, len(frame)) for one, frame in zip(paths, frames, strict=True)])


def write_table(path: Path | str, log: EpisodeLog) -> None:
    """Write `log.to_frame()` as `.parquet` or `.csv`; it appears whole, or not at all.

    A CSV can be cut anywhere and still be one: it has a column more, `rows_in_file`, whose one cell says how many.
    """
    pandas = require("pandas", extra="tables")
    path, frame, file = Path(path), frame_of(log), io.BytesIO()
    if path.suffix == ".parquet":
        frame.to_parquet(file, index=False)
    else:
        frame[ROWS] = pandas.array([len(frame), *[None] * (len(frame) - 1)], dtype="Int64")
        frame.to_csv(file, index=False)
    replace_file(path, file.getvalue())


def _read(path: Path) -> Any:
    """The data frame of one file, whose columns all have names of their own."""
    pandas, source = require("pandas", extra="tables"), Source(path)
    check_regular(path)
    try:
        if path.suffix == ".parquet":
            about = require("pyarrow.parquet", extra="tables").ParquetFile(path)
            check_promise(8 * about.metadata.num_rows * about.metadata.num_columns, path.stat().st_size, source)
            check_header(about.schema_arrow.names, source)
            # Without pandas' own notes, which may make an index of a column, or be damaged.
            return about.read().replace_schema_metadata().to_pandas(types_mapper=_nullable().get)
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    source.refuse(f"line {number} has a null byte; the file is damaged, or no text")
            file.seek(0)
            check_header(next(csv.reader(file), []), source)
        return _whole(path, pandas.read_csv(path, dtype_backend="numpy_nullable"), source)
    except LogError:
        raise
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError, csv.Error) as error:
        source.refuse(f"cannot be read as a {path.suffix[1:]} table: {error}")


def _whole(path: Path, frame: Any, source: Source) -> Any:
    """The frame, where it has as many rows as it says to have; most tables do not say."""
    if ROWS not in frame.columns:
        return frame
    told, count = frame[ROWS].dropna().tolist(), len(frame)
    fix = f"it was cut, or rows were taken out; where that was meant, remove the column '{ROWS}'"
    if told != [count]:
        source.refuse(f"has {count} rows and says {', '.join(map(str, told[:2])) or 'nothing'}: {fix}", field=ROWS)
    with path.open("rb") as file:
        file.seek(-1, 2)
        if file.read() != b"\n":
            source.refuse(f"its last line does not end: {fix}", field=ROWS)
    return frame.drop(columns=ROWS)


def _nullable() -> dict[Any, Any]:
    """Types of pandas for those of Arrow, each with a place for what is missing."""
    arrow, pandas = require("pyarrow", extra="tables"), require("pandas", extra="tables")
    names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    kinds = {name: name.replace("uint", "UInt").replace("int", "Int") for name in names}
    kinds |= {"float32": "Float32", "float64": "Float64", "bool_": "Boolean", "string": "String"}
    kinds |= {"large_string": "String"}
    return {getattr(arrow, name)(): getattr(pandas, f"{kind}Dtype")() for name, kind in kinds.items()}


def steps_of(parts: dict[str, Part], columns: Columns, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of each episode, whether its last row only holds the last observation, and which rows are steps."""
    counts = np.bincount(rows.episode)
    is_last = _closing_rows(parts, counts, columns, rows)
    keep = np.ones(len(rows.episode), bool)
    keep[np.cumsum(counts)[is_last] - 1] = False
    return counts - is_last, is_last, keep


def actions_of(part: Part, columns: Columns, closing: bool, alone: bool) -> Understood:
    """Actions of the steps; `closing` is whether rows were left out that hold an observation alone."""
    return as_action(_actions(part, closing), alone, part.refuse(columns.action[0]))


def _closing_rows(parts: dict[str, Part], counts: np.ndarray, columns: Columns, rows: Rows) -> np.ndarray:
    """For each episode, whether its last row only holds the last observation."""
    last = np.cumsum(counts) - 1
    no_action, no_reward = (parts[name].frame.isna().to_numpy().all(1)[last] for name in ("action", "reward"))
    empty = no_action & no_reward
    if empty.any() and not empty.all():
        episode = int((~empty).argmax())
        problem = "has no row for the observation after its last action, but other episodes do"
        rows.refuse(problem, episode, int(counts[episode]), columns.observation[0])
    for episode in np.flatnonzero(counts - empty < 1)[:1]:
        rows.refuse("the episode has no steps; drop it", int(episode))
    return empty


def _context(part: Part | None, rows: Rows) -> list[Cells]:
    """Columns that are the same in all rows of an episode, of which some may be empty."""
    found = []
    for one in [] if part is None else part.cells:
        assert part is not None
        values, missing = one.values, one.missing
        first = np.full(rows.episode.max() + 1, -1)
        known = np.flatnonzero(~missing)[::-1]
        first[rows.episode[known]] = known
        source = first[rows.episode]
        for row in np.flatnonzero(~missing & (values != values[source]))[:1]:
            text = "changes within the episode; it is no context, name it with the observation"
            part.refuse(one.name)(int(row), text)
        found.append(replace(one, values=np.where(source < 0, values, values[source]), missing=source < 0))
    return found


def _actions(part: Part, closing: bool) -> list[Cells]:
    """Cells of actions; of a column of floats that has them only because closing rows are empty, the integers."""
    found = part.cells
    plain = closing and all(part.frame[one.name].dtype == np.float64 for one in found)
    whole = lambda one: one.kind == "number" and np.array_equal(one.values, np.round(one.values))
    if plain and all(whole(one) for one in found):
        found = [replace(one, kind="integer", values=one.values.astype(np.int64)) for one in found]
    return found


def _fitting(found: Understood, space: gymnasium.Space | None) -> tuple[str, ...]:
    """The names, where a space that is given has room for them."""
    count = len(found.names)
    prefix = found.names[0].removesuffix("_0") if found.names else ""
    if not hasattr(found.space, "n") and found.names == tuple(f"{prefix}_{i}" for i in range(count)):
        return ()  # x_0, x_1, … are numbers, and no names
    fits = space is None or getattr(space, "n", None) == count or space.shape == (count,)
    return found.names if fits else ()


def _log_prob(steps: dict[str, Part], action: np.ndarray, lengths: np.ndarray, rows: Rows) -> Any:
    if "probability" not in steps or steps["probability"].frame.isna().to_numpy().all():
        return None
    part = steps["probability"]
    for one in part.cells:
        if one.kind == "text":
            part.refuse(one.name)(0, f"'{one.labels[int(one.values[0])]}' is not a probability")
    values = np.concatenate([one.numbers[0] for one in part.cells], 1).astype(float)
    taken = values[:, 0] if values.shape[1] == 1 else taken_probability(values, action, lengths, rows)
    return log_of_probability(taken, lengths, rows)


def _terminated(steps: dict[str, Part], columns: Columns, lengths: np.ndarray, rows: Rows) -> tuple[np.ndarray, str]:
    """Whether each episode came to its own end, and how that is known. One kind of flag tells the other."""
    flags = {
        name: as_flags(steps[name].cells[0], steps[name].refuse(getattr(columns, name)))
        for name in ("terminated", "truncated")
        if name in steps
    }
    if not flags:
        return np.ones(len(lengths), bool), "ends: by length, as no column flags them; every episode came to its end"
    told = f"ends: by {' and '.join(getattr(columns, name) for name in flags)}"
    ends, last = np.logical_or.reduce(list(flags.values())), np.cumsum(lengths) - 1
    early = ends.copy()
    early[last] = False
    for row in np.flatnonzero(early)[:1]:
        episode = int(np.searchsorted(last, row))
        step = int(row - lengths[:episode].sum())
        rows.refuse("is set, but the episode goes on", episode, step, columns.terminated)
    if len(flags) == 1:
        return (ends[last] if "terminated" in flags else ~ends[last]), told
    for episode in np.flatnonzero(~ends[last])[:1]:
        text = "the last step is neither terminated nor truncated; flag how the episode ended"
        rows.refuse(text, int(episode), int(lengths[episode]) - 1, columns.terminated)
    return flags["terminated"][last], told


def _split(name: str, values: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    """A column of a discrete field, with its labels where it has some; or one per number of a vector."""
    if values.ndim == 1:
        return {name: np.asarray(names, object)[values] if names else values}
    return {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
