"""The picture of an SCM, in the style of the paper's Figure 1.

Noise is a circle, grey where its node is observed and white where it is not; a mechanism is a black
square; an intervened mechanism is a red square with its label, and the edges it no longer has are gone.
"""

import io
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coulda.errors import CouldaError
from coulda.extras import require
from coulda.noise import NoiseDistribution, Point
from coulda.scm.graph import Graph, topological_order

Position = tuple[float, float]

_BLACK, _GREY, _RED = "#1a1a1a", "#cfcfcf", "#c8312b"
_RADIUS = 0.27
_LETTER = 0.095
"""Half of what a letter of a label takes, about, at its size of 11 points on 0.85 inches a unit."""


@dataclass(frozen=True)
class Drawing:
    """A laid-out graph. `save("scm.svg")` or `save("scm.png")`; notebooks show it as it is."""

    positions: Mapping[str, Position]
    noise_positions: Mapping[str, Position]
    graph: Graph
    intervened: Mapping[str, str]
    observed: frozenset[str]
    exogenous: frozenset[str]

    def save(self, path: str | Path) -> Path:
        """Write the picture; the format is the file's ending (svg, png, pdf)."""
        path = Path(path)
        self._write(path, path.suffix.lstrip("."))
        return path

    def _repr_svg_(self) -> str:
        buffer = io.BytesIO()
        self._write(buffer, "svg")
        return buffer.getvalue().decode()

    def _write(self, target: Any, ending: str) -> None:
        matplotlib: Any = require("matplotlib", extra="plots")
        # The same graph gives the same bytes: no date, no random identifiers.
        with matplotlib.rc_context({"svg.hashsalt": "coulda"}):
            metadata = {"Date": None} if ending == "svg" else {}
            self._figure().savefig(target, format=ending, bbox_inches="tight", dpi=200, metadata=metadata)

    def _figure(self) -> Any:
        from matplotlib.figure import Figure

        everything = [*self.positions.values(), *self.noise_positions.values()]
        xs, ys = [x for x, _ in everything], [y for _, y in everything]
        width, height = max(xs) - min(xs) + 1.4, max(ys) - min(ys) + 1.4
        figure = Figure(figsize=(0.85 * width, 0.85 * height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(min(xs) - 0.7, max(xs) + 0.7), ylim=(min(ys) - 0.7, max(ys) + 0.7), aspect="equal")
        axes.axis("off")
        self._draw_edges(axes)
        for name, position in self.positions.items():
            self._draw_node(axes, name, position)
        for name, position in self.noise_positions.items():
            _circle(axes, position, _noise_label(name), grey=name in self.observed)
        return figure

    def _draw_edges(self, axes: Any) -> None:
        for child, parents in self.graph.items():
            for parent in parents:
                blocked = _blocked(self.positions, parent, child)
                start, end = self.positions[parent], self.positions[child]
                _arrow(axes, start, end, self._shape(parent), self._shape(child), bend=-0.5 if blocked else 0.0)
        for name, position in self.noise_positions.items():
            _arrow(axes, position, self.positions[name], _circle_shape(position), self._shape(name))

    def _shape(self, name: str) -> Any:
        """What an arrow to or from a node ends at."""
        (x, y), half = self.positions[name], _half_width(name)
        return _circle_shape((x, y), half) if name in self.exogenous else _box_shape(x, y, half)

    def _draw_node(self, axes: Any, name: str, position: Position) -> None:
        if name in self.exogenous:
            _circle(axes, position, _label(name), grey=name in self.observed, half=_half_width(name))
            return
        x, y = position
        color, half = _RED if name in self.intervened else _BLACK, _half_width(name)
        box = _box_shape(x, y, half)
        box.set(facecolor=color, edgecolor="none", zorder=3)
        axes.add_patch(box)
        axes.text(x, y, _label(name), color="white", ha="center", va="center", fontsize=11, zorder=4)
        if name in self.intervened:
            # On white, so that no arrow runs through it.
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            below = y - _RADIUS - 0.17
            axes.text(
                x, below, self.intervened[name], color=_RED, ha="center", va="center", fontsize=9, zorder=4, bbox=behind
            )


def draw(
    graph: Graph,
    noise: Mapping[str, NoiseDistribution],
    intervened: Mapping[str, str],
    observed: Collection[str],
    positions: Mapping[str, Position] | None,
) -> Drawing:
    """Lay the graph out: causes above effects, noise beside its mechanism."""
    if unknown := [name for name in [*observed, *(positions or {})] if name not in graph]:
        raise CouldaError(f"draw: unknown node {unknown}; the nodes are {list(graph)}.")
    placed = {**_layered(graph), **(positions or {})}
    # A root without an intervention *is* its noise (U_c and U_s1 in Figure 1).
    exogenous = frozenset(n for n, pa in graph.items() if not pa and n not in intervened)
    noisy = [
        name
        for name in graph
        if name not in exogenous
        and not isinstance(noise[name], Point)
        and not intervened.get(name, "").startswith(f"do({name} =")
    ]
    taken = dict(placed)
    noise_positions = {name: _free_place_beside(name, graph, taken) for name in noisy}
    return Drawing(placed, noise_positions, dict(graph), intervened, frozenset(observed), exogenous)


def _layered(graph: Graph) -> dict[str, Position]:
    """Depth gives the row; within a row, nodes stand near the mean of their parents."""
    depth: dict[str, int] = {}
    for name in topological_order(graph):
        depth[name] = max((depth[parent] + 1 for parent in graph[name]), default=0)
    placed: dict[str, Position] = {}
    for level in range(max(depth.values()) + 1):
        row = [name for name in graph if depth[name] == level]
        wanted = {n: _mean([placed[p][0] for p in graph[n]], default=1.6 * i) for i, n in enumerate(row)}
        right = -math.inf
        for name in sorted(row, key=wanted.__getitem__):
            right = max(wanted[name], right + 1.6)
            placed[name] = (right, -1.2 * level)
    return placed


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _free_place_beside(name: str, graph: Graph, taken: dict[str, Position]) -> Position:
    """The first free place round the node, off all edges: left, right, below, above, then the diagonals."""
    x, y = taken[name]
    edges = [(taken[parent], taken[child]) for child, parents in graph.items() for parent in parents]
    aside = 0.53 + _half_width(name)
    around = ((-aside, 0), (aside, 0), (0, -0.8), (0, 0.8), (-0.7, 0.7), (0.7, 0.7), (-0.7, -0.7), (0.7, -0.7))
    places = [(x + dx, y + dy) for dx, dy in around]
    free = [p for p in places if all(math.dist(p, other) > 2.2 * _RADIUS for other in taken.values())]
    clear = [p for p in free if not any(_on_segment(p, start, end) for start, end in edges)]
    place = [*clear, *free, *places][0]
    taken[f"noise of {name}"] = place
    return place


def _blocked(positions: Mapping[str, Position], parent: str, child: str) -> bool:
    """Whether a third node lies on the straight line between two nodes."""
    others = (position for name, position in positions.items() if name not in (parent, child))
    return any(_on_segment(position, positions[parent], positions[child]) for position in others)


def _on_segment(point: Position, start: Position, end: Position) -> bool:
    """Whether a circle round `point` touches the line from `start` to `end`."""
    (x, y), (x0, y0), (x1, y1) = point, start, end
    length = math.dist(start, end)
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length**2
    off = abs((x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)) / length
    return 0 < along < 1 and off < _RADIUS


def _half_width(name: str) -> float:
    """Of a node's box: a square, or as wide as its word."""
    return _RADIUS if _label(name).startswith("$") else max(_RADIUS, _LETTER * len(name))


def _box_shape(x: float, y: float, half: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - half, y - _RADIUS), 2 * half, 2 * _RADIUS)


