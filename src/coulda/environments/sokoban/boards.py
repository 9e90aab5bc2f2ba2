"""Bit boards: the same game in a few 32-bit words per episode, for batches that run at memory speed.

A layer (walls, targets, boxes) is a tuple of words, one bit a cell, so that under `vmap` each word is one contiguous
array and a step is element-wise arithmetic without gather or scatter. Since what lies outside the grid is wall, a
level with a closed border is its own interior: 8×8 cells, two words, for the paper's 10×10.
"""

import operator
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban.environment import below_probability, first_agent
from coulda.environments.sokoban.noise import tile_bits
from coulda.errors import CouldaError

Words = tuple[Array, ...]
_BITS = 32
# Row and column of an agent share a word; an absent agent is off every grid.
_ROW = 1 << 8
_NOWHERE = 0xFFFF


class Boards(eqx.Module):
    """The state of one episode, and what in it never changes."""

    walls: Words
    targets: Words
    boxes: Words
    agent: Array
    """uint32: row · 256 + column."""
    on_target: Array
    """uint32: boxes on targets."""


class BoardGame(eqx.Module):
    """The rules of `Sokoban` on bit boards of `height` × `width` cells inside a border of walls."""

    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    num_boxes: int = eqx.field(static=True)
    border: int = eqx.field(static=True, default=0)
    """Thickness of the frame of walls that the boards leave out."""

    def __check_init__(self):
        # Two steps off the left edge must not reach the right edge of the row above.
        if max(self.height, self.width) > _ROW - 3:
            raise CouldaError(f"boards hold grids of up to {_ROW - 3} cells a side, got {self.height}×{self.width}")

    def pack(self, level: Array) -> Boards:
        """The boards of a level `uint8[height + 2·border, width + 2·border]`."""
        inner = level[self.border : self.border + self.height, self.border : self.border + self.width]
        cell = first_agent(inner)
        row, column = (jnp.asarray(x, jnp.uint32) for x in (cell // self.width, cell % self.width))
        agent = jnp.where(cell < inner.size, row * _ROW + column, _NOWHERE)
        on_target = jnp.sum(inner == tiles.BOX_ON_TARGET, dtype=jnp.uint32)
        layers = (inner == tiles.WALL, tiles.has_target(inner), tiles.has_box(inner))
        walls, targets, boxes = (self._words(layer) for layer in layers)
        return Boards(walls, targets, boxes, agent, on_target)

    def unpack(self, boards: Boards) -> Array:
        """The state `uint8[height + 2·border, width + 2·border]`."""
        return self._tiles(boards).reshape(self.height + 2 * self.border, self.width + 2 * self.border)

    def over(self, boards: Boards) -> Array:
        """Solved, or without an agent."""
        return (boards.on_target >= self.num_boxes) | (boards.agent == _NOWHERE)

    def step(self, boards: Boards, action: Array) -> tuple[Boards, Array]:
        """The next boards and the reward; like `Sokoban.transition` and `Sokoban.reward`."""
        there, behind = self._ahead(boards.agent, action, 1), self._ahead(boards.agent, action, 2)
        near, far = self._bit(there), self._bit(behind)
        box = _meets(boards.boxes, near)
        blocked = ~self._inside(there) | _meets(boards.walls, near)
        stuck = ~self._inside(behind) | _meets(boards.walls, far) | _meets(boards.boxes, far)
        moves = ~blocked & ~(box & stuck) & (action < tiles.NOOP) & ~self.over(boards)
        push = moves & box
        boxes = tuple(
            jnp.where(push, word ^ here ^ beyond, word)
            for word, here, beyond in zip(boards.boxes, near, far, strict=True)
        )
        gained, lost = push & _meets(boards.targets, far), push & _meets(boards.targets, near)
        on_target = boards.on_target + gained.astype(jnp.uint32) - lost.astype(jnp.uint32)
        solved = (on_target >= self.num_boxes) & (boards.on_target < self.num_boxes)
        placed = gained.astype(jnp.float32) - lost.astype(jnp.float32)
        reward = tiles.REWARD_ON_TARGET * placed + jnp.where(solved, tiles.REWARD_SOLVED, 0.0)
        agent = jnp.where(moves, there, boards.agent)
        return Boards(boards.walls, boards.targets, boxes, agent, on_target), reward

    def observe(self, boards: Boards, low: Array, high: Array, mask_probability: float, window: int) -> Array:
        """`Sokoban.observe` of the unpacked state, under the noise of `noise.step_key`; flat, `uint8[tiles]`.

        Flat, since XLA's loops over the ten columns of a grid are several times slower.
        """
        state, reach = self._tiles(boards), np.uint32(window // 2)
        row, column = (axis.astype(np.uint32) for axis in self._axes)
        # Unsigned: what lies before the window wraps round to a large number.
        rows_away = reach + row - boards.agent // _ROW
        columns_away = reach + column - boards.agent % _ROW
        present = (boards.agent != _NOWHERE) & (window > 0)
        visible = (rows_away <= 2 * reach) & (columns_away <= 2 * reach) & present
        masked = below_probability(tile_bits(low, high, state.size), mask_probability)
        return jnp.where(masked & ~visible, jnp.uint8(tiles.EMPTY), state)

    @property
    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and column of each tile in raster order, -1 in the border's first row and column."""
        row, column = np.indices((self.height + 2 * self.border, self.width + 2 * self.border))
        return row.reshape(-1) - self.border, column.reshape(-1) - self.border

    def _tiles(self, boards: Boards) -> Array:
        """The state, flat, `uint8[tiles]`."""
        row, column = self._axes
        inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        cell = np.where(inside, row * self.width + column, 0)

        def bit(words: Words) -> Array:
            word = jnp.broadcast_to(words[0], cell.shape)
            for i in range(1, len(words)):
                word = jnp.where(cell // _BITS == i, words[i], word)
            return (word >> (cell % _BITS).astype(np.uint32)) & 1

        target, box = bit(boards.targets), bit(boards.boxes)
        agent = ((row * _ROW + column).astype(np.uint32) == boards.agent).astype(jnp.uint32)
        # The tile numbers, in arithmetic: target 3, box 2, agent 4, box on target 5, agent on target 6.
        tile = bit(boards.walls) + 2 * box + 4 * agent + 3 * target - (target & agent)
        return jnp.where(inside, tile, tiles.WALL).astype(jnp.uint8)

    def _ahead(self, agent: Array, action: Array, distance: int) -> Array:
        """The place `distance` steps away; outside the grid its row or column is too large (unsigned)."""
        down = (action == tiles.DOWN).astype(jnp.uint32) - (action == tiles.UP).astype(jnp.uint32)
        right = (action == tiles.RIGHT).astype(jnp.uint32) - (action == tiles.LEFT).astype(jnp.uint32)
        return agent + np.uint32(distance) * (down * _ROW + right)

    def _inside(self, place: Array) -> Array:
        return (place // _ROW < self.height) & (place % _ROW < self.width)

    def _bit(self, place: Array) -> Words:
        """The words in which only the bit of `place` is set."""
        cell = place // _ROW * self.width + place % _ROW
        bit = jnp.uint32(1) << (cell % _BITS)
        return tuple(jnp.where(cell // _BITS == i, bit, 0) for i in range(self._num_words))

    def _words(self, layer: Array) -> Words:
        flat = jnp.zeros(self._num_words * _BITS, jnp.uint32).at[: layer.size].set(layer.reshape(-1).astype(jnp.uint32))
        shifted = flat.reshape(self._num_words, _BITS) << jnp.arange(_BITS, dtype=jnp.uint32)[None]
        return tuple(jnp.sum(shifted, axis=1, dtype=jnp.uint32))

    @property
    def _num_words(self) -> int:
        return -(-self.height * self.width // _BITS)


def has_closed_border(levels: np.ndarray) -> bool:
    """Whether all levels `[n, height, width]` are framed by walls, so that boards may leave the frame out."""
    sides = (levels[:, 0], levels[:, -1], levels[:, :, 0], levels[:, :, -1])
    return all((side == tiles.WALL).all() for side in sides)


def _meets(layer: Words, bit: Words) -> Any:
    return reduce(operator.or_, (a & b for a, b in zip(layer, bit, strict=True))) != 0
