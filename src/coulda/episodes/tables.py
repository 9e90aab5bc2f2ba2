"""Data frames, Parquet and CSV: one row per step, with a mapping of columns. Needs the extra `tables`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from coulda.episodes.arrays import guess_space, repeat_last
from coulda.episodes.log import EpisodeLog, Schema
from coulda.episodes.validation import (
    Source,
    checked_log,
    log_of_probability,
    refuse_probabilities,
    taken_probability,
)
from coulda.errors import CouldaError
from coulda.extras import require
from coulda.policies import LoggedPolicy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Columns:
    """Which column of a table holds what. A name `x` stands for the column x, or for x_0, x_1, … together."""

    episode: str = "episode"
    """Any label; rows with the same one are an episode."""
    step: str = "step"
    """0, 1, 2, … within an episode, in any order of rows."""
    observation: str = "observation"
    action: str = "action"
    reward: str = "reward"
    probability: str = "probability"
    """The probability of the action taken; or, as probability_0, probability_1, …, of each. May be absent or empty."""
    terminated: str = "terminated"
    """Whether the episode ended with this step. Where there is no such column, every episode came to its end."""
    truncated: str = "truncated"
    """Whether the episode was cut off after this step. May be absent."""


def from_frame(
    frame: "pd.DataFrame",
    columns: Columns | None = None,
    *,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    file: str | Path = "data frame",
) -> EpisodeLog:
    """A log of a data frame, one row per step.

    The observation after the last action is a row of its own, with action and reward empty. Where no episode
    has such a row, the observation before it is repeated, and the schema says so. Spaces that are not given
    are guessed: integers from 0 are `Discrete(max + 1)`, other numbers an unbounded `Box`.
    """
    columns = Columns() if columns is None else columns
    rows, source = _ordered(frame, columns, Source(file))
    counts, is_last, keep = _steps_of(rows, columns, source)
    lengths = counts - is_last
    steps = {name: column[keep] for name, column in rows.items()}
    observation = _values(rows["observation"], columns.observation, counts, source)
    action = _values(steps["action"], columns.action, lengths, source)
    action = _integers(action) if is_last.any() else action
    reward = _values(steps["reward"], columns.reward, lengths, source)
    schema = Schema(
        guess_space(observation) if observation_space is None else observation_space,
        guess_space(action) if action_space is None else action_space,
        last_observation="logged" if is_last.any() else "repeated",
    )
    return checked_log(
        schema,
        observation if is_last.any() else observation[repeat_last(lengths)],
        action,
        reward,
        lengths,
        _terminated(steps, columns, lengths, source),
        _log_prob(steps, action, lengths, source),
        source,
    )


def policy_in_frame(
    frame: "pd.DataFrame", name: str, columns: Columns | None = None, *, file: str | Path = "data frame"
) -> LoggedPolicy:
    """The policy whose probabilities somebody else put into a column of the log's own table.

    The column `name` is the probability (of continuous actions the density) of the action taken; name_0, name_1, …
    are those of each action. A row that only holds the last observation has them for every action, or none.
    """
    columns = replace(Columns() if columns is None else columns, probability=name)
    rows, source = _ordered(frame, columns, Source(file))
    if "probability" not in rows:
        source.refuse(f"no such column; the table has {list(frame.columns)}", field=name)
    counts, is_last, keep = _steps_of(rows, columns, source)
    lengths, part = counts - is_last, rows["probability"]
    found = np.stack([part[column].to_numpy(dtype=float, na_value=np.nan) for column in part.columns], 1)
    steps = {"action": rows["action"][keep], "probability": found[keep]}
    refuse_probabilities(steps["probability"], name, lengths, source)
    if found.shape[1] == 1:
        return LoggedPolicy(_logarithm(found[keep][:, 0]))
    action = _integers(_values(steps["action"], columns.action, lengths, source))
    taken = taken_probability(steps["probability"], action, lengths, source)
    whole = np.full((int((lengths + 1).sum()), found.shape[1]), np.nan)
    last = np.cumsum(lengths + 1) - 1
    whole[np.delete(np.arange(len(whole)), last)] = found[keep]
    whole[last[is_last]] = found[~keep]
    return LoggedPolicy(_logarithm(taken), whole.astype(np.float32))


def policy_in_table(path: Path | str, name: str, columns: Columns | None = None) -> LoggedPolicy:
    """The policy in a column of a `.parquet` or `.csv` file; see `policy_in_frame`."""
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise CouldaError(f"column:{name} is a column of a table, .parquet or .csv; the log is {path.name}")
    return policy_in_frame(_read_frame(path), name, columns, file=path)


def to_frame(log: EpisodeLog) -> "pd.DataFrame":
    """The log as a data frame with the default `Columns`; the last observation is a row of its own."""
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
    data |= _split("observation", log.observation)
    per_step = _split("action", log.action) | {
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


def read_table(path: Path | str, columns: Columns | None = None, **spaces: Any) -> EpisodeLog:
    """A log of a `.parquet` or `.csv` file; see `from_frame`."""
    return from_frame(_read_frame(Path(path)), columns, file=path, **spaces)


def _read_frame(path: Path) -> "pd.DataFrame":
    pandas = require("pandas", extra="tables")
    try:
        if path.suffix == ".parquet":
            return pandas.read_parquet(path, dtype_backend="numpy_nullable")
        return pandas.read_csv(path, dtype_backend="numpy_nullable")
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        Source(path).refuse(f"cannot be read as a {path.suffix[1:]} table: {error}")


def write_table(path: Path | str, log: EpisodeLog) -> None:
    """Write `to_frame(log)` as `.parquet` or `.csv`."""
    path, frame = Path(path), to_frame(log)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def _ordered(frame: Any, columns: Columns, source: Source) -> tuple[dict[str, Any], Source]:
    """The mapped columns with rows ordered by episode and step, episodes as 0, 1, …, and their labels' source."""
    pandas = require("pandas", extra="tables")
    optional = {"probability", "terminated", "truncated"}
    found = {name: _resolve(frame, getattr(columns, name)) for name in Columns.__dataclass_fields__}
    for name, names in found.items():
        if not names and name not in optional:
            expected, have = getattr(columns, name), list(frame.columns)
            source.refuse(f"no such column; the table has {have}. Map it with Columns({name}=…)", field=expected)
    if len(frame) == 0:
        source.refuse("the table has no rows")
    parts = {name: frame[names] for name, names in found.items() if names}
    codes, labels = pandas.factorize(parts["episode"].iloc[:, 0])
    if (codes < 0).any():
        source.refuse(f"row {int((codes < 0).argmax())} has no episode", field=columns.episode)
    source = Source(source.file, labels)
    step = _step_numbers(parts["step"].iloc[:, 0], codes, columns, source)
    order = np.lexsort((step, codes))
    codes, step = codes[order], step[order]
    counts = np.bincount(codes)
    expected = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    if (step != expected).any():
        row = int((step != expected).argmax())
        what = "is there twice" if step[row] < expected[row] else f"is missing; the next one is {step[row]}"
        at = step[row] if step[row] < expected[row] else expected[row]
        source.refuse(f"step {at} {what}", int(codes[row]), int(at), columns.step)
    rows = {name: part.iloc[order] for name, part in parts.items() if name not in ("episode", "step")}
    return rows | {"episode": codes}, source


