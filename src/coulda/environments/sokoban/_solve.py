"""The compiled half of the solver; see `solver` for what it does."""

from typing import Any

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban._random import mix
from coulda.extras import require

numba = require("numba", extra="sokoban")

SOLVED, UNSOLVABLE, UNKNOWN = 0, 1, 2
MAX_TARGETS = 10
_FAR = 1 << 20


@numba.njit(cache=True)
def neighbors(height, width):
    """`[cells, 4]`: the cell up, down, left and right of each, -1 outside the grid."""
    result = np.full((height * width, 4), -1, np.int64)
    for cell in range(height * width):
        row, column = cell // width, cell % width
        if row > 0:
            result[cell, 0] = cell - width
        if row < height - 1:
            result[cell, 1] = cell + width
        if column > 0:
            result[cell, 2] = cell - 1
        if column < width - 1:
            result[cell, 3] = cell + 1
    return result


@numba.njit(cache=True)
def parse(level):
    """(floor flags, cells of the boxes, cells of the targets, first agent or -1) of a flat level."""
    num_boxes, num_targets, agent = 0, 0, -1
    for cell in range(len(level)):
        tile = level[cell]
        num_boxes += tile == tiles.BOX or tile == tiles.BOX_ON_TARGET
        num_targets += tile == tiles.TARGET or tile == tiles.BOX_ON_TARGET or tile == tiles.AGENT_ON_TARGET
        if agent < 0 and (tile == tiles.AGENT or tile == tiles.AGENT_ON_TARGET):
            agent = cell
    boxes, targets = np.empty(num_boxes, np.int64), np.empty(num_targets, np.int64)
    b, t = 0, 0
    for cell in range(len(level)):
        tile = level[cell]
        if tile == tiles.BOX or tile == tiles.BOX_ON_TARGET:
            boxes[b] = cell
            b += 1
        if tile == tiles.TARGET or tile == tiles.BOX_ON_TARGET or tile == tiles.AGENT_ON_TARGET:
            targets[t] = cell
            t += 1
    return level != tiles.WALL, boxes, targets, agent


@numba.njit(cache=True)
def _push_distances(floor, targets, near):
    """`[targets, cells]`: the fewest pushes that bring a lone box from a cell to a target, or _FAR."""
    num_cells = len(floor)
    distance = np.full((len(targets), num_cells), _FAR, np.int64)
    queue = np.empty(num_cells, np.int64)
    for t in range(len(targets)):
        distance[t, targets[t]] = 0
        queue[0] = targets[t]
        head, tail = 0, 1
        while head < tail:
            cell = queue[head]
            head += 1
            for d in range(4):
                # The box was pulled from `cell` to `back` by a player who stepped on to `stand`.
                back = near[cell, d]
                if back < 0 or not floor[back] or distance[t, back] < _FAR:
                    continue
                stand = near[back, d]
                if stand >= 0 and floor[stand]:
                    distance[t, back] = distance[t, cell] + 1
                    queue[tail] = back
                    tail += 1
    return distance


@numba.njit(cache=True)
def _pushes_left(boxes, distance, needed, cost):
    """The least total of push distances that puts `needed` boxes on different targets: a consistent lower bound.

    Dynamic programming over sets of targets; `cost` is scratch of size 2^targets. At least _FAR when impossible.
    """
    num_targets = len(distance)
    size = 1 << num_targets
    cost[:size] = _FAR
    cost[0] = 0
    for box in boxes:
        # Downwards, so that a box is used once.
        for used in range(size - 1, 0, -1):
            best = cost[used]
            for t in range(num_targets):
                if used >> t & 1:
                    best = min(best, cost[used ^ (1 << t)] + distance[t, box])
            cost[used] = best
    least = _FAR
    for used in range(size):
        count, rest = 0, used
        while rest:
            rest &= rest - 1
            count += 1
        if count == needed:
            least = min(least, cost[used])
    return least


@numba.njit(cache=True)
def _walk(start, floor, occupied, near, distance, queue):
    """Fill `distance[cells]` with the player's steps from `start`, -1 where it cannot go."""
    distance[:] = -1
    distance[start] = 0
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for d in range(4):
            to = near[cell, d]
            if to >= 0 and floor[to] and not occupied[to] and distance[to] < 0:
                distance[to] = distance[cell] + 1
                queue[tail] = to
                tail += 1


