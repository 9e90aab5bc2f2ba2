"""Two walks through the source, traced while they are walked: `python docs/walks.py` draws `_static/walk_*.svg`.

A walk is the files of coulda whose functions run, in the order in which they are first entered. What runs when a module
or the body of a class is read is no part of it.
"""

import ast
import inspect
import re
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from xml.sax.saxutils import escape

import jax

import coulda
from coulda.storage import replace_file

ROOT = Path(__file__).parents[1]
SOURCE = Path(coulda.__file__).parent
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
RANKS = {room.strip(): rank for rank, layer in enumerate(LAYERS) for room in layer.split("|")}
"""How deep each room lies; the highest is 0."""


@dataclass
class Walk:
    """The files of one walk, and who first called into them."""

    calls: dict[tuple[str, str], None] = field(default_factory=dict)
    """(caller, called), both files, each pair once, in order; the first caller is empty."""

    @property
    def files(self) -> list[str]:
        """The files in the order of the first visit."""
        return list(dict.fromkeys(called for _, called in self.calls))

    def upward(self) -> list[tuple[str, str]]:
        """The calls from a room into one above it: only a function or an object that was handed down can make one."""
        return [(a, b) for a, b in self.calls if a and RANKS[room(b)] < RANKS[room(a)]]


def room(file: str) -> str:
    """The room of a file: its first folder, or the name of a module that is a room by itself."""
    return file.split("/")[0].removesuffix(".py")


def trace(run: Callable[[], Any], inside: CodeType | None = None) -> Walk:
    """The files whose functions run in `run`; with `inside`, those in the first call of it, and on the way to it.

    What was compiled before is forgotten first, because a program that is ready runs without the functions that it was
    traced from. After the first call of `inside`, `run` is stopped.
    """
    walk, stopped = Walk(), False
    depth = 0 if inside is None else -1

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, stopped
        if event == "call" and inside is not None and frame.f_code is inside and depth < 0:
            depth = 0
            jax.clear_caches()
            for caller in reversed([*_callers(frame)]):
                _visit(walk, caller)
        if depth >= 0 and event == "call":
            _visit(walk, frame)
        if depth >= 0 and event == "return" and frame.f_code is inside:
            stopped = True
            raise _Arrived

    jax.clear_caches()
    sys.setprofile(watch)
    try:
        run()
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
    assert inside is None or stopped, "the function was not called"
    return walk


class _Arrived(BaseException):
    """The end of a walk; nothing on the way catches it."""


def _visit(walk: Walk, frame: FrameType) -> None:
    called = _file(frame)
    if called is not None:
        caller = next((file for file in map(_file, _callers(frame)) if file is not None), "")
        if caller != called:
            walk.calls[caller, called] = None


def _callers(frame: FrameType):
    while (frame := frame.f_back) is not None:  # pyright: ignore[reportAssignmentType]
        yield frame


def _file(frame: FrameType) -> str | None:
    """The frame's file, if it is coulda's and a function's."""
    return _place(frame.f_code.co_filename) if frame.f_code.co_flags & inspect.CO_OPTIMIZED else None


@cache
def _place(filename: str) -> str | None:
    path = Path(filename)
    return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None


def evaluation_walk(folder: Path) -> Walk:
    """A stored log, through `compare` with `OnScenarios`, to an `Estimate`."""
    from coulda.environments import tiger
    from coulda.episodes import collect, open_log, write_log
    from coulda.evaluation import OnScenarios, compare
    from coulda.hindsight import Exact
    from coulda.policies import TabularPolicy, UniformPolicy

    model = tiger(horizon=3, reparameterization="gumbel_max")
    write_log(folder, collect(jax.random.key(0), model, UniformPolicy(3), 8))
    policies = {"careful": TabularPolicy([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]])}
    methods = [OnScenarios(model, Exact(model))]
    return trace(lambda: compare(jax.random.key(1), open_log(folder), policies, methods))


def search_walk(folder: Path) -> Walk:
    """The first update of CF-GPS that `coulda reproduce search` makes, and the way from the command to it."""
    from coulda.cli import main
    from coulda.search import PolicySearch

    command = ["reproduce", "search", "--preset", "smoke", "--no-progress", "--folder", str(folder)]
    return trace(lambda: main(command), inside=inspect.unwrap(PolicySearch.step).__code__)


WALKS = {"evaluation": evaluation_walk, "search": search_walk}

