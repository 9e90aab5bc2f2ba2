"""The solver and the action tables, against breadth-first search in plain Python."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.sokoban import Sokoban, UniformLevels, generate, read_levels, solve, tabulate, tiles
from coulda.environments.sokoban.solver import SOLVED, UNKNOWN, UNSOLVABLE
from coulda.pomdp import GumbelMaxChoice
from tests.conftest import FIXTURES

MOVES = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}


class Reference:
    """Sokoban on sets of coordinates; shares no code and no representation with the library."""

    def __init__(self, level: np.ndarray, num_boxes: int):
        cells = {(r, c): int(t) for (r, c), t in np.ndenumerate(level)}
        self.floor = {p for p, t in cells.items() if t != tiles.WALL}
        self.targets = frozenset(p for p, t in cells.items() if t in (3, 5, 6))
        self.boxes = frozenset(p for p, t in cells.items() if t in (2, 5))
        agents = sorted(p for p, t in cells.items() if t in (4, 6))
        self.agent = agents[0] if agents else None
        self.num_boxes = num_boxes

    def solved(self, boxes):
        return len(boxes & self.targets) >= self.num_boxes

    def step(self, agent, boxes, action):
        if agent is None or action not in MOVES or self.solved(boxes):
            return agent, boxes
        (dr, dc), (r, c) = MOVES[action], agent
        there, behind = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
        if there not in self.floor:
            return agent, boxes
        if there in boxes:
            if behind not in self.floor or behind in boxes:
                return agent, boxes
            boxes = boxes - {there} | {behind}
        return there, boxes

    def distances(self):
        """Moves to go from every state that can be reached from the start, by backward induction over the graph."""
        start = (self.agent, self.boxes)
        before, queue = {start: set()}, deque([start])
        while queue:
            state = queue.popleft()
            for action in MOVES:
                following = self.step(*state, action)
                if following not in before:
                    before[following] = set()
                    queue.append(following)
                before[following].add(state)
        distance = {state: 0 for state in before if self.solved(state[1])}
        queue = deque(distance)
        while queue:
            state = queue.popleft()
            for source in before[state]:
                if source not in distance:
                    distance[source] = distance[state] + 1
                    queue.append(source)
        return before, distance


def replay(levels, actions, num_boxes):
    _, height, width = levels.shape
    model = Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(5),
        height=height,
        width=width,
        num_boxes=num_boxes,
    )

    def play(level, sequence):
        return jax.lax.scan(lambda s, a: (model.transition(s, a, ()), s), model.initial(level), sequence)[0]

    last = jax.jit(jax.vmap(play))(jnp.asarray(levels), jnp.asarray(actions))
    return np.asarray(jax.vmap(model.solved)(last))


def random_grids(n: int, height: int, width: int, seed: int) -> np.ndarray:
    """Grids of tiles drawn independently, so mostly malformed, with one or two agents in most."""
    rng = np.random.default_rng(seed)
    return rng.choice(7, p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.02, 0.03], size=(n, height, width)).astype(np.uint8)


def test_optimal_on_generated_levels():
    levels = generate(jax.random.key(3), 60, 7, 7, 2)
    solutions = solve(levels, 2)
    for level, length in zip(levels, solutions.length, strict=True):
        reference = Reference(level, 2)
        _, distance = reference.distances()
        assert distance[reference.agent, reference.boxes] == length
    assert replay(levels, solutions.actions, 2).all()
    # A solution that stops one move early does not solve: shortest solutions end with the decisive push.
    last = solutions.length - 1
    short = solutions.actions.copy()
    short[np.arange(len(levels)), last] = tiles.NOOP
    assert not replay(levels, short, 2).any()


@pytest.mark.parametrize("num_boxes", [1, 2])
def test_exact_on_any_grid(num_boxes):
    """Malformed grids too: no agent, several, spare boxes and targets, open borders, solved at the start."""
    levels = random_grids(300, 4, 4, seed=num_boxes)
    solutions = solve(levels, num_boxes)
    seen = set()
    for i, level in enumerate(levels):
        reference = Reference(level, num_boxes)
        if reference.agent is None:
            assert solutions.status[i] == UNSOLVABLE
            continue
        _, distance = reference.distances()
        expected = distance.get((reference.agent, reference.boxes))
        assert solutions.status[i] == (UNSOLVABLE if expected is None else SOLVED)
        assert solutions.length[i] == (-1 if expected is None else expected)
        seen.add((solutions.status[i], expected is not None and expected > 0))
    assert {(UNSOLVABLE, False), (SOLVED, False), (SOLVED, True)} <= seen
    solved = solutions.status == SOLVED
    assert replay(levels[solved], solutions.actions[solved], num_boxes).all()


def test_a_limit_is_reported_as_unknown():
    levels = generate(jax.random.key(4), 20)
    short = solve(levels, 3, node_limit=10)
    assert (short.status == UNKNOWN).sum() > 10
    assert (short.length[short.status == UNKNOWN] == -1).all()
    many_targets = tiles.from_text("#" * 14 + "\n#@$..........#\n#            #\n" + "#" * 14)
    assert solve(many_targets[None], 1).status[0] == SOLVED
    assert solve(np.concatenate([many_targets, many_targets[1:]])[None], 1).status[0] == UNKNOWN


def test_real_levels():
    levels = read_levels(FIXTURES / "boxoban_unfiltered_test.txt", num_boxes=4)[:60]
    solutions = solve(levels, 4)
    assert (solutions.status == SOLVED).all()
    assert replay(levels, solutions.actions, 4).all()


def check_table(levels, num_boxes):
    """Every reachable state of every level: the table's actions are those that bring the end one move nearer."""
    table = tabulate(levels, num_boxes)
    lookup = jax.jit(jax.vmap(table.optimal))
    checked = 0
    for i, level in enumerate(levels):
        reference = Reference(level, num_boxes)
        if reference.agent is None:
            continue
        before, distance = reference.distances()
        states = list(before)
        grids = np.stack([draw(reference, *state) for state in states])
        size = 1 << (len(grids) - 1).bit_length()  # few sizes, few compilations
        found = np.asarray(lookup(np.full(size, i), np.resize(grids, (size, 8, 8))))[: len(grids)]
        for state, optimal in zip(states, found, strict=True):
            left = distance.get(state)
            following = [distance.get(reference.step(*state, action)) for action in MOVES]
            expected = [left is not None and left > 0 and d == left - 1 for d in following]
            assert optimal.tolist() == [*expected, left == 0], (i, state)
            checked += 1
    return checked


