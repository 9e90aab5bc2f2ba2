"""A second reader of tables, which is slow, knows nothing of ours, and takes every cell as it is."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
from pandas._libs.parsers import STR_NA_VALUES

from coulda.episodes import EpisodeLog

Rows = list[list[Any]]
FLAGS = {"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0}


class NoTableError(Exception):
    """The cells have no one meaning."""


def meaning(header: list[str], rows: Rows) -> list[dict[str, Any]]:
    """Episodes in order, each with the cells of its steps by field, and its last observation; `NoTableError` else."""
    if len(set(header)) < len(header) or any(len(row) > len(header) for row in rows) or not rows:
        raise NoTableError
    named = [dict(zip(header, row, strict=False)) for row in rows]
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in named:
        label = _label(row["episode"], named)
        groups.setdefault(label, []).append(row)
    return [_episode(sorted(group, key=lambda row: _whole(row["step"])), header) for group in groups.values()]


def _episode(rows: list[dict[str, Any]], header: list[str]) -> dict[str, Any]:
    if [_whole(row["step"]) for row in rows] != list(range(len(rows))):
        raise NoTableError
    fields = {name: _columns(name, header) for name in ("observation", "action", "reward", "probability")}
    closing = all(_missing(rows[-1].get(name)) for name in ("action", "reward"))
    steps = rows[:-1] if closing else rows
    flags = {name: [_flag(row.get(name)) for row in steps] for name in ("terminated", "truncated") if name in header}
    if any(any(one[:-1]) for one in flags.values()):
        raise NoTableError
    ends = {name: one[-1] for name, one in flags.items()}
    if len(ends) == 2 and not any(ends.values()):
        raise NoTableError
    terminated = ends.get("terminated", 1 - ends["truncated"] if "truncated" in ends else 1)
    taken = {name: [[row.get(one) for one in fields[name]] for row in steps] for name in ("action", "reward")}
    if any(_missing(cell) for cells in taken.values() for row in cells for cell in row):
        raise NoTableError
    seen = [[row.get(one) for one in fields["observation"]] for row in (rows if closing else [*rows, rows[-1]])]
    chance = [row.get("probability") if fields["probability"] else None for row in steps]
    return {**taken, "observation": seen, "probability": chance, "terminated": bool(terminated)}


def _columns(name: str, header: list[str]) -> list[str]:
    numbered = [one for one in header if one.startswith(f"{name}_") and one[len(name) + 1 :].isdigit()]
    if name in header and numbered:
        raise NoTableError
    if sorted(numbered) != [f"{name}_{i}" for i in range(len(numbered))]:
        raise NoTableError
    if name not in header and not numbered and name != "probability":
        raise NoTableError
    return [name] if name in header else sorted(numbered)


def _missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and cell in STR_NA_VALUES)


def _number(cell: Any) -> float:
    if isinstance(cell, bool | int | float | np.generic):
        return float(cell)
    if isinstance(cell, str) and cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise NoTableError from None


def _whole(cell: Any) -> int:
    number = _number(cell)
    if not number.is_integer():
        raise NoTableError
    return int(number)


def _label(cell: Any, rows: list[dict[str, Any]]) -> Any:
    if _missing(cell):
        raise NoTableError
    try:
        for row in rows:
            _number(row["episode"])
    except NoTableError:
        return cell
    return _number(cell)


def _flag(cell: Any) -> int:
    text = str(float(cell) if isinstance(cell, Decimal) else cell).strip().lower()
    if text not in FLAGS:
        raise NoTableError
    return FLAGS[text]


def agrees(log: EpisodeLog, expected: list[dict[str, Any]]) -> bool:
    """Whether the log says of every step what the cells do."""
    if len(log) != len(expected):
        return False
    schema = log.schema
    for i, (mine, theirs) in enumerate(zip(log, expected, strict=True)):
        if len(mine.reward) != len(theirs["reward"]) or bool(log.terminated[i]) != theirs["terminated"]:
            return False
        chance = [math.nan if _missing(cell) else math.log(_number(cell)) for cell in theirs["probability"]]
        if not np.allclose(np.asarray(mine.log_prob, float), chance, rtol=1e-5, atol=1e-6, equal_nan=True):
            return False
        fields = (
            (mine.reward[:, None], theirs["reward"], ()),
            (_wide(mine.action), theirs["action"], schema.action_names),
            (_wide(mine.observation), theirs["observation"], schema.observation_names),
        )
        if not all(_same_cells(*field) for field in fields):
            return False
    return True


def _wide(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def _same_cells(values: np.ndarray, cells: Rows, names: tuple[str, ...]) -> bool:
    rows = list(zip(values, cells, strict=True)) if len(values) == len(cells) else [(np.zeros(0), [0])]
    return all(_same_row(value, row, names) for value, row in rows)


def _same_row(value: np.ndarray, row: list[Any], names: tuple[str, ...]) -> bool:
    if len(value) == 1 and len(row) == 1 and names and np.issubdtype(value.dtype, np.integer):
        label, cell = names[int(value[0])], row[0]
        return str(cell) == label or str(cell).lower() == label.lower() == str(bool(_number(cell))).lower()
    row = [one for cell in row for one in (cell if isinstance(cell, list) else [cell])]
    numbers = [math.nan if _missing(cell) else _try(cell) for cell in row]
    if None in numbers:  # text: as many numbers as there are categories, one of them 1
        return sum(one is None for one in numbers) <= np.nansum(np.asarray(value, float) == 1)
    if len(value) > len(row):  # text in other rows
        return any(_missing(cell) for cell in row) or all(_try(cell) is not None for cell in row)
    return np.allclose(np.asarray(value, float), np.asarray(numbers, float), rtol=1e-6, atol=1e-45, equal_nan=True)


def _try(cell: Any) -> float | None:
    try:
        return _number(cell)
    except NoTableError:
        return None


def judged(header: list[str], rows: Rows) -> Callable[[EpisodeLog], bool]:
    def same(log: EpisodeLog) -> bool:
        try:
            return agrees(log, meaning(header, rows))
        except NoTableError:
            return False

    return same
