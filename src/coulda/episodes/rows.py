"""A table's rows as episodes and steps: which column holds what, their order, and the place of each for errors."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from coulda.episodes.cells import Cells, cells
from coulda.episodes.validation import LogError, Source
from coulda.extras import require

NAMES = ("observation", "action", "context")
"""Fields that several columns may make."""
MOST_COLUMNS = 2**14


@dataclass(frozen=True)
class Columns:
    """Which column of a table holds what. A name `x` stands for the column x, or for x_0, x_1, … together."""

    episode: str = "episode"
    """Any label; rows with the same one are an episode."""
    step: str = "step"
    """0, 1, 2, … within an episode, in any order of rows."""
    observation: tuple[str, ...] = ("observation",)
    """One column or several: numbers, or categories as text. Several are one vector, with their names."""
    action: tuple[str, ...] = ("action",)
    """Choices, as text or numbered from 0; or numbers."""
    reward: str = "reward"
    context: tuple[str, ...] = ()
    """Columns that stay what they are within an episode, such as an age; they are part of every observation, and may be
    empty in all rows of an episode but one."""
    probability: str = "probability"
    """The probability of the action taken; or, as probability_0, probability_1, …, of each. May be absent or empty."""
    terminated: str = "terminated"
    """Whether the episode ended with this step. Where there is no such column, every episode came to its end."""
    truncated: str = "truncated"
    """Whether the episode was cut off after this step. May be absent."""

    def __post_init__(self) -> None:
        for name in NAMES:
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, (given,))
            else:
                object.__setattr__(self, name, tuple(given))


class Place:
    """Which file each row of a table is from, and which row of it, counted from 1."""

    def __init__(self, files: Sequence[tuple[Any, int]], order: np.ndarray | None = None):
        """Of files with their numbers of rows, end to end; `order` is that of the rows now."""
        self.files = files
        counts = [count for _, count in files]
        self.number = np.repeat(np.arange(len(files)), counts)
        self.row = np.concatenate([np.arange(1, count + 1) for count in counts] or [np.zeros(0, int)])
        self.order = np.arange(len(self.row)) if order is None else order

    def at(self, index: int) -> tuple[Any, int]:
        """The file and the row."""
        i = int(self.order[index])
        return self.files[int(self.number[i])][0], int(self.row[i])


@dataclass(frozen=True)
class Rows(Source):
    """A table's rows ordered by episode and step, so that an error can name the file and the row of it."""

    place: Place = field(default_factory=lambda: Place(()))
    """Where each was."""
    episode: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    """The number of each row's episode, in order."""

    def refuse(
        self, problem: str, episode: int | None = None, step: int | None = None, field: str | None = None
    ) -> NoReturn:
        """Raise a `LogError` that names the row, where the episode and step are known."""
        if episode is None or step is None:
            super().refuse(problem, episode, step, field)
        first = int(np.searchsorted(self.episode, episode))
        at = min(first + step, int(np.searchsorted(self.episode, episode, side="right")) - 1)
        self.refuse_at(at, problem, field, step)

    def refuse_at(self, at: int, problem: str, field: str | None = None, step: int | None = None) -> NoReturn:
        """The same at a row of the ordered table."""
        file, row = self.place.at(at)
        episode = int(self.episode[at])
        step = at - int(np.searchsorted(self.episode, episode)) if step is None else step
        label = episode if self.labels is None else self.labels[episode]
        raise LogError(problem, file=file, row=row, episode=label, step=step, field=field)


@dataclass(frozen=True)
class Part:
    """Some columns of some rows of the ordered table."""

    frame: Any
    at: np.ndarray
    """Where its rows are in the ordered table."""
    rows: Rows

    def taken(self, keep: np.ndarray) -> "Part":
        """The rows that are kept."""
        return Part(self.frame.iloc[np.flatnonzero(keep)], self.at[keep], self.rows)

    def refuse(self, name: str) -> Any:
        """Refuse at a row of it, in a column."""
        return lambda row, problem: self.rows.refuse_at(int(self.at[row]), problem, name)

    @property
    def cells(self) -> list[Cells]:
        """Its columns, understood."""
        return [cells(name, self.frame[name], self.refuse(name)) for name in self.frame.columns]