HANDED_DOWN = {
    "devices.py": "the function whose results are summed",
    "noise.py": "a distribution",
    "pomdp/actors.py": "the actor that chooses",
    "pomdp/batching.py": "the function of one element",
    "pomdp/model.py": "the model",
    "pomdp/rollout.py": "the model and the actor",
    "pomdp/scenario.py": "noise that is lazy",
    "stages.py": "the function that makes a stage",
    "trainer/loop.py": "the step",
}
"""What these files are handed, and call without knowing the room that it comes from."""


ROW, GAP, NAMES, BOXES, WIDTH = 26, 8, 16, 270, 960
"""The height of a row; between two rooms; where the names of rooms and the boxes begin; of all. In pixels."""


def draw(walk: Walk) -> str:
    """The walk as SVG: rooms from top to bottom, and the files of each, numbered by the first visit.

    An arc leads to each file from the one that first called it, if that is in another room; a dashed one leads up, to
    what was handed down.
    """
    rooms: dict[str, list[str]] = {}
    for file in sorted(walk.files, key=lambda file: (RANKS[room(file)], walk.files.index(file))):
        rooms.setdefault(room(file), []).append(file)
    bands, rows, top = [], {}, GAP
    for name, files in rooms.items():
        bands.append(_band(name, top, len(files) * ROW + GAP))
        rows |= {file: top + GAP // 2 + ROW * i + ROW // 2 for i, file in enumerate(files)}
        top += len(files) * ROW + 2 * GAP
    first = {called: caller for caller, called in reversed(walk.calls)}
    arcs = [_arc(rows[a], rows[b]) for b, a in first.items() if a and room(a) != room(b)]
    boxes = [_box(number, file, rows[file]) for number, file in enumerate(walk.files, 1)]
    return "\n".join([_HEAD.format(width=WIDTH, height=top), *bands, *arcs, *boxes, "</svg>\n"])


_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
  font-family="Helvetica, Arial, sans-serif" font-size="12">
<defs>
<marker id="down" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#5b7ea6"/></marker>
<marker id="up" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#c05a1c"/></marker>
</defs>
<rect width="{width}" height="{height}" fill="white"/>"""


def _band(name: str, top: int, height: int) -> str:
    area = f'<rect x="{GAP}" y="{top}" width="{WIDTH - 2 * GAP}" height="{height}" rx="6" fill="#eef2f7"/>'
    return f'{area}<text x="{NAMES}" y="{top + GAP // 2 + ROW // 2 + 4}" fill="#345">{name}</text>'


def _box(number: int, file: str, y: int) -> str:
    name = file.split("/", 1)[-1]
    return (
        f'<rect x="{BOXES}" y="{y - 10}" width="205" height="20" rx="4" fill="white" stroke="#8aa0b8"/>'
        f'<text x="{BOXES + 24}" y="{y + 4}" text-anchor="end" fill="#c05a1c">{number}</text>'
        f'<text x="{BOXES + 32}" y="{y + 4}" font-weight="bold" fill="#123">{name}</text>'
        f'<text x="{BOXES + 216}" y="{y + 4}" font-size="11" fill="#445">{escape(_phrase(file))}</text>'
    )


def _phrase(file: str) -> str:
    """What the file is for: the first sentence of its docstring, without the name that it may begin with."""
    text = " ".join((ast.get_docstring(ast.parse((SOURCE / file).read_text())) or "").split())
    sentence = re.split(r"\.(?:\s|$)", re.sub(r"^`[^`]*`: ", "", text))[0].replace("`", "")
    return textwrap.shorten(sentence, 74, placeholder=" …")


def _arc(y: int, to: int) -> str:
    """From row to row, the farther the wider; dashed if it leads up."""
    kind, style = ("down", 'stroke="#5b7ea6"') if y < to else ("up", 'stroke="#c05a1c" stroke-dasharray="4 3"')
    # A caller's arcs leave below its middle, and arrive above: those that meet do not hide each other.
    y, to = (y + 5, to - 4) if y < to else (y - 5, to + 4)
    x = BOXES - 2 - min(215, 24 + abs(to - y) // 3)
    path = f"M{BOXES},{y} C{x},{y} {x},{to} {BOXES - 2},{to}"
    return f'<path d="{path}" fill="none" {style} stroke-width="1.2" marker-end="url(#{kind})"/>'


if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        with tempfile.TemporaryDirectory() as folder:
            walk = WALKS[name](Path(folder) / name)
        replace_file(ROOT / "docs" / "_static" / f"walk_{name}.svg", draw(walk).encode())
        print(f"{name}: {len(walk.files)} files")