def draw(reference, agent, boxes):
    grid = np.full(
        (max(r for r, _ in reference.floor) + 1, max(c for _, c in reference.floor) + 1), tiles.WALL, np.uint8
    )
    grid = np.pad(grid, ((0, 8 - grid.shape[0]), (0, 8 - grid.shape[1])), constant_values=tiles.WALL)
    for place in reference.floor:
        on_target = place in reference.targets
        if place in boxes:
            grid[place] = tiles.BOX_ON_TARGET if on_target else tiles.BOX
        elif place == agent:
            grid[place] = tiles.AGENT_ON_TARGET if on_target else tiles.AGENT
        else:
            grid[place] = tiles.TARGET if on_target else tiles.EMPTY
    return grid


@pytest.mark.slow
def test_action_table_is_exact_in_every_state():
    assert check_table(generate(jax.random.key(5), 6, 8, 8, 2), 2) > 10_000


def test_action_table_on_any_grid():
    grids = np.pad(random_grids(40, 4, 4, seed=7), ((0, 0), (0, 4), (0, 4)), constant_values=tiles.WALL)
    boxes, agents = (f(grids).sum((1, 2)) for f in (tiles.has_box, tiles.has_agent))
    assert check_table(grids[(agents == 1) & (boxes <= 4)], 1) > 500


def test_action_table_knows_what_it_has_not():
    levels = generate(jax.random.key(6), 3, 7, 7, 1)
    nobody = levels.copy()
    nobody[tiles.has_agent(nobody)] = tiles.EMPTY
    assert not np.asarray(jax.vmap(tabulate(nobody, 1).optimal)(np.arange(3), nobody)).any()
    table = tabulate(levels, 1, max_states=10)
    assert (np.asarray(table.offset) == -1).all()
    assert not np.asarray(jax.vmap(table.optimal)(np.arange(3), levels)).any()


def test_the_expert_solves_in_the_fewest_moves():
    levels = generate(jax.random.key(7), 8)
    table, solutions = tabulate(levels, 3), solve(levels, 3)
    model = Sokoban(levels=UniformLevels(levels), action_mechanism=GumbelMaxChoice(5))

    def play(i, level):
        def step(state, _):
            following = model.transition(state, jnp.argmax(table.optimal(i, state)), ())
            return following, ~model.terminal(state)

        last, live = jax.lax.scan(step, model.initial(level), length=100)
        return model.solved(last), jnp.sum(live)

    solved, moves = jax.jit(jax.vmap(play))(jnp.arange(8), jnp.asarray(levels))
    assert solved.all()
    np.testing.assert_array_equal(moves, solutions.length)
