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
def _shuffled_actions(random):
    """The 4 moves (0–3) and 4 pulls (4–7) in random order."""
    order = np.arange(8)
    for i in range(7, 0, -1):
        j = below(random, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


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
    """Depth-first reverse play from the solved state; fills `best` with the player and the boxes of the best state.

    Returns the best score, 0 when no state has every box off the targets.
    """
    num_boxes = len(targets)
    num_cells = len(floor)
    occupant = np.full(num_cells, -1, np.int64)  # which box stands on a cell
    is_target = np.zeros(num_cells, np.int64)
    boxes = targets.copy()
    key = mix(np.uint64(2 * player + 1))
    for i in range(num_boxes):
        occupant[targets[i]] = i
        is_target[targets[i]] = 1
        key ^= mix(np.uint64(2 * targets[i] + 2))
    step = np.array([-width, width, -1, 1])
    order = _shuffled_actions(random)
    frame_next = np.empty(max_depth, np.int64)
    frame_player = np.empty(max_depth, np.int64)
    frame_pulled = np.empty(max_depth, np.int64)
    frame_last = np.empty(max_depth, np.int64)
    frame_changes = np.empty(max_depth, np.int64)
    visited[:] = 0
    _insert(visited, key)
    num_states, best_score = 1, 0
    last, changes, displacement, on_target = -1, 0, 0, num_boxes
    depth = 0
    frame_next[0] = 0
    while depth >= 0:
        if frame_next[depth] == 8 or num_states >= max_states:
            # Undo the action that led here.
            depth -= 1
            if depth < 0:
                break
            box = frame_pulled[depth]
            if box >= 0:
                back = boxes[box] - (player - boxes[box])
                displacement += _distance(back, targets[box], width) - _distance(boxes[box], targets[box], width)
                on_target += is_target[back] - is_target[boxes[box]]
                key ^= mix(np.uint64(2 * back + 2)) ^ mix(np.uint64(2 * boxes[box] + 2))
                occupant[boxes[box]], occupant[back] = -1, box
                boxes[box] = back
            key ^= mix(np.uint64(2 * player + 1)) ^ mix(np.uint64(2 * frame_player[depth] + 1))
            player, last, changes = frame_player[depth], frame_last[depth], frame_changes[depth]
            continue
        action = order[frame_next[depth]]
        frame_next[depth] += 1
        to = player + step[action & 3]
        if depth + 1 == max_depth or floor[to] == 0 or occupant[to] >= 0:
            continue
        behind = player - step[action & 3]
        box = occupant[behind] if action >= 4 else -1
        next_key = key ^ mix(np.uint64(2 * player + 1)) ^ mix(np.uint64(2 * to + 1))
        if box >= 0:
            next_key ^= mix(np.uint64(2 * behind + 2)) ^ mix(np.uint64(2 * player + 2))
        if not _insert(visited, next_key):
            continue
        num_states += 1
        frame_player[depth], frame_pulled[depth] = player, box
        frame_last[depth], frame_changes[depth] = last, changes
        if box >= 0:
            displacement += _distance(player, targets[box], width) - _distance(behind, targets[box], width)
            on_target += is_target[player] - is_target[behind]
            occupant[behind], occupant[player] = -1, box
            boxes[box] = player
            changes += box != last
            last = box
        key, player = next_key, to
        depth += 1
        frame_next[depth] = 0
        if on_target == 0 and changes * displacement > best_score:
            best_score = changes * displacement
            best[0] = player
            best[1:] = boxes
    return best_score


@numba.njit(cache=True)
def _distance(a, b, width):
    return abs(a // width - b // width) + abs(a % width - b % width)


@numba.njit(cache=True)
def _reachable(start, blocked, width):
    """The cells that a player can walk to from `start`, as a flag a cell."""
    reached = np.zeros(len(blocked), np.bool_)
    queue = np.empty(len(blocked), np.int64)
    queue[0], reached[start] = start, True
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for to in (cell - width, cell + width, cell - 1, cell + 1):
            if not blocked[to] and not reached[to]:
                reached[to] = True
                queue[tail] = to
                tail += 1
    return reached


@numba.njit(cache=True)
def _write(random, floor, targets, best, width, out):
    """Draw the level, its agent uniform over the cells it can reach that are not targets."""
    for cell in range(len(floor)):
        out[cell] = tiles.EMPTY if floor[cell] else tiles.WALL
    blocked = floor == 0
    for box in best[1:]:
        out[box] = tiles.BOX
        blocked[box] = True
    candidate = _reachable(best[0], blocked, width)
    for target in targets:
        out[target] = tiles.TARGET
        candidate[target] = False
    places = np.flatnonzero(candidate)
    if len(places) == 0:
        return False
    out[places[below(random, len(places))]] = tiles.AGENT
    return True


@numba.njit(cache=True, nogil=True)
def generate_levels(seed, first, height, width, num_boxes, max_depth, max_states, max_attempts, out):
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
        for _ in range(max_attempts):
            _carve(random, height, width, floor)
            if not _place(random, floor, places):
                continue
            targets = places[1:]
            score = _reverse_play(random, floor, targets, places[0], width, max_depth, max_states, visited, best)
            if score > 0 and _write(random, floor, targets, best, width, out[i]):
                made = True
                break
        failures += not made
    return failures
