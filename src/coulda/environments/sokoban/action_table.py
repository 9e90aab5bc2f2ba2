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
    lengths: Array | None
    """`int16[total]`, how many steps a shortest solution has, -1 where there is none; kept if asked for."""
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
        place, known = self._place(level, state)
        mask = self.masks.at[place].get(mode="clip")
        return known & ((mask >> jnp.arange(tiles.NUM_ACTIONS, dtype=jnp.uint8)) & 1).astype(bool)

    def length(self, level: Array | int, state: Array) -> Array:
        """How many steps a shortest solution from there has, int32; -1 where there is none, or no table."""
        if self.lengths is None:
            raise CouldaError("this table has no lengths of solutions; make it with tabulate(..., lengths=True)")
        place, known = self._place(level, state)
        return jnp.where(known, self.lengths.at[place].get(mode="clip").astype(jnp.int32), -1)

    def _place(self, level: Array | int, state: Array) -> tuple[Array, Array]:
        """Where the state stands in the tables, and whether it does."""
        tile, cell = state.reshape(-1), self.cell[level]
        box, agent = tiles.has_box(tile), tiles.has_agent(tile)
        number = jnp.cumsum(box.astype(jnp.int32))
        rank = jnp.sum(jnp.where(box, self.choose.at[cell, number].get(mode="clip"), 0))
        place = rank * (jnp.max(cell) + 1) + jnp.sum(jnp.where(agent, cell, 0))
        return self.offset[level] + place, (self.offset[level] >= 0) & jnp.any(agent)


def tabulate(levels: Any, num_boxes: int, max_states: int = MAX_STATES, lengths: bool = False) -> ActionTable:
    """The optimal actions in every state of each level, computed on all cores.

    Args:
        levels: `uint8[n, height, width]`.
        num_boxes: How many boxes must be on targets: the model's number of boxes.
        max_states: A level with more states, or with more than eight boxes, gets no table.
        lengths: Whether to keep how long the solutions are, which takes twice as much memory again.
    """
    from coulda.environments.sokoban import _tabulate

    levels = tiles.as_levels(levels)
    n, height, width = levels.shape
    flat = levels.reshape(n, -1)
    sizes = [_tabulate.table_size(level) for level in flat]
    has_table = [boxes <= _tabulate.MAX_BOXES and states <= max_states for _, boxes, states in sizes]
    size = np.array([round(states) if ok else 0 for (*_, states), ok in zip(sizes, has_table, strict=True)], np.int64)
    total = int(size.sum())
    if total >= 2**31:
        raise CouldaError(f"the tables of these {n} levels have {total} states, more than 2^31; tabulate fewer levels")
    # Room for any such levels where that is little, so that one size is compiled; else few sizes, powers of eight:
    # what is not used is never touched, and another size is another compilation of a whole training step.
    room = n * max_states if n * max_states <= SMALL else total
    masks = np.zeros(min(8 ** -(-max(room - 1, 0).bit_length() // 3), 2**31), np.uint8)
    steps = np.zeros(len(masks), np.int16) if lengths else None
    offset = np.where(has_table, np.cumsum(size) - size, -1)

    def fill(i: int) -> None:
        if has_table[i]:
            part = slice(offset[i], offset[i] + size[i])
            found = np.empty(size[i], np.int16) if steps is None else steps[part]
            _tabulate.tabulate_level(flat[i], height, width, num_boxes, masks[part], found)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(n)))
    floor = flat != tiles.WALL
    cell = np.where(floor, np.cumsum(floor, axis=1) - 1, -1)
    # As many columns as any table needs, so that no batch of levels compiles anew.
    choose = [[math.comb(i, j) for j in range(_tabulate.MAX_BOXES + 1)] for i in range(height * width + 1)]
    return ActionTable(
        jnp.asarray(masks),
        None if steps is None else jnp.asarray(steps),
        jnp.asarray(offset, jnp.int32),
        jnp.asarray(cell, jnp.int32),
        jnp.asarray(np.minimum(choose, 2**31 - 1), jnp.int32),
    )
