"""The seven tile categories of PO-Sokoban, one byte per tile (section 3.2), and their characters.

A state, a level and an observation are all `uint8[height, width]` grids of these. The predicates work on
numpy and JAX arrays alike.
"""

from typing import Any

import numpy as np

from coulda.errors import CouldaError

EMPTY = 0
WALL = 1
BOX = 2
TARGET = 3
AGENT = 4
BOX_ON_TARGET = 5
AGENT_ON_TARGET = 6
NUM_TILES = 7

#: The character of each tile in level files, by tile number (the common Sokoban format; Boxoban uses the first five).
CHARACTERS = " #$.@*+"

UP, DOWN, LEFT, RIGHT, NOOP = range(5)
NUM_ACTIONS = 5
ACTION_NAMES = ("up", "down", "left", "right", "noop")
#: (row, column) displacement of each action.
DISPLACEMENTS = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))

REWARD_ON_TARGET = 1.0
REWARD_SOLVED = 10.0


def has_box(tiles: Any) -> Any:
    """Where a box stands, on a target or not."""
    return (tiles == BOX) | (tiles == BOX_ON_TARGET)


def has_target(tiles: Any) -> Any:
    """Where a target lies, whatever stands on it."""
    return (tiles == TARGET) | (tiles == BOX_ON_TARGET) | (tiles == AGENT_ON_TARGET)


def has_agent(tiles: Any) -> Any:
    """Where an agent stands, on a target or not."""
    return (tiles == AGENT) | (tiles == AGENT_ON_TARGET)


def from_text(text: str) -> np.ndarray:
    r"""A level from lines of characters; short lines are filled up with floor.

    >>> from_text("#####\n#@$.#\n#####")
    array([[1, 1, 1, 1, 1],
           [1, 4, 2, 3, 1],
           [1, 1, 1, 1, 1]], dtype=uint8)
    """
    lines = text.strip("\n").split("\n")
    width = max(map(len, lines))
    unknown = sorted(set("".join(lines)) - set(CHARACTERS))
    if unknown:
        raise CouldaError(f"unknown tile characters {unknown}; a level is drawn with {CHARACTERS!r}")
    return np.array([[CHARACTERS.index(c) for c in line.ljust(width)] for line in lines], dtype=np.uint8)


def to_text(tiles: Any) -> str:
    """The level as lines of characters, the inverse of `from_text`.

    >>> print(to_text(np.array([[1, 4, 2, 3], [0, 5, 6, 1]])))
    #@$.
     *+#
    """
    return "\n".join("".join(CHARACTERS[tile] for tile in row) for row in np.asarray(tiles))


def as_levels(levels: Any) -> np.ndarray:
    """Levels as a contiguous `uint8[n, height, width]` on the host, or an error that says what they were."""
    array = np.asarray(levels)
    if array.ndim != 3:
        raise CouldaError(f"levels must have shape [n, height, width], got {array.shape}; add a leading axis?")
    if array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() >= NUM_TILES)):
        raise CouldaError(
            f"levels must hold whole tile numbers 0..{NUM_TILES - 1}, got dtype {array.dtype}"
            + (f" in [{array.min()}, {array.max()}]" if array.size else "")
        )
    return np.ascontiguousarray(array, dtype=np.uint8)
