"""`coulda sokoban play|generate|solve|render`: levels at hand."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import tyro
from rich.table import Table

from coulda.cli.showing import Screen
from coulda.environments.sokoban import (
    count_defects,
    drawing,
    generate,
    read_levels,
    read_pool,
    solve,
    write_levels,
    write_pool,
)
from coulda.environments.sokoban.game import Game, count_boxes, environment_of, read_keys, replay
from coulda.environments.sokoban.solver import NODE_LIMIT, SOLVED, STATUS_NAMES
from coulda.errors import CouldaError

LevelsPath = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class Play:
    """Play in the terminal: arrows or wasd move, space waits, m masks, h hints, r restarts, n next level, q quits."""

    levels: Path | None = None
    """A Boxoban file or a level pool; generated when not given."""
    seed: int = 0
    """The seed of the generated levels and of the masking noise."""
    masked: bool = False
    """Begin with the masked view, as a policy sees the game."""
    mask_probability: float = 0.9
    """The probability that a tile is shown as empty."""
    window: int = 3
    """The side of the square round you that is never masked; 0 for none."""

    def run(self) -> None:
        """Play until q or the end of the input."""
        levels = generate(jax.random.key(self.seed), 100) if self.levels is None else _read(self.levels)
        game = Game(environment_of(levels, self.mask_probability, self.window), levels, self.seed, self.masked)
        console = Screen()
        with _keyboard() as keys:
            console.print(game.screen())
            for key in keys:
                if key == "q" or not game.press(key):
                    break
                if console.is_terminal:
                    console.clear()
                console.print(game.screen())


@dataclass(frozen=True)
class Generate:
    """Generate solvable levels and write them down."""

    out: LevelsPath
    """A name that ends with .txt becomes a Boxoban file, any other a level pool."""
    n: int = 1000
    """How many levels to generate."""
    seed: int = 0
    """The seed of the generator."""
    height: int = 10
    """Rows of each level, the border of walls included."""
    width: int = 10
    """Columns of each level, the border of walls included."""
    boxes: int = 3
    """Boxes, and targets, in each level."""

    def run(self) -> None:
        """Generate and write."""
        levels = generate(jax.random.key(self.seed), self.n, self.height, self.width, self.boxes)
        if self.out.suffix == ".txt":
            write_levels(self.out, levels)
            print(f"{self.out}: {self.n} levels")
        else:
            print(f"{self.out}: {self.n} levels, sha256 {write_pool(self.out, levels)}")


@dataclass(frozen=True)
class Solve:
    """Find a shortest solution of each level."""

    levels: LevelsPath
    """A Boxoban file or a level pool."""
    node_limit: int = NODE_LIMIT
    """States after which a level is given up as unknown."""
    out: Path | None = None
    """Where to write the solutions as JSON lines, moves as the letters u, d, l, r."""

    def run(self) -> None:
        """Solve and report."""
        levels = _read(self.levels)
        num_boxes = count_boxes(levels)
        with Screen().status(f"solving {len(levels)} levels …"):
            found = solve(levels, num_boxes, self.node_limit)
        table = Table("", str(self.levels), title="solutions")
        for i, name in enumerate(STATUS_NAMES):
            table.add_row(name, f"{np.sum(found.status == i):,}")
        if (solved := found.status == SOLVED).any():
            lengths = found.length[solved]
            table.add_row("moves (median, most)", f"{np.median(lengths):.0f}, {lengths.max()}")
            table.add_row("within 50 moves", f"{np.mean((found.length >= 0) & (found.length <= 50)):.1%}")
        for name, count in count_defects(levels, num_boxes).items():
            if count.any():
                table.add_row(f"levels with {name}", f"{np.sum(count > 0):,}")
        Screen().print(table)
        if self.out is not None:
            self.out.write_text("".join(_solution_line(found, i) for i in range(len(levels))))


@dataclass(frozen=True)
class Render:
    """Draw a level, or the episode that solves it: what is there, and what a policy sees of it."""

    levels: LevelsPath
    """A Boxoban file or a level pool."""
    out: LevelsPath
    """A .gif is the whole episode, animated; a .png is six moments of it."""
    index: int = 0
    """The number of the level, from 0 on."""
    seed: int = 0
    """The seed of the masking noise."""
    mask_probability: float = 0.9
    """The probability that a tile is shown as empty."""
    window: int = 3
    """The side of the square round the agent that is never masked; 0 for none."""

    def run(self) -> None:
        """Solve, replay and draw."""
        levels = _read(self.levels)
        if not 0 <= self.index < len(levels):
            raise CouldaError(f"{self.levels} has levels 0 to {len(levels) - 1}; there is no level {self.index}")
        if self.out.suffix not in (".gif", ".png"):
            raise CouldaError(f"'{self.out}' must end with .gif or .png")
        level = levels[self.index]
        environment = environment_of(levels, self.mask_probability, self.window)
        found = solve(level[None], environment.num_boxes)
        actions = found.actions[0, : max(found.length[0], 0)]
        states, observations = replay(environment, level, actions, self.seed)
        captions = [f"t = {t + 1}" for t in range(len(states))]
        if self.out.suffix == ".gif":
            drawing.write_animation(self.out, states, observations, captions)
        else:
            moments = np.unique(np.linspace(0, len(states) - 1, 6).round().astype(int))
            drawing.write_strip(self.out, states[moments], observations[moments], [captions[i] for i in moments])
        print(f"{self.out}: level {self.index}, {STATUS_NAMES[found.status[0]]}, {len(actions)} moves")


COMMANDS = {"play": Play, "generate": Generate, "solve": Solve, "render": Render}


def _read(path: Path) -> np.ndarray:
    return read_pool(path) if path.is_dir() else read_levels(path)


def _solution_line(found, i: int) -> str:
    moves = "".join("udlr"[a] for a in found.actions[i, : max(found.length[i], 0)])
    return json.dumps({"level": i, "status": STATUS_NAMES[found.status[i]], "moves": moves}) + "\n"


@contextmanager
def _keyboard() -> Iterator[Iterator[str]]:
    """Keys as they are pressed, or the characters of the standard input when it is not a terminal."""
    if not sys.stdin.isatty():
        yield read_keys(sys.stdin)
        return
    import termios
    import tty

    settings = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield read_keys(sys.stdin)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
