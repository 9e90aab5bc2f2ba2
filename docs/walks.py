"""Two walks through the source, traced while they are walked: `python docs/walks.py` draws `_static/walk_*.svg`.

A walk is the files of coulda whose functions run, in the order in which they are first entered. What runs when a module
or the body of a class is read is no part of it.
"""

import inspect
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax

import coulda

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
    path = Path(frame.f_code.co_filename)
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or SOURCE not in path.parents:
        return None
    return path.relative_to(SOURCE).as_posix()


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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("evaluation", evaluation_walk), ("search", search_walk)):
            walk = make(Path(folder) / name)
            print(name, len(walk.files))
            for f in walk.files:
                print("  ", f)
            for c in walk.calls:
                print("     ", *c)
            print("upward")
            for c in walk.upward():
                print("     ", *c)