@numba.njit(cache=True)
def _frozen(cell, floor, occupied, is_target, near):
    """Whether the box just pushed to `cell` is in a 2×2 block of walls and boxes with some box off its target."""
    for vertical in range(2):
        for horizontal in range(2, 4):
            a, b = near[cell, vertical], near[cell, horizontal]
            c = near[a, horizontal] if a >= 0 else -1
            stuck, loose = True, not is_target[cell]
            for other in (a, b, c):
                if other >= 0 and floor[other]:
                    stuck &= occupied[other]
                    loose |= occupied[other] and not is_target[other]
            if stuck and loose:
                return True
    return False


@numba.njit(cache=True)
def _state_key(boxes, player):
    key = mix(np.uint64(2 * player + 1))
    for box in boxes:
        key ^= mix(np.uint64(2 * box + 2))
    return key


@numba.njit(cache=True)
def _find(table, keys, node_boxes, node_player, key, boxes, player):
    """The slot that holds this state, or the empty slot where it belongs (exact: hashes only guide)."""
    mask = np.uint64(len(table) - 1)
    slot = key & mask
    while table[slot] >= 0:
        node = table[slot]
        if keys[node] == key and node_player[node] == player:
            same = True
            for i in range(len(boxes)):
                same &= node_boxes[node, i] == boxes[i]
            if same:
                break
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@numba.njit(cache=True)
def _grow(array: Any, size: int) -> Any:
    larger = np.empty((size, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@numba.njit(cache=True)
def _moved(boxes, index, to, out):
    """Copy sorted `boxes` with box `index` moved to cell `to`, sorted again."""
    out[:] = boxes
    i = index
    while i > 0 and out[i - 1] > to:
        out[i] = out[i - 1]
        i -= 1
    while i < len(out) - 1 and out[i + 1] < to:
        out[i] = out[i + 1]
        i += 1
    out[i] = to


@numba.njit(cache=True, nogil=True)
def solve_level(level, height, width, needed, node_limit):
    """A* over pushes, optimal in moves.

    A node is the state after a push: the boxes, and the player where the box was. An edge costs the walk plus the
    push. Returns (status, actions `uint8[length]`, nodes made).
    """
    nothing = np.empty(0, np.uint8)
    floor, boxes, targets, agent = parse(level)
    num_cells, num_boxes = len(level), len(boxes)
    is_target = np.zeros(num_cells, np.bool_)
    is_target[targets] = True
    if agent < 0:
        return UNSOLVABLE, nothing, 0
    if is_target[boxes].sum() >= needed:
        return SOLVED, nothing, 0
    if min(num_boxes, len(targets)) < needed:
        return UNSOLVABLE, nothing, 0
    if len(targets) > MAX_TARGETS:
        return UNKNOWN, nothing, 0
    near = neighbors(height, width)
    push_distance = _push_distances(floor, targets, near)
    scratch = np.empty(1 << len(targets), np.int64)
    bound = _pushes_left(boxes, push_distance, needed, scratch)
    if bound >= _FAR:
        return UNSOLVABLE, nothing, 1

    size = 1024
    node_boxes, node_player = np.empty((size, num_boxes), np.int16), np.empty(size, np.int16)
    keys, moves, bounds = np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32)
    parent, push = np.empty(size, np.int32), np.empty(size, np.uint8)
    table = np.full(4 * size, -1, np.int32)
    node_boxes[0], node_player[0] = boxes, agent
    keys[0], moves[0], bounds[0], parent[0] = _state_key(boxes, agent), 0, bound, -1
    table[_find(table, keys, node_boxes, node_player, keys[0], boxes, agent)] = 0
    num_nodes = 1
    # A bucket queue: entries of equal estimate form a linked list, the newest first.
    bucket = np.full(256, -1, np.int32)
    entry_node, entry_moves, entry_next = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    entry_node[0], entry_moves[0], entry_next[0] = 0, 0, -1
    bucket[bound], num_entries = 0, 1
    estimate = bound

    occupied = np.zeros(num_cells, np.bool_)
    walk, queue = np.empty(num_cells, np.int64), np.empty(num_cells, np.int64)
    current, following = np.empty(num_boxes, np.int64), np.empty(num_boxes, np.int64)
    while estimate < len(bucket):
        entry = bucket[estimate]
        if entry < 0:
            estimate += 1
            continue
        bucket[estimate] = entry_next[entry]
        node = entry_node[entry]
        if entry_moves[entry] != moves[node]:
            continue  # a shorter way was found since
        if bounds[node] == 0:
            return SOLVED, _actions(node, node_boxes, node_player, parent, push, floor, near, moves[node]), num_nodes
        current[:] = node_boxes[node]
        occupied[current] = True
        _walk(node_player[node], floor, occupied, near, walk, queue)
        for i in range(num_boxes):
            box = current[i]
            for d in range(4):
                stand, to = near[box, d ^ 1], near[box, d]
                if stand < 0 or to < 0 or walk[stand] < 0 or not floor[to] or occupied[to]:
                    continue
                _moved(current, i, to, following)
                cost = moves[node] + walk[stand] + 1
                key = _state_key(following, box)
                slot = _find(table, keys, node_boxes, node_player, key, following, box)
                child = table[slot]
                if child >= 0:
                    if cost >= moves[child]:
                        continue
                else:
                    bound = _pushes_left(following, push_distance, needed, scratch)
                    occupied[box], occupied[to] = False, True
                    # With boxes to spare a frozen one is no loss.
                    dead = bound >= _FAR or (num_boxes == needed and _frozen(to, floor, occupied, is_target, near))
                    occupied[box], occupied[to] = True, False
                    if dead:
                        continue
                    if num_nodes == node_limit:
                        return UNKNOWN, nothing, num_nodes
                    if num_nodes == size:
                        size *= 2
                        node_boxes, node_player = _grow(node_boxes, size), _grow(node_player, size)
                        keys, moves, bounds = _grow(keys, size), _grow(moves, size), _grow(bounds, size)
                        parent, push = _grow(parent, size), _grow(push, size)
                        table = np.full(4 * size, -1, np.int32)
                        mask = np.uint64(4 * size - 1)
                        for other in range(num_nodes):
                            place = keys[other] & mask
                            while table[place] >= 0:
                                place = (place + np.uint64(1)) & mask
                            table[place] = other
                        slot = _find(table, keys, node_boxes, node_player, key, following, box)
                    child = num_nodes
                    num_nodes += 1
                    table[slot] = child
                    node_boxes[child], node_player[child] = following, box
                    keys[child], bounds[child] = key, bound
                moves[child], parent[child], push[child] = cost, node, d
                if num_entries == len(entry_node):
                    entry_node, entry_moves = _grow(entry_node, 2 * num_entries), _grow(entry_moves, 2 * num_entries)
                    entry_next = _grow(entry_next, 2 * num_entries)
                total = cost + bounds[child]
                while total >= len(bucket):
                    old = len(bucket)
                    bucket = _grow(bucket, 2 * old)
                    bucket[old:] = -1
                entry_node[num_entries], entry_moves[num_entries] = child, cost
                entry_next[num_entries] = bucket[total]
                bucket[total] = num_entries
                num_entries += 1
        occupied[current] = False
    return UNSOLVABLE, nothing, num_nodes


@numba.njit(cache=True)
def _actions(node, node_boxes, node_player, parent, push, floor, near, length):
    """Replay the pushes from the first node to `node`, filling in the walks between them, backwards."""
    actions = np.empty(length, np.uint8)
    occupied = np.zeros(len(floor), np.bool_)
    walk, queue = np.empty(len(floor), np.int64), np.empty(len(floor), np.int64)
    end = length
    while parent[node] >= 0:
        before, d = parent[node], push[node]
        end -= 1
        actions[end] = d
        boxes = node_boxes[before]
        occupied[boxes] = True
        cell = near[node_player[node], d ^ 1]  # where the player stood to push
        _walk(node_player[before], floor, occupied, near, walk, queue)
        while walk[cell] > 0:
            for back in range(4):
                previous = near[cell, back]
                if previous >= 0 and walk[previous] == walk[cell] - 1:
                    end -= 1
                    actions[end] = back ^ 1
                    cell = previous
                    break
        occupied[boxes] = False
        node = before
    return actions
