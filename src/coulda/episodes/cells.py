"""Columns of a table as arrays: what is a number, what is a category, what is missing, and what is none of these.

| column                   | alone, as the observation     | among several          | as the action       |
|--------------------------|-------------------------------|------------------------|---------------------|
| text                     | `Discrete`, labels kept       | a 0/1 number per label | `Discrete`, labels  |
| true, false              | `Discrete(2)`, labels kept    | 0 or 1                 | `Discrete(2)`       |
| integers from 0          | `Discrete(max + 1)`           | a number               | `Discrete(max + 1)` |
| 0.0, 1.0, … without gaps | a number                      | a number               | `Discrete`, noted   |
| other numbers            | a number, NaN where empty     | the same               | a number            |
| dates, notes, mixed, inf | refused, with the row         | the same               | the same            |
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from coulda.episodes.arrays import MOST_CATEGORIES, guess_space
from coulda.extras import require

MISSING = "(missing)"
"""What an empty place is called where categories stand alone."""
MOST_LABELS = 256
"""Different texts of one column: more are names or notes, and not categories."""
EXACT = 2**24
"""Integers up to which single precision holds all of them."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?$|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?$")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Refuse = Callable[[int, str], NoReturn]
"""(row, problem): refuse the table at a row of the column."""


@dataclass(frozen=True)
class Cells:
    """One column, understood."""

    name: str
    kind: Literal["text", "flag", "integer", "number"]
    values: np.ndarray
    """Codes of labels, 0 and 1, integers, or floats, NaN where missing; `[n]`, or `[n, k]` where cells are lists."""
    missing: np.ndarray
    """`[n]`."""
    labels: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """As numbers `[n, k]` beside others, NaN where missing, and what each is called."""
        if self.kind == "text":
            hot = np.eye(len(self.labels))[self.values]
            return np.where(self.missing[:, None], np.nan, hot), tuple(f"{self.name}={x}" for x in self.labels)
        if self.values.ndim == 2:
            return self.values, tuple(f"{self.name}_{i}" for i in range(self.values.shape[1]))
        values = np.where(self.missing, np.nan, self.values) if self.missing.any() else self.values
        return values[:, None], (self.name,)


@dataclass(frozen=True)
class Understood:
    """What a field of a log is, read from its columns."""

    values: np.ndarray
    space: gymnasium.Space
    names: tuple[str, ...] = ()
    """Of the categories of a `Discrete`, or of the numbers of a vector."""
    notes: tuple[str, ...] = ()


def cells(name: str, series: Any, refuse: Refuse) -> Cells:
    """One column; what cannot be understood is refused at its first row."""
    pandas = require("pandas", extra="tables")
    series, missing = series.infer_objects(), series.isna().to_numpy()
    present = series[~missing]
    if pandas.api.types.is_datetime64_any_dtype(series) or pandas.api.types.is_timedelta64_dtype(series):
        refuse(0, _date(present.iloc[0] if len(present) else series.dtype))
    if pandas.api.types.is_bool_dtype(series) and len(present):
        return Cells(name, "flag", _filled(series, missing, bool).astype(int), missing, ("false", "true"))
    if pandas.api.types.is_integer_dtype(series):
        return Cells(name, "integer", _exact(_filled(series, missing, np.int64), refuse), missing)
    if pandas.api.types.is_numeric_dtype(series) or not len(present):
        return Cells(name, "number", _finite(series.to_numpy(dtype=float, na_value=np.nan), refuse), missing)
    if isinstance(present.iloc[0], list | np.ndarray):
        return Cells(name, "number", _stacked(series, missing, refuse), missing)
    return _text(name, series, missing, refuse)


def as_observation(columns: list[Cells], alone: bool) -> Understood:
    """One column `alone` as it is; several, or x_0 by itself, as one vector, with their names."""
    notes = tuple(
        f"{one.name} is missing in {int(one.missing.sum()):,} of {len(one.missing):,} rows"
        for one in columns
        if one.missing.any()
    )
    one = columns[0]
    if alone and one.kind == "integer" and notes:
        notes = (f"{notes[0]}, so that its integers are numbers and no categories",)
    if alone and one.kind == "text" and notes:
        values = np.where(one.missing, len(one.labels), one.values)
        notes = (f"{notes[0]}, which is a category of its own",)
        return Understood(values, spaces.Discrete(len(one.labels) + 1), (*one.labels, MISSING), notes)
    if alone and one.values.ndim == 1 and not one.missing.any():
        if one.labels:
            return Understood(one.values, spaces.Discrete(len(one.labels)), one.labels)
        if one.kind == "integer" and one.values.min() >= 0 and one.values.max() < MOST_CATEGORIES:
            return Understood(one.values, guess_space(one.values))
    parts = [one.numbers for one in columns]
    values = np.concatenate([numbers for numbers, _ in parts], 1)
    names = tuple(name for _, more in parts for name in more)
    if alone and one.kind != "text" and one.values.ndim == 1:
        values, names = values[:, 0], ()
    return Understood(values, guess_space(values, categories=False), names, notes)


