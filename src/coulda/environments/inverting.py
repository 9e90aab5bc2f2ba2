"""p(U | h) of a taped environment by going through its draws, where they take separate values or can be solved for.

A watched draw tells at which values of its number the result changes: all that `integers`, `choice`, `poisson` and the
like can give, and all that a `random()` was compared with. So the numbers of a step fall into boxes, in each of which
the same happens; a box is run once, in its middle. What goes on continuously in a box is solved for by Newton's method,
such as an initial state. Boxes that make what was logged are explanations; those that leave the environment in the same
state are one from then on. That is a filter over the states the environment may be in, and scenarios are drawn
backwards.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

from coulda.environments.host_playing import Program
from coulda.environments.remembered import Memory
from coulda.environments.tape import GRAIN
from coulda.environments.taping import GENERATOR, taped_reset, taped_step
from coulda.errors import CouldaError
from coulda.scales import unit_of

MOST_RUNS = 5_000
"""Of one step of one state: with more boxes than these other ways of inference are quicker."""
MOST_OF_ALL = 20_000
"""Of one step of all states together, likewise."""
MOST_STATES = 256
"""In which the environment may be at a step, as far as what was seen tells."""
SAME = 1e-5
"""Of what was seen, in parts of its size: logs may have passed through another float type."""
SLOPE, ITERATIONS = 1e-3, 12
"""The step of a finite difference, and Newton's steps."""

Box = tuple[tuple[float, float], ...]
"""Of each number that was used, the interval."""


class Seen(NamedTuple):
    """What a step made, or was logged to make."""

    observation: list[np.ndarray]
    reward: float
    ended: bool


@dataclass
class State:
    """A state that the environment may be in after a step."""

    rows: list[np.ndarray]
    """One tape that leads there, a row for the reset and each step."""
    arrivals: list[tuple[int, Box, float]] = field(default_factory=list)
    """From which state before, by which numbers, with which weight."""
    weight: float = 0.0


class Leaf(NamedTuple):
    """Numbers of a step that make the same, and what."""

    box: Box
    seen: Seen
    solved: tuple[int, ...]
    """Numbers with which the result changes continuously."""
    scales: list[str | None]


class Walker:
    """One environment, brought to any step of any tape."""

    def __init__(self, program: Program):
        self.program, self.env = program, program.made()
        self.memory = Memory(self.env)
        self.rows: list[np.ndarray] = []
        self.careful = False
        """Whether numbers that were compared with something are also tried for other uses."""
        self.unit = np.ones(1)
        """Of the episode: what each number that is seen is compared with near 0, the reward last."""
        self.runs = 0
        """Since a step was begun to be explained."""
        self.resets: list[Leaf] | None = None
        """Of the reset, which is the same in each episode."""

    def make(self, before: list[np.ndarray], row: np.ndarray, actions: Any) -> tuple[Seen, list[set[float]], list[Any]]:
        """What the last row makes after those before; where draws may be cut, and their scales."""
        self.runs += 1
        if not before:
            observation, reward, ended = taped_reset(self.env, row, watch=True), 0.0, False
        else:
            if not self._stands(before):
                taped_reset(self.env, before[0])
                for t, old in enumerate(before[1:]):
                    taped_step(self.env, self._action(actions, t), old)
            action = self._action(actions, len(before) - 1)
            observation, reward, terminated, truncated, _ = taped_step(self.env, action, row, watch=True)
            ended = bool(terminated) or (bool(truncated) and len(before) < self.program.horizon)
        self.rows = [*before, row]
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(observation)]
        return Seen([leaf.copy() for leaf in leaves], float(reward), ended), GENERATOR.cuts, GENERATOR.scales

    def _stands(self, rows: list[np.ndarray]) -> bool:
        """Whether these very rows, no copies, were the last to be made."""
        return len(self.rows) == len(rows) and all(a is b for a, b in zip(self.rows, rows, strict=True))

    def _action(self, actions: Any, t: int) -> Any:
        example = self.program.examples[1]
        if isinstance(example, np.ndarray) and example.ndim == 0:
            return actions[0][t].item()
        return jax.tree.unflatten(jax.tree.structure(example), [leaf[t] for leaf in actions])


_walkers: dict[int, Walker] = {}