def _circle_shape(position: Position, half: float = _RADIUS) -> Any:
    """A circle, or an ellipse where a word stands in it."""
    from matplotlib.patches import Ellipse

    return Ellipse(position, 2 * half * (1.25 if half > _RADIUS else 1.0), 2 * _RADIUS)


def _arrow(axes: Any, start: Position, end: Position, tail: Any, head: Any, bend: float = 0.0) -> None:
    from matplotlib.patches import FancyArrowPatch

    for shape in (tail, head):
        shape.set_transform(axes.transData)
    arrow = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=11,
        patchA=tail,
        patchB=head,
        shrinkA=1,
        shrinkB=2,
        linewidth=1.1,
        color=_BLACK,
        connectionstyle=f"arc3,rad={bend}",
        zorder=1,
    )
    axes.add_patch(arrow)


def _circle(axes: Any, position: Position, label: str, grey: bool, half: float = _RADIUS) -> None:
    shape = _circle_shape(position, half)
    shape.set(facecolor=_GREY if grey else "white", edgecolor=_BLACK, linewidth=1.2, zorder=3)
    axes.add_patch(shape)
    # The noise of a word has the word as its index, which is to fit into the circle.
    size = 7 if label.startswith("$U") and len(label) > len("$U_{xxx}$") else 10
    axes.text(*position, label, color=_BLACK, ha="center", va="center", fontsize=size, zorder=4)


def _label(name: str) -> str:
    """`S_1` and `S1` are set as S with a subscript; a word stays a word."""
    match = re.fullmatch(r"([A-Za-z])_?(\w{1,3})", name)
    return rf"${match[1]}_{{{match[2]}}}$" if match else (f"${name}$" if len(name) == 1 else name)


def _noise_label(name: str) -> str:
    return rf"$U_{{{name.replace('_', '').lower()}}}$"
