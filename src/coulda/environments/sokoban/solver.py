"""The exact solver on the full state: A* over pushes, optimal in moves, with deadlock pruning.

It uses the environment's own definition of solved (as many boxes on targets as the model has boxes) and of what lies
outside the grid (wall), so that it also decides malformed levels. Pruned are states whose boxes cannot be assigned to
different targets, each box alone in the room, and 2×2 blocks that no push can break.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError

SOLVED = 0
"""The status of a level that has a solution."""
UNSOLVABLE = 1
"""The status of a level that has none."""
UNKNOWN = 2
"""The status of a level on which the search gave up."""
STATUS_NAMES = ("solved", "unsolvable", "unknown")
# Solves 99% of Boxoban's test levels (four boxes); a node takes some 60 bytes.
NODE_LIMIT = 1_000_000


@dataclass(frozen=True)
class Solutions:
    """What the solver found for n levels."""

    status: np.ndarray
    """`uint8[n]`: SOLVED, UNSOLVABLE (proved), or UNKNOWN (the node limit, or more than 10 targets)."""
    length: np.ndarray
    """`int32[n]`: moves of a shortest solution, -1 where there is none."""
    actions: np.ndarray
    """`uint8[n, longest]`: a shortest solution, then NOOPs."""
    nodes: np.ndarray
    """`int32[n]`: states that were made."""


def solve(levels: Any, num_boxes: int, node_limit: int = NODE_LIMIT) -> Solutions:
    r"""A shortest solution of each level, found on all cores.

    Args:
        levels: `uint8[n, height, width]`; any state will do, also in the middle of an episode.
        num_boxes: How many boxes must be on targets: the model's number of boxes.
        node_limit: After so many states the level is reported UNKNOWN.

    >>> level = tiles.from_text("#######\n#@ $ .#\n#######")
    >>> solve(level[None], num_boxes=1).actions
    array([[3, 3, 3]], dtype=uint8)
    """
    from coulda.environments.sokoban._solve import solve_level

    levels = tiles.as_levels(levels)
    if num_boxes < 1:
        raise CouldaError(f"num_boxes must be at least 1, got {num_boxes}")
    n, height, width = levels.shape

    def one(level: np.ndarray) -> tuple[int, np.ndarray, int]:
        return solve_level(level, height, width, num_boxes, node_limit)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(one, levels.reshape(n, -1)))
    status = np.array([status for status, _, _ in results], np.uint8)
    found = [actions for _, actions, _ in results]
    actions = np.full((n, max(map(len, found), default=0)), tiles.NOOP, np.uint8)
    for row, solution in zip(actions, found, strict=True):
        row[: len(solution)] = solution
    length = np.where(status == SOLVED, np.array([len(solution) for solution in found], np.int32), -1)
    return Solutions(status, length.astype(np.int32), actions, np.array([nodes for *_, nodes in results], np.int32))
