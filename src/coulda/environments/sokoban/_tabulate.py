"""The compiled half of the action tables; see `action_table` for what they hold."""

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban._solve import neighbors, parse
from coulda.extras import require

numba = require("numba", extra="sokoban")

MAX_BOXES = 8  # a queue entry packs the boxes into 64 bits
_SOLVED = np.uint8(1 << tiles.NOOP)


@numba.njit(cache=True)
def binomials(n, k):
    """`[n + 1, k + 1]`: C(i, j)."""
    table = np.zeros((n + 1, k + 1), np.int64)
    table[:, 0] = 1
    for i in range(1, n + 1):
        for j in range(1, k + 1):
            table[i, j] = table[i - 1, j - 1] + table[i - 1, j]
    return table


@numba.njit(cache=True)
def _rank(boxes, choose):
    """The place of sorted `boxes` in colexicographic order."""
    rank = 0
    for i in range(len(boxes)):
        rank += choose[boxes[i], i + 1]
    return rank


@numba.njit(cache=True)
def _pack(boxes):
    packed = np.uint64(0)
    for i in range(len(boxes)):
        packed |= np.uint64(boxes[i]) << np.uint64(8 * i)
    return packed


@numba.njit(cache=True)
def _next_combination(boxes, limit):
    """Advance sorted `boxes` to the next subset of 0..limit-1; False after the last."""
    for i in range(len(boxes)):
        end = boxes[i + 1] if i + 1 < len(boxes) else limit
        if boxes[i] + 1 < end:
            boxes[i] += 1
            for j in range(i):
                boxes[j] = j
            return True
    return False


@numba.njit(cache=True)
def table_size(level):
    """(floor cells, boxes, states) of a flat level: states = C(floor cells, boxes) · floor cells."""
    floor, boxes, _, _ = parse(level)
    num_floor = floor.sum()
    combinations = 1.0
    for i in range(len(boxes)):
        combinations *= (num_floor - i) / (i + 1)
    return num_floor, len(boxes), combinations * num_floor


@numba.njit(cache=True, nogil=True)
def tabulate_level(level, height, width, needed, masks):
    """Fill `masks[states]` with the set of optimal actions of every state, by breadth-first search backwards.

    Bit a is set where action a begins a shortest solution; the NOOP bit where the state is solved; none where it
    cannot be solved. State (boxes, player) is number rank(boxes) · floor cells + player, in numbers of floor cells.
    """
    floor, level_boxes, targets, _ = parse(level)
    num_boxes = len(level_boxes)
    cells = np.flatnonzero(floor)
    num_floor = len(cells)
    index = np.full(len(level), -1, np.int64)
    index[cells] = np.arange(num_floor)
    around = neighbors(height, width)
    near = np.full((num_floor, 4), -1, np.int64)
    for i in range(num_floor):
        for d in range(4):
            to = around[cells[i], d]
            if to >= 0:
                near[i, d] = index[to]
    is_target = np.zeros(num_floor, np.bool_)
    is_target[index[targets]] = True
    choose = binomials(num_floor, num_boxes)

    masks[:] = 0
    distance = np.full(len(masks), -1, np.int16)
    queue, queue_boxes = np.empty(len(masks), np.int32), np.empty(len(masks), np.uint64)
    tail = 0
    boxes = np.arange(num_boxes)
    occupied = np.zeros(num_floor, np.bool_)
    more = True
    while more:
        if is_target[boxes].sum() >= needed:
            occupied[boxes] = True
            rank = _rank(boxes, choose)
            for player in range(num_floor):
                if not occupied[player]:
                    state = rank * num_floor + player
                    distance[state], masks[state] = 0, _SOLVED
                    queue[tail], queue_boxes[tail] = state, _pack(boxes)
                    tail += 1
            occupied[boxes] = False
        more = _next_combination(boxes, num_floor)

    pulled = np.empty(num_boxes, np.int64)
    head = 0
    while head < tail:
        state, packed = queue[head], queue_boxes[head]
        head += 1
        player, rank = state % num_floor, state // num_floor
        for i in range(num_boxes):
            boxes[i] = np.int64((packed >> np.uint64(8 * i)) & np.uint64(255))
            occupied[boxes[i]] = True
        for d in range(4):
            before = near[player, d ^ 1]
            if before < 0 or occupied[before]:
                continue
            ahead = near[player, d]
            # The player walked here, or pushed here the box that is now ahead.
            for pushed in range(2 if ahead >= 0 and occupied[ahead] else 1):
                source_rank, source_packed = rank, packed
                if pushed:
                    for i in range(num_boxes):
                        pulled[i] = player if boxes[i] == ahead else boxes[i]
                    pulled.sort()
                    source_rank, source_packed = _rank(pulled, choose), _pack(pulled)
                source = source_rank * num_floor + before
                if distance[source] < 0:
                    distance[source] = distance[state] + 1
                    queue[tail], queue_boxes[tail] = source, source_packed
                    tail += 1
                if distance[source] == distance[state] + 1:
                    masks[source] |= np.uint8(1 << d)
        occupied[boxes] = False
