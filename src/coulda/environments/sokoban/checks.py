"""What is wrong with a level: every defect is counted, none is repaired."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coulda.environments.sokoban import solver, tiles


@dataclass(frozen=True)
class LevelCheck:
    """What `check_level` found."""

    defects: dict[str, int]
    """Name of each defect that the level has, and how many times: see `DEFECTS`."""
    solvable: bool | None
    """None when it was not asked, or when the solver reached its limit."""

    @property
    def well_formed(self) -> bool:
        """Whether there are no defects."""
        return not self.defects


DEFECTS = {
    "no agent": "the episode is over at once, with return 0",
    "extra agents": "agents after the first in raster order, which are floor",
    "missing boxes": "fewer boxes than the model's: the level cannot be solved",
    "extra boxes": "more boxes than the model's",
    "missing targets": "fewer targets than the model's number of boxes: the level cannot be solved",
    "extra targets": "more targets than the model's number of boxes",
    "open border": "tiles on the edge of the grid that are not wall; outside is wall all the same",
    "solved": "over at once, with return 0",
}
"""Each defect and what it means to the model."""


def count_defects(levels: Any, num_boxes: int) -> dict[str, np.ndarray]:
    """How many times each level `[n, height, width]` has each of the `DEFECTS`, `int64[n]` each."""
    levels = tiles.as_levels(levels)
    agents, boxes, targets, on_target = (
        f(levels).sum((1, 2))
        for f in (tiles.has_agent, tiles.has_box, tiles.has_target, lambda x: x == tiles.BOX_ON_TARGET)
    )
    inner = levels[:, 1:-1, 1:-1]
    counts = [
        agents == 0,
        np.maximum(agents - 1, 0),
        np.maximum(num_boxes - boxes, 0),
        np.maximum(boxes - num_boxes, 0),
        np.maximum(num_boxes - targets, 0),
        np.maximum(targets - num_boxes, 0),
        (levels != tiles.WALL).sum((1, 2)) - (inner != tiles.WALL).sum((1, 2)),
        on_target >= num_boxes,
    ]
    return {name: count.astype(np.int64) for name, count in zip(DEFECTS, counts, strict=True)}


def check_level(level: Any, num_boxes: int, solvable: bool = False) -> LevelCheck:
    r"""Count the defects of one level `[height, width]` and, if asked, decide whether it can be solved.

    >>> check_level(tiles.from_text("#####\n#@@.#\n#####"), num_boxes=1).defects
    {'extra agents': 1, 'missing boxes': 1}
    """
    level = tiles.as_levels(np.asarray(level)[None])
    defects = {name: int(count[0]) for name, count in count_defects(level, num_boxes).items() if count[0]}
    status = int(solver.solve(level, num_boxes).status[0]) if solvable else solver.UNKNOWN
    return LevelCheck(defects, None if status == solver.UNKNOWN else status == solver.SOLVED)
