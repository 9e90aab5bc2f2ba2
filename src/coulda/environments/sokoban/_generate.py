"""The compiled half of the level generator; see `generator` for what it does and why."""

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban._random import below, bits, mix, stream
from coulda.extras import require

numba = require("numba", extra="sokoban")

# P(new direction) = 0.35 in 32 bits.
_TURN = np.uint64(round(0.35 * 2**32))
# Which of the 3×3 cells round the walker become floor.
_PATTERNS = np.array(
    [
        [0, 0, 0, 1, 1, 1, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0, 1, 0],
        [0, 0, 0, 1, 1, 0, 0, 1, 0],
        [0, 0, 0, 1, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1, 0, 1, 0],
    ],
    dtype=np.uint8,
)
_NUM_PATTERNS = len(_PATTERNS)
# What a cell is to the player. A carved room has the first two only.
_WALL, _FLOOR, _BOX, _REACHED = 0, 1, 2, 3


@numba.njit(cache=True)
def _carve(random, height, width, floor):
    """Random-walk topology: fill `floor[height·width]` with 1 where the walk's patterns fell."""
    floor[:] = 0
    row, column = 1 + below(random, height - 2), 1 + below(random, width - 2)
    direction = below(random, 4)
    for _ in range(3 * (height + width) // 2):
        if bits(random) < _TURN:
            direction = below(random, 4)
        while True:
            next_row = row + (direction == 1) - (direction == 0)
            next_column = column + (direction == 3) - (direction == 2)
            if 1 <= next_row < height - 1 and 1 <= next_column < width - 1:
                break
            direction = below(random, 4)
        row, column = next_row, next_column
        pattern = below(random, _NUM_PATTERNS)
        for i in range(9):
            r, c = row + i // 3 - 1, column + i % 3 - 1
            if _PATTERNS[pattern, i] and 1 <= r < height - 1 and 1 <= c < width - 1:
                floor[r * width + c] = 1


@numba.njit(cache=True)
def _place(random, floor, cells):
    """Fill `cells` with distinct floor cells, uniformly; False when there are too few."""
    free = np.flatnonzero(floor)
    if len(free) <= len(cells):
        return False
    for i in range(len(cells)):
        j = i + below(random, len(free) - i)
        free[i], free[j] = free[j], free[i]
        cells[i] = free[i]
    return True


@numba.njit(cache=True)
def _insert(visited, key):
    """Add `key` to the open-addressing set; False when it was there."""
    mask = np.uint64(len(visited) - 1)
    slot = key & mask
    while visited[slot] != 0:
        if visited[slot] == key:
            return False
        slot = (slot + np.uint64(1)) & mask
    visited[slot] = key
    return True


@numba.njit(cache=True)
def _reverse_play(random, floor, targets, player, width, max_depth, max_states, visited, best):
    """Depth-first search over pulls from the solved state; fills `best` with player and boxes of the best state.

    Returns the best score, 0 when no state has every box and the player off the targets.
    """
    num_boxes = len(targets)
    num_pulls = 4 * num_boxes
    steps = np.array([-width, width, -1, 1])
    is_target = np.zeros(len(floor), np.bool_)
    is_target[targets] = True
    queue = np.empty(len(floor), np.int64)
    # The states on the path from the root: to go back is to go one row up.
    boxes = np.empty((max_depth, num_boxes), np.int64)
    ground = np.empty((max_depth, len(floor)), np.uint8)
    keys = np.empty(max_depth, np.uint64)
    last = np.empty(max_depth, np.int64)
    changes = np.empty(max_depth, np.int64)
    pulls = np.empty((max_depth, num_pulls), np.int16)
    tried = np.zeros(max_depth, np.int64)
    pulls[:] = np.arange(num_pulls)
    boxes[0] = targets
    keys[0] = 0
    for target in targets:
        keys[0] ^= _box_key(target)
    last[0], changes[0] = -1, 0
    _walk(player, floor, boxes[0], width, queue, ground[0])
    visited[:] = 0
    _insert(visited, keys[0] ^ _player_key(player))
    num_states, best_score, depth = 1, 0, 0
    while depth >= 0 and num_states < max_states:
        i = tried[depth]
        if i == num_pulls or depth + 1 == max_depth:
            depth -= 1
            continue
        # The order is random, anew at each state, and drawn as far as it is needed.
        j = i + below(random, num_pulls - i)
        pull = pulls[depth, j]
        pulls[depth, j] = pulls[depth, i]
        pulls[depth, i] = pull
        tried[depth] += 1
        box, step = pull // 4, steps[pull % 4]
        old = boxes[depth, box]
        new, player = old + step, old + 2 * step
        if ground[depth, new] != _REACHED or ground[depth, player] == _WALL or ground[depth, player] == _BOX:
            continue
        key = keys[depth] ^ _box_key(old) ^ _box_key(new)
        if not _insert(visited, key ^ _player_key(player)):
            continue
        num_states += 1
        depth += 1
        boxes[depth] = boxes[depth - 1]
        boxes[depth, box] = new
        keys[depth] = key
        last[depth] = box
        changes[depth] = changes[depth - 1] + (box != last[depth - 1])
        tried[depth] = 0
        _walk(player, floor, boxes[depth], width, queue, ground[depth])
        if is_target[player]:
            continue
        score = changes[depth] * _displacement(boxes[depth], targets, is_target, width)
        if score > best_score:
            best_score = score
            best[0] = player
            best[1:] = boxes[depth]
    return best_score


@numba.njit(cache=True)
def _box_key(cell):
    return mix(np.uint64(2 * cell + 2))


@numba.njit(cache=True)
def _player_key(cell):
    return mix(np.uint64(2 * cell + 1))


@numba.njit(cache=True)
def _displacement(boxes, targets, is_target, width):
    """The sum of the distances between boxes and their own targets; 0 when a box is on a target."""
    total = 0
    for i in range(len(boxes)):
        if is_target[boxes[i]]:
            return 0
        total += abs(boxes[i] // width - targets[i] // width) + abs(boxes[i] % width - targets[i] % width)
    return total


@numba.njit(cache=True)
def _walk(player, floor, boxes, width, queue, ground):
    """Fill `ground` with what each cell is to a player at `player`: wall, box, reached, or floor out of reach."""
    ground[:] = floor
    for box in boxes:
        ground[box] = _BOX
    ground[player] = _REACHED
    queue[0] = player
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for to in (cell - width, cell + width, cell - 1, cell + 1):
            if ground[to] == _FLOOR:
                ground[to] = _REACHED
                queue[tail] = to
                tail += 1


@numba.njit(cache=True)
def _write(random, floor, targets, best, width, out):
    """Draw the level, its agent uniform over the cells it can reach that are not targets."""
    for cell in range(len(floor)):
        out[cell] = tiles.EMPTY if floor[cell] else tiles.WALL
    ground = np.empty(len(floor), np.uint8)
    _walk(best[0], floor, best[1:], width, np.empty(len(floor), np.int64), ground)
    candidate = ground == _REACHED
    for box in best[1:]:
        out[box] = tiles.BOX
    for target in targets:
        out[target] = tiles.TARGET
        candidate[target] = False
    places = np.flatnonzero(candidate)
    out[places[below(random, len(places))]] = tiles.AGENT


@numba.njit(cache=True)
def _furnish(random, floor, width, max_depth, max_states, max_placements, visited, places, best, out):
    """Make a level in a room; False when none of so many placements of targets and player can be played."""
    targets = places[1:]
    for _ in range(max_placements):
        if not _place(random, floor, places):
            return False
        if _reverse_play(random, floor, targets, places[0], width, max_depth, max_states, visited, best) > 0:
            _write(random, floor, targets, best, width, out)
            return True
    return False


@numba.njit(cache=True, nogil=True)
def generate_levels(seed, first, height, width, num_boxes, max_depth, max_states, max_placements, max_rooms, out):
    """Fill `out[n, height·width]` with levels number `first`, `first + 1`, …; return how many could not be made."""
    floor = np.empty(height * width, np.uint8)
    # A power of two, at most half full.
    visited = np.zeros(1 << (2 + np.int64(np.log2(max_states))), np.uint64)
    places = np.empty(1 + num_boxes, np.int64)
    best = np.empty(1 + num_boxes, np.int64)
    failures = 0
    for i in range(len(out)):
        random = stream(seed, first + i)
        made = False
        for _ in range(max_rooms):
            _carve(random, height, width, floor)
            made = _furnish(random, floor, width, max_depth, max_states, max_placements, visited, places, best, out[i])
            if made:
                break
        failures += not made
    return failures
