"""Every optimal action in every state of a level, by breadth-first search backwards: an expert inside `scan`.

`solve` finds one shortest solution; a table holds the set of optimal actions of each state that pushes can reach or
not, so that a planner looks it up (an index computation) wherever a policy has taken the boxes. One byte a state:
C(floor cells, boxes) · floor cells of them, some 150,000 for a 10×10 level with three boxes.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError

# The largest table of a level: 10×10 with three boxes and no inner walls has 2.7 million states.
MAX_STATES = 4_000_000
SMALL = 2**20
"""Bytes that cost nothing to clear and to pass on."""


class ActionTable(eqx.Module):
    """The optimal actions of n levels; make one with `tabulate`."""

    masks: Array
    """`uint8[total]`, the tables of all levels one after another, filled up to a power of eight."""
    offset: Array
    """`int32[n]`, where each level's table begins; -1 where it has none."""
    cell: Array
    """`int32[n, height·width]`, the number of each floor cell, -1 at walls."""
    choose: Array
    """`int32[cells + 1, 9]`, binomial coefficients."""

    def optimal(self, level: Array | int, state: Array) -> Array:
        """Which actions begin a shortest solution from `state` of level number `level`.

        Args:
            level: The level's place in the batch that was tabulated.
            state: `uint8[height, width]`, reached from that level by any actions.

        Returns:
            `bool[5]`; only NOOP in a solved state; none where no solution exists or the level has no table.
        """
        tile, cell = state.reshape(-1), self.cell[level]
        box, agent = tiles.has_box(tile), tiles.has_agent(tile)
        number = jnp.cumsum(box.astype(jnp.int32))
        rank = jnp.sum(jnp.where(box, self.choose.at[cell, number].get(mode="clip"), 0))
        place = rank * (jnp.max(cell) + 1) + jnp.sum(jnp.where(agent, cell, 0))
        mask = self.masks.at[self.offset[level] + place].get(mode="clip")
        known = (self.offset[level] >= 0) & jnp.any(agent)
        return known & ((mask >> jnp.arange(tiles.NUM_ACTIONS, dtype=jnp.uint8)) & 1).astype(bool)


def tabulate(levels: Any, num_boxes: int, max_states: int = MAX_STATES) -> ActionTable:
    """The optimal actions in every state of each level, computed on all cores.

    Args:
        levels: `uint8[n, height, width]`.
        num_boxes: How many boxes must be on targets: the model's number of boxes.
        max_states: A level with more states, or with more than eight boxes, gets no table.
    """
    from coulda.environments.sokoban import _tabulate

    levels = tiles.as_levels(levels)
    n, height, width = levels.shape
    flat = levels.reshape(n, -1)
    sizes = [_tabulate.table_size(level) for level in flat]
    has_table = [boxes <= _tabulate.MAX_BOXES and states <= max_states for _, boxes, states in sizes]
    length = np.array([round(states) if ok else 0 for (*_, states), ok in zip(sizes, has_table, strict=True)], np.int64)
    total = int(length.sum())
    if total >= 2**31:
        raise CouldaError(f"the tables of these {n} levels have {total} states, more than 2^31; tabulate fewer levels")
    # Room for any such levels where that is little, so that one size is compiled; else few sizes, powers of eight:
    # what is not used is never touched, and another size is another compilation of a whole training step.
    room = n * max_states if n * max_states <= SMALL else total
    masks = np.zeros(min(8 ** -(-max(room - 1, 0).bit_length() // 3), 2**31), np.uint8)
    offset = np.where(has_table, np.cumsum(length) - length, -1)

    def fill(i: int) -> None:
        if has_table[i]:
            part = masks[offset[i] : offset[i] + length[i]]
            _tabulate.tabulate_level(flat[i], height, width, num_boxes, part)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(n)))
    floor = flat != tiles.WALL
    cell = np.where(floor, np.cumsum(floor, axis=1) - 1, -1)
    # As many columns as any table needs, so that no batch of levels compiles anew.
    choose = [[math.comb(i, j) for j in range(_tabulate.MAX_BOXES + 1)] for i in range(height * width + 1)]
    return ActionTable(
        jnp.asarray(masks),
        jnp.asarray(offset, jnp.int32),
        jnp.asarray(cell, jnp.int32),
        jnp.asarray(np.minimum(choose, 2**31 - 1), jnp.int32),
    )