def invert_episode(program: Program, *leaves: Any, careful: bool = False) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Scenarios that explain one episode, `[count, ...]`; log p(h); and the first step that nothing explains.

    Args:
        program: of the taped environment.
        leaves: observations `[T + 1, ...]`, actions `[T, ...]`, rewards, live, t, fresh noise of the reset and of
            steps, dice `[count, T + 1]`.
        careful: whether to make sure that a draw which was compared with something has no other use.
    """
    walker = _walkers.get(id(program)) or _walkers.setdefault(id(program), Walker(program))
    walker.careful = careful
    seen = len(jax.tree.leaves(program.examples[0]))
    *both, reward, live, steps, first, rest, dice = leaves
    observed, actions = both[:seen], both[seen:]
    length = int(live.sum())
    known = min(int(steps), length + 1)
    first, rest, log_evidence = first.copy(), rest.copy(), 0.0
    walker.unit = _units(observed, reward, known)
    layers: list[list[State]] = []
    for t in range(known):
        paid, ended = float(reward[t - 1]) if t else 0.0, t == length < program.horizon
        logged = Seen([leaf[t] for leaf in observed], paid, ended)
        layer = _next(walker, layers[-1] if layers else None, logged, actions, t == length)
        if not layer:
            return first, rest, np.float32(-np.inf), np.int32(t)
        log_evidence += _normalize(layer)
        layers.append(layer)
    for i in range(len(first)):
        _draw(layers, first[i], rest[i], dice[i])
    boxes = [box for layer in layers for state in layer for _, box, _ in state.arrivals]
    solved = any(low == high for box in boxes for low, high in box)
    return first, rest, np.float32(np.nan if solved else log_evidence), np.int32(-1)


def _units(observed: list[np.ndarray], reward: np.ndarray, known: int) -> np.ndarray:
    """What numbers near 0 are compared with, as far as so many observations tell; the reward last."""
    rows = [leaf[:known].reshape(known, math.prod(leaf.shape[1:])).astype(float) for leaf in observed]
    return np.concatenate([*(unit_of(row, axis=0)[0] for row in rows), [unit_of(reward[: max(known - 1, 0)])]])


def _normalize(layer: list[State]) -> float:
    """Let the weights of states sum to one; the log of what they summed to."""
    total = sum(state.weight for state in layer)
    for state in layer:
        state.weight /= total
        state.arrivals = [(number, box, weight / total) for number, box, weight in state.arrivals]
    return math.log(total)


def _next(walker: Walker, before: list[State] | None, logged: Seen, actions: Any, last: bool) -> list[State]:
    """The states that may follow, with what was logged of them."""
    found: list[tuple[int, list[np.ndarray], Box, bool, float]] = []
    walker.runs = 0
    for number, state in enumerate(before or [State([], weight=1.0)]):
        for leaf in _leaves(walker, state.rows, actions):
            explained = _explained(walker, state.rows, leaf, logged, actions)
            if explained is not None:
                box, row, density, ended = explained
                found.append((number, [*state.rows, row], box, ended, state.weight * density))
    if not last:
        found = [one for one in found if not one[3]]
    elif logged.ended:
        # The log may stop before the environment does: where it must have, the end says nothing.
        found = [one for one in found if one[3]] or found
    states: dict[Any, State] = {}
    for index, (number, rows, box, _, weight) in enumerate(found):
        signature: Any = index
        if len(found) > 1:
            walker.make(rows[:-1], rows[-1], actions)
            signature = walker.memory.now() or index
        state = states.setdefault(signature, State(rows))
        state.arrivals.append((number, box, weight))
        state.weight += weight
    if len(states) > MOST_STATES:
        raise CouldaError(
            f"after step {len(found[0][1]) - 1} the environment may be in {len(states)} states, and more than "
            f"{MOST_STATES} cannot be followed; infer by another source (Tempered, or one that is trained)"
        )
    return list(states.values())


def _leaves(walker: Walker, before: list[np.ndarray], actions: Any) -> list[Leaf]:
    """All boxes of numbers that a step may use, each with what it makes in its middle."""
    if not before and walker.resets is not None:
        return walker.resets
    size = (walker.program.examples[2] if not before else walker.program.examples[3]).size
    found: list[Leaf] = []
    waiting: list[Box] = [()]
    runs = 0
    while waiting:
        box = waiting.pop()
        runs += 1
        if runs > MOST_RUNS or walker.runs > MOST_OF_ALL:
            many = (
                f"more than {MOST_RUNS:,} outcomes" if runs > MOST_RUNS else "outcomes that take too long to go through"
            )
            raise CouldaError(f"a step of {walker.program.name} has {many}; infer by another source")
        seen, cuts, scales = walker.make(before, _row(box, size), actions)
        parts = list(box)
        for k, places in enumerate(cuts):
            low, high = parts[k] if k < len(parts) else (0.0, 1.0)
            inside = sorted(cut for cut in places if low + GRAIN < cut < high - GRAIN)
            if inside:
                edges = [low, *inside, high]
                waiting += [(*parts[:k], pair) for pair in itertools.pairwise(edges)]
                break
            if k >= len(parts):
                parts.append((low, high))
        else:
            whole = tuple(parts)
            leaf = Leaf(whole, seen, _solved(walker, before, whole, seen, scales, cuts, actions), list(scales))
            if not found and leaf.solved:
                _Solving(walker, before, leaf, actions, size).slopes()  # what cannot be solved for is refused at once
            found.append(leaf)
    if not before:
        walker.resets = found
    return found


def _solved(
    walker: Walker,
    before: list[np.ndarray],
    box: Box,
    seen: Seen,
    scales: list[str | None],
    cuts: list[set[float]],
    actions: Any,
) -> tuple[int, ...]:
    """The numbers within a box with which what is made changes, though nothing was compared with them.

    The environment stands where the middle of the box has left it.
    """
    size = (walker.program.examples[2] if not before else walker.program.examples[3]).size
    tried = [k for k, scale in enumerate(scales) if scale is not None and (walker.careful or not cuts[k])]
    found, kept = [], walker.memory.now() if tried else None
    for k in tried:
        for share in (0.31, 0.77):
            other, _, _ = walker.make(before, _row(box, size, {k: share}), actions)
            if not _close(_numbers(other), _numbers(seen), 0.0):
                found.append(k)
                break
            if kept is None or walker.memory.now() != kept:
                raise CouldaError(
                    f"number {k} of a {'step' if before else 'reset'} of {walker.program.name} is not seen at once but "
                    "may be remembered, so that it cannot be solved for; infer by another source"
                )
    return tuple(found)


def _explained(
    walker: Walker, before: list[np.ndarray], leaf: Leaf, logged: Seen, actions: Any
) -> tuple[Box, np.ndarray, float, bool] | None:
    """The part of a box that makes what was logged, a row in it, its weight, and the end; None where it does not."""
    size = (walker.program.examples[2] if not before else walker.program.examples[3]).size
    mass = math.prod(high - low for k, (low, high) in enumerate(leaf.box) if k not in leaf.solved)
    if not leaf.solved:
        same = _equal(leaf.seen, logged, walker.unit)
        return (leaf.box, _row(leaf.box, size), mass, leaf.seen.ended) if same else None
    solution = _newton(_Solving(walker, before, leaf, actions, size), logged)
    if solution is None:
        return None
    numbers, density, seen = solution
    box = tuple((numbers[k], numbers[k]) if k in numbers else part for k, part in enumerate(leaf.box))
    return box, _row(box, size), mass * density, seen.ended


class _Solving(NamedTuple):
    """The continuous numbers of a box, to be solved for."""

    walker: Walker
    before: list[np.ndarray]
    leaf: Leaf
    actions: Any
    size: int

    @property
    def scales(self) -> list[str | None]:
        """Of the numbers."""
        return [self.leaf.scales[k] for k in self.leaf.solved]

    @property
    def middle(self) -> np.ndarray:
        """Where to begin."""
        return np.array([0.5 if s == "uniform" else 0.0 for s in self.scales])

    def at(self, place: np.ndarray) -> tuple[np.ndarray, Seen, dict[int, float]]:
        """What is made at a place, as numbers and as seen; and the numbers of the tape there."""
        chosen = {k: _to_number(c, s) for k, c, s in zip(self.leaf.solved, place, self.scales, strict=True)}
        seen = self.made(chosen)
        return _numbers(seen), seen, chosen

    def made(self, chosen: dict[int, float]) -> Seen:
        """What these numbers make, all others in the middle."""
        box = tuple((chosen[k], chosen[k]) if k in chosen else part for k, part in enumerate(self.leaf.box))
        return self.walker.make(self.before, _row(box, self.size), self.actions)[0]

    def slopes(self, place: np.ndarray | None = None) -> np.ndarray:
        """∂o/∂u; in the middle it must tell the numbers apart."""
        at = self.middle if place is None else place
        steps = SLOPE * np.eye(len(at))
        found = np.stack([(self.at(at + step)[0] - self.at(at - step)[0]) / (2 * SLOPE) for step in steps], 1)
        lengths = np.linalg.norm(found, axis=0)
        if place is None and (lengths.min() == 0 or np.linalg.matrix_rank(found / lengths, tol=1e-6) < len(at)):
            raise CouldaError(
                f"numbers {list(self.leaf.solved)} of a {'step' if self.before else 'reset'} of "
                f"{self.walker.program.name} are seen only together, so that they cannot be solved for; infer by "
                "another source"
            )
        return found


def _newton(solving: _Solving, logged: Seen) -> tuple[dict[int, float], float, Seen] | None:
    """Numbers that make the logged observation, and 1 / |∂o/∂u|, the weight of that solution."""
    scales, target = solving.scales, _numbers(logged)
    place, matrix, unit = solving.middle, solving.slopes(), solving.walker.unit
    for _ in range(ITERATIONS):
        made, _, _ = solving.at(place)
        if _close(made, target, 1e-7, unit):
            break
        place = place + np.linalg.lstsq(matrix, target - made, rcond=None)[0]
        place = np.clip(place, *((0.0, 1.0) if set(scales) == {"uniform"} else (-6.0, 6.0)))
        if not _close(made, target, 1e-2, unit):
            matrix = solving.slopes(place)
    made, seen, chosen = solving.at(place)
    # Draws of the tape are multiples of 2⁻²³: the nearest of them is the very one, where it was one.
    snapped = {k: round(u / (2 * GRAIN)) * 2 * GRAIN for k, u in chosen.items()}
    again = solving.made(snapped)
    if _equal(again, seen, unit) and np.abs(_numbers(again) - target).max() <= np.abs(made - target).max():
        chosen, seen = snapped, again
    if not _equal(seen, logged, unit):
        return None
    widths = [
        1.0 if s == "uniform" else math.exp(-0.5 * c * c) / math.sqrt(2 * math.pi)
        for c, s in zip(place, scales, strict=True)
    ]
    return chosen, math.prod(widths) / math.sqrt(np.linalg.det(matrix.T @ matrix)), seen


def _to_number(place: float, scale: str | None) -> float:
    u = place if scale == "uniform" else (special.ndtr(place) - GRAIN) / (1 - 2 * GRAIN)
    return float(np.clip(u, 0.0, 1 - 2 * GRAIN))


def _numbers(seen: Seen) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in seen.observation] + [np.array([seen.reward])])


def _equal(a: Seen, b: Seen, unit: np.ndarray) -> bool:
    """Whether they are the same, but for the end; what is missing in the second is equal to anything."""
    return _close(_numbers(a), _numbers(b), SAME, unit)


def _close(a: np.ndarray, b: np.ndarray, tolerance: float, unit: np.ndarray | float = 1.0) -> bool:
    return bool(((np.abs(a - b) <= tolerance * (unit + np.abs(b))) | np.isnan(b) | (a == b)).all())


def _row(box: Box, size: int, shares: dict[int, float] | None = None) -> np.ndarray:
    """A row of the tape in a box: in the middle, or at a share of an interval."""
    row = np.full(size, 0.5, np.float32)
    for k, (low, high) in enumerate(box):
        row[k] = low + (high - low) * (shares or {}).get(k, 0.5)
    return row


def _draw(layers: list[list[State]], first: np.ndarray, rest: np.ndarray, dice: np.ndarray) -> None:
    """Carry fresh noise to a scenario that explains the episode, backwards."""
    number = 0
    for t in reversed(range(len(layers))):
        ends = layers[t] if t == len(layers) - 1 else [layers[t][number]]
        options = [arrival for state in ends for arrival in state.arrivals]
        edges = np.cumsum([weight for _, _, weight in options])
        chosen = int(np.searchsorted(edges, dice[t] * edges[-1], side="right"))
        number, box, _ = options[min(chosen, len(options) - 1)]
        row = first if t == 0 else rest[t - 1]
        for k, (low, high) in enumerate(box):
            row[k] = _inside(low, high, float(row[k]))


def _inside(low: float, high: float, fresh: float) -> np.float32:
    """The place of a fresh number within [low, high), in single precision."""
    if low == 0.0 and high == 1.0:
        return np.float32(fresh)
    found = np.float32(low + (high - low) * fresh)
    if found >= high > low:
        return np.nextafter(np.float32(high), np.float32(0))
    return np.nextafter(found, np.float32(1)) if found < low < high else found
