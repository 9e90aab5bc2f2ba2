"""Boxoban level files: text, levels of one size, each under a line `; name`."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError


class LevelFileError(CouldaError):
    """A level file that cannot be read as it stands; the message names the file, the level and the line."""


def read_levels(path: str | Path, num_boxes: int | None = None) -> np.ndarray:
    """Read and validate the levels of a Boxoban file.

    Every level must be a rectangle of known characters, as large as the first, with one agent and as many boxes as
    targets (`num_boxes` of each, when given).

    Args:
        path: The file.
        num_boxes: Number of boxes that every level must have; None takes any.

    Returns:
        `uint8[n, height, width]`.

    Raises:
        LevelFileError: Naming file, level and line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise LevelFileError(f"{path}: not a text file of levels (byte {error.start} is not ASCII)") from error
    blocks = list(_blocks(path, text))
    if not blocks:
        raise LevelFileError(f"{path}: no levels; each starts with a line '; name'")
    levels = []
    for name, first_line, rows in blocks:
        level = _parse(path, name, first_line, rows, num_boxes)
        if levels and level.shape != levels[0].shape:
            raise LevelFileError(
                f"{path}, level {name!r}, line {first_line}: size {level.shape}, but the first level is "
                f"{levels[0].shape}; keep levels of different sizes in different files"
            )
        levels.append(level)
    return np.stack(levels)


def write_levels(path: str | Path, levels: np.ndarray) -> None:
    """Write levels `[n, height, width]` as a Boxoban file."""
    blocks = (f"; {i}\n{tiles.to_text(level)}\n" for i, level in enumerate(tiles.as_levels(levels)))
    Path(path).write_text("\n".join(blocks), encoding="ascii")


def _blocks(path: Path, text: str) -> Iterable[tuple[str, int, list[str]]]:
    """(name, number of the first row's line, rows) of each level; blank lines only separate levels."""
    name, first_line, rows = None, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(";"):
            if name is not None:
                yield name, first_line, rows
            name, first_line, rows = line[1:].strip(), number + 1, []
        elif line:
            if name is None:
                raise LevelFileError(f"{path}, line {number}: a row before any level; start with a line '; name'")
            if number != first_line + len(rows):
                raise LevelFileError(f"{path}, level {name!r}, line {number}: a blank line inside the level")
            rows.append(line)
    if name is not None:
        yield name, first_line, rows


def _parse(path: Path, name: str, first_line: int, rows: list[str], num_boxes: int | None) -> np.ndarray:
    """One level, checked."""
    where = f"{path}, level {name!r}, line"
    if not rows:
        raise LevelFileError(f"{where} {first_line}: the level has no rows")
    for number, row in enumerate(rows, start=first_line):
        if len(row) != len(rows[0]):
            raise LevelFileError(f"{where} {number}: {len(row)} tiles wide, but the level began with {len(rows[0])}")
        for column, character in enumerate(row, start=1):
            if character not in tiles.CHARACTERS:
                raise LevelFileError(
                    f"{where} {number}, column {column}: unknown tile {character!r}; known are {tiles.CHARACTERS!r}"
                )
    level = tiles.from_text("\n".join(rows))
    agents, boxes, targets = (int(f(level).sum()) for f in (tiles.has_agent, tiles.has_box, tiles.has_target))
    if agents != 1:
        raise LevelFileError(f"{where} {first_line}: {agents} agents; a level has one ('@', or '+' on a target)")
    if boxes != targets or (num_boxes is not None and boxes != num_boxes):
        expected = "as many of each" if num_boxes is None else f"{num_boxes} of each"
        raise LevelFileError(f"{where} {first_line}: {boxes} boxes and {targets} targets; expected {expected}")
    return level