def as_action(columns: list[Cells], alone: bool, refuse: Refuse) -> Understood:
    """Choices or numbers; several, or x_0 by itself, are a vector. None may be missing."""
    for one in columns:
        for row in np.flatnonzero(one.missing)[:1]:
            refuse(int(row), "is missing; every step has an action: name what was done, or drop the episode")
    one = columns[0]
    if not alone:
        if any(one.labels for one in columns):
            refuse(0, "several columns of actions must be numbers; write text as one column, such as 'low+off'")
        values = np.concatenate([one.numbers[0] for one in columns], 1)
        return Understood(values, guess_space(values, categories=False), tuple(one.name for one in columns))
    if one.labels:
        notes = ("true and false are taken as 2 choices",) if one.kind == "flag" else ()
        return Understood(one.values, spaces.Discrete(len(one.labels)), one.labels, notes)
    if one.values.ndim == 2 or one.kind == "number":
        return _choices_or_numbers(one.values)
    if one.values.min() < 0:
        note = "actions go below 0 and are taken as numbers, not as choices; number choices from 0"
        return Understood(one.values, guess_space(one.values), notes=(note,))
    if one.values.max() >= MOST_CATEGORIES:
        row, most = int(one.values.argmax()), f"more than {MOST_CATEGORIES:,} choices"
        refuse(row, f"{one.values[row]} would make {most}; number actions from 0, or write them with a decimal point")
    return Understood(one.values, guess_space(one.values))


def as_numbers(one: Cells, refuse: Refuse) -> np.ndarray:
    """Numbers, none of them missing."""
    if one.kind == "text":
        refuse(0, f"'{one.labels[int(one.values[0])]}' is not a number")
    for row in np.flatnonzero(one.missing)[:1]:
        refuse(int(row), "is missing; write 0 where nothing was paid, or drop the episode")
    return one.values.astype(float)


def as_flags(one: Cells, refuse: Refuse) -> np.ndarray:
    """True and false, written so or as 1 and 0."""
    bad = one.missing | ~np.isin(one.values, (0, 1)) if one.kind != "text" else np.ones(len(one.values), bool)
    for row in np.flatnonzero(bad)[:1]:
        found = one.labels[int(one.values[row])] if one.kind == "text" else one.values[row]
        found = "nothing" if one.missing[row] else repr(found.item() if isinstance(found, np.generic) else found)
        refuse(int(row), f"is {found}; a flag is 1 or 0, true or false")
    return one.values != 0


def _choices_or_numbers(values: np.ndarray) -> Understood:
    seen = np.unique(values)
    if values.ndim == 1 and len(seen) > 1 and np.array_equal(seen, np.arange(len(seen))):
        note = f"actions are written as 0.0, 1.0, … and taken as {len(seen)} choices"
        return Understood(values.astype(np.int64), spaces.Discrete(len(seen)), notes=(note,))
    return Understood(values, guess_space(values))


def _filled(series: Any, missing: np.ndarray, dtype: Any) -> np.ndarray:
    try:
        return series.fillna(0).to_numpy(dtype=dtype) if missing.any() else series.to_numpy(dtype=dtype)
    except (OverflowError, ValueError, TypeError):
        return np.where(missing, 0, series.to_numpy(dtype=float, na_value=0.0))


def _exact(values: np.ndarray, refuse: Refuse) -> np.ndarray:
    """Integers, if single precision holds them."""
    for row in np.flatnonzero(values.astype(np.float32).astype(float) != values)[:1]:
        fix = "subtract an offset, divide it, or leave out what is an identifier"
        refuse(int(row), f"{values[row]} is beyond {EXACT:,}, from where on numbers are not exact; {fix}")
    return values


def _finite(values: np.ndarray, refuse: Refuse) -> np.ndarray:
    bad = np.isinf(values) if values.ndim == 1 else np.isinf(values).any(1)
    for row in np.flatnonzero(bad)[:1]:
        refuse(int(row), "is infinite; leave an observation empty where it is not known")
    return values


def _stacked(series: Any, missing: np.ndarray, refuse: Refuse) -> np.ndarray:
    """Cells that are lists of numbers, all of one length."""
    rows = list(series)
    for row in np.flatnonzero(missing)[:1]:
        refuse(int(row), "is missing, where other cells hold lists")
    shape = np.shape(rows[0])
    for i, one in enumerate(rows):
        array = np.asarray(one)
        if array.shape != shape or array.dtype.kind not in "biuf":
            refuse(i, f"holds {str(one)[:40]}, where the first cell holds {len(rows[0])} numbers")
    return _finite(np.stack(rows), refuse)


def _text(name: str, series: Any, missing: np.ndarray, refuse: Refuse) -> Cells:
    pandas = require("pandas", extra="tables")
    parsed = pandas.to_numeric(series, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    words = np.flatnonzero(~missing & np.isnan(parsed))
    if not len(words) and not isinstance(series[~missing].iloc[0], str):
        return Cells(name, "number", _finite(parsed, refuse), missing)
    present = int((~missing).sum())
    if len(words) and 2 * len(words) <= present:
        refuse(int(words[0]), f"'{series.iloc[int(words[0])]}' is not a number, as others of this column are")
    text = np.array(["" if gone else str(one) for one, gone in zip(series, missing, strict=True)], object)
    for row in np.flatnonzero([bool(CONTROL.search(one)) for one in text])[:1]:
        refuse(int(row), f"{text[row]!r} has characters that cannot be printed")
    for row in np.flatnonzero([bool(DATE.fullmatch(one)) for one in text] & ~missing)[:1]:
        refuse(int(row), _date(text[row]))
    labels, codes = np.unique(text[~missing], return_inverse=True)
    if len(labels) > MOST_LABELS:
        many = f"the column has {len(labels):,} different texts"
        refuse(int(words[0]), f"'{text[words[0]]}': {many}, which are no categories; leave it out, or group them")
    values = np.zeros(len(text), int)
    values[~missing] = codes
    return Cells(name, "text", values, missing, tuple(map(str, labels)))


def _date(found: Any) -> str:
    return (
        f"'{found}' is a date; a log holds numbers and categories: give hours since the episode began, or leave it out"
    )