def _resolve(frame: Any, name: str) -> list[str]:
    """The column `name`, or name_0, name_1, … in order."""
    if name in frame.columns:
        return [name]
    numbered = []
    while f"{name}_{len(numbered)}" in frame.columns:
        numbered.append(f"{name}_{len(numbered)}")
    return numbered


def _step_numbers(step: Any, codes: np.ndarray, columns: Columns, source: Source) -> np.ndarray:
    pandas = require("pandas", extra="tables")
    numbers = pandas.to_numeric(step, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = ~(numbers == np.floor(numbers)) | (numbers < 0)
    if bad.any():
        row = int(bad.argmax())
        source.refuse(f"{step.iloc[row]} is not a step number 0, 1, 2, …", int(codes[row]), field=columns.step)
    return numbers.astype(int)


def _steps_of(rows: dict[str, Any], columns: Columns, source: Source) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows per episode, whether its last only holds the last observation, and which rows are steps."""
    counts = np.bincount(rows["episode"])
    is_last = _closing_rows(rows, counts, columns, source)
    keep = np.ones(len(rows["episode"]), bool)
    keep[np.cumsum(counts)[is_last] - 1] = False
    return counts, is_last, keep


def _closing_rows(rows: dict[str, Any], counts: np.ndarray, columns: Columns, source: Source) -> np.ndarray:
    """For each episode, whether its last row only holds the last observation."""
    last = np.cumsum(counts) - 1
    no_action, no_reward = (rows[name].isna().to_numpy().all(1)[last] for name in ("action", "reward"))
    empty = no_action & no_reward
    if empty.any() and not empty.all():
        episode = int((~empty).argmax())
        source.refuse(
            "has no row for the observation after its last action, but other episodes do",
            episode,
            int(counts[episode]),
            columns.observation,
        )
    for episode in np.flatnonzero(counts - empty < 1)[:1]:
        source.refuse("the episode has no steps; drop it", int(episode))
    return empty


def _values(part: Any, field: str, lengths: np.ndarray, source: Source) -> np.ndarray:
    """One column as `[n]`, or several as `[n, k]`; none may be missing."""
    missing = part.isna().to_numpy().any(1)
    if missing.any():
        row = int(missing.argmax())
        episode = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
        source.refuse("is missing", episode, row - int(lengths[:episode].sum()), field)
    arrays = [part[name].infer_objects().to_numpy() for name in part.columns]
    arrays = [np.stack(list(x)) if x.dtype == object and isinstance(x[0], list | np.ndarray) else x for x in arrays]
    for array in arrays:
        if array.dtype.kind not in "biuf":
            source.refuse(f"'{array[0]}' is not a number", field=field)
    return arrays[0] if len(arrays) == 1 else np.stack(arrays, 1)


def _integers(values: np.ndarray) -> np.ndarray:
    """Undo what empty places do to a column of integers: they turn it into floats."""
    whole = values.dtype.kind == "f" and (np.isfinite(values) & (values == np.round(values))).all()
    return values.astype(np.int64) if whole else values


def _logarithm(probability: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probability).astype(np.float32)


def _log_prob(steps: dict[str, Any], action: np.ndarray, lengths: np.ndarray, source: Source) -> Any:
    if "probability" not in steps or steps["probability"].isna().to_numpy().all():
        return None
    part = steps["probability"]
    values = np.stack([part[name].to_numpy(dtype=float, na_value=np.nan) for name in part.columns], 1)
    taken = values[:, 0] if values.shape[1] == 1 else taken_probability(values, action, lengths, source)
    return log_of_probability(taken, lengths, source)


def _terminated(steps: dict[str, Any], columns: Columns, lengths: np.ndarray, source: Source) -> np.ndarray:
    """Whether each episode came to its own end. Without flags all did; one kind of flag tells the other."""
    flags = {
        name: _values(steps[name], getattr(columns, name), lengths, source) != 0
        for name in ("terminated", "truncated")
        if name in steps
    }
    if not flags:
        return np.ones(len(lengths), bool)
    ends, last = np.logical_or.reduce(list(flags.values())), np.cumsum(lengths) - 1
    early = ends.copy()
    early[last] = False
    for row in np.flatnonzero(early)[:1]:
        episode = int(np.searchsorted(last, row))
        step = int(row - lengths[:episode].sum())
        source.refuse("is set, but the episode goes on", episode, step, columns.terminated)
    if len(flags) == 1:
        return ends[last] if "terminated" in flags else ~ends[last]
    for episode in np.flatnonzero(~ends[last])[:1]:
        text = "the last step is neither terminated nor truncated; flag how the episode ended"
        source.refuse(text, int(episode), int(lengths[episode]) - 1, columns.terminated)
    return flags["terminated"][last]


def _split(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if values.ndim == 1:
        return {name: values}
    return {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