def check_header(names: Sequence[str], source: Source) -> None:
    """Refuse a name that two columns have, and more columns than anybody has named."""
    if len(names) > MOST_COLUMNS:
        source.refuse(f"has {len(names):,} columns; a log has at most {MOST_COLUMNS:,}: name them in another way")
    for name, times in Counter(names).items():
        if times > 1:
            source.refuse("there are two columns of this name; rename one of them", field=str(name))


def ordered(frame: Any, columns: Columns, place: Place) -> tuple[dict[str, Part], Rows]:
    """The mapped columns with rows ordered by episode and step."""
    pandas = require("pandas", extra="tables")
    source = Source(place.files[0][0])
    check_header(list(frame.columns), source)
    found = {name: _resolved(frame, name, columns, source) for name in Columns.__dataclass_fields__}
    if len(frame) == 0:
        source.refuse("the table has no rows")
    try:
        codes, labels = pandas.factorize(frame[found["episode"][0]])
    except TypeError:
        source.refuse("holds lists or records; an episode is called by a number or a text", field=columns.episode)
    for row in np.flatnonzero(codes < 0)[:1]:
        file, number = place.at(row)
        raise LogError("the row has no episode", file=file, row=number, field=columns.episode)
    # Files have episodes of their own, which may be called the same.
    called = codes
    codes, first = _renumbered(codes + place.number * (codes.max() + 1))
    labels = [labels[code] for code in called[first]]
    step = _step_numbers(frame[found["step"][0]], codes, labels, place, columns)
    order = np.lexsort((step, codes))
    rows = Rows(source.file, labels, Place(place.files, order), codes[order])
    _check_steps(step[order], rows, columns)
    mapped = {name: names for name, names in found.items() if names and name not in ("episode", "step")}
    everything = np.arange(len(order))
    return {name: Part(frame[names].iloc[order], everything, rows) for name, names in mapped.items()}, rows


def _renumbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes as 0, 1, … in the order in which they come, and where each comes first."""
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]


def _check_steps(step: np.ndarray, rows: Rows, columns: Columns) -> None:
    counts = np.bincount(rows.episode)
    expected = np.arange(len(step)) - np.repeat(np.cumsum(counts) - counts, counts)
    for at in np.flatnonzero(step != expected)[:1]:
        twice = step[at] < expected[at]
        number = int(step[at] if twice else expected[at])
        what = f"is missing; the next one is {step[at]}: number steps without a gap, or drop the episode"
        if twice:
            what = "is there twice: drop the copy, or name the two episodes differently"
        rows.refuse_at(int(at), f"step {number} {what}", columns.step, number)


def _resolved(frame: Any, name: str, columns: Columns, source: Source) -> list[str]:
    """The columns of a field: those that are named, or name_0, name_1, … in order."""
    given = getattr(columns, name)
    names = [given] if isinstance(given, str) else list(given)
    found = [column for one in names for column in _numbered(frame, one, source)]
    missing = [one for one in names if not _numbered(frame, one, source)]
    if missing and name not in ("probability", "terminated", "truncated"):
        have = list(frame.columns)
        source.refuse(
            f"no such column; the table has {have}. Name yours: --columns.{name} NAME, or Columns({name}=…)",
            field=missing[0],
        )
    return found


def _numbered(frame: Any, name: str, source: Source) -> list[str]:
    pattern = re.compile(re.escape(name) + r"_(\d+)")
    numbers = sorted(int(match[1]) for column in frame.columns if (match := pattern.fullmatch(str(column))))
    if name in frame.columns:
        if numbers:
            source.refuse(f"there is '{name}' and '{name}_{numbers[0]}'; rename one, or name the columns", field=name)
        return [name]
    if numbers != list(range(len(numbers))):
        gap = next(i for i, number in enumerate([*numbers, -1]) if i != number)
        source.refuse(f"there is no '{name}_{gap}', but '{name}_{numbers[-1]}'; number them without a gap", field=name)
    return [f"{name}_{i}" for i in numbers]


def _step_numbers(step: Any, codes: np.ndarray, labels: Sequence[Any], place: Place, columns: Columns) -> np.ndarray:
    pandas = require("pandas", extra="tables")
    numbers = pandas.to_numeric(step, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = ~(numbers == np.floor(numbers)) | (numbers < 0) | ~(numbers < 2**31)
    for at in np.flatnonzero(bad)[:1]:
        problem = f"{step.iloc[at]} is not a step number 0, 1, 2, …"
        file, row = place.at(at)
        raise LogError(problem, file=file, row=row, episode=labels[int(codes[at])], field=columns.step)
    return numbers.astype(int)
