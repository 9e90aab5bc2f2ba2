"""Policies whose probabilities somebody else put into columns of the log's own table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coulda.episodes.rows import Columns, Place, ordered
from coulda.episodes.tables import actions_of, read_frame, steps_of
from coulda.episodes.validation import refuse_probabilities, taken_probability
from coulda.errors import CouldaError
from coulda.policies import LoggedPolicy

if TYPE_CHECKING:
    import pandas as pd


def policy_in_frame(
    frame: "pd.DataFrame", name: str, columns: Columns | None = None, *, file: str | Path = "data frame"
) -> LoggedPolicy:
    """The policy whose probabilities somebody else put into a column of the log's own table.

    The column `name` is the probability (of continuous actions the density) of the action taken; name_0, name_1, …
    are those of each action. A row that only holds the last observation has them for every action, or none.
    """
    return _found(frame, Place([(file, len(frame))]), name, Columns() if columns is None else columns)


def policy_in_table(path: Path | str | Sequence[Path], name: str, columns: Columns | None = None) -> LoggedPolicy:
    """The policy in a column of a `.parquet` or `.csv` file, or of several; see `policy_in_frame`."""
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    if not all(one.suffix in (".parquet", ".csv") for one in paths):
        raise CouldaError(f"column:{name} is a column of a table, .parquet or .csv; the log is {paths[0].name}")
    return _found(*read_frame(paths), name, Columns() if columns is None else columns)


def _found(frame: Any, place: Place, name: str, columns: Columns) -> LoggedPolicy:
    columns = replace(columns, probability=name)
    parts, rows = ordered(frame, columns, place)
    if "probability" not in parts:
        rows.refuse(f"no such column; the table has {list(frame.columns)}", field=name)
    lengths, is_last, keep = steps_of(parts, columns, rows)
    found = np.concatenate([one.numbers[0] for one in parts["probability"].cells], 1).astype(float)
    refuse_probabilities(found[keep], name, lengths, rows)
    if found.shape[1] == 1:
        return LoggedPolicy(_logarithm(found[keep][:, 0]))
    alone = list(parts["action"].frame.columns) == list(columns.action[:1])
    action = actions_of(parts["action"].taken(keep), columns, bool(is_last.any()), alone).values
    taken = taken_probability(found[keep], action, lengths, rows)
    whole = np.full((int((lengths + 1).sum()), found.shape[1]), np.nan)
    last = np.cumsum(lengths + 1) - 1
    whole[np.delete(np.arange(len(whole)), last)] = found[keep]
    whole[last[is_last]] = found[~keep]
    return LoggedPolicy(_logarithm(taken), whole.astype(np.float32))


def _logarithm(probability: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(probability).astype(np.float32)
