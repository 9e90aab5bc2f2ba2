"""`coulda sokoban play|generate|solve|render`: levels at hand."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coulda.environments.sokoban import (
    Sokoban,
    UniformLevels,
    count_defects,
    drawing,
    generate,
    read_levels,
    read_pool,
    solve,
    tiles,
    write_levels,
    write_pool,
)
from coulda.environments.sokoban.noise import TileNoise
from coulda.environments.sokoban.solver import NODE_LIMIT, SOLVED, STATUS_NAMES
from coulda.errors import CouldaError
from coulda.pomdp import GumbelMaxChoice

LevelsPath = Annotated[Path, tyro.conf.Positional]

_KEYS = {"w": tiles.UP, "s": tiles.DOWN, "a": tiles.LEFT, "d": tiles.RIGHT, " ": tiles.NOOP}
_ARROWS = {"\x1b[A": "w", "\x1b[B": "s", "\x1b[D": "a", "\x1b[C": "d"}
_STYLES = ("on #f4f0e8", "#b04a3e on #b04a3e", "#b07a18 on #f4f0e8", "#366cbe on #f4f0e8", "#286838 on #f4f0e8", "", "")
_GLYPHS = ("  ", "██", "▐▌", "◎ ", "☻ ", "▐▌", "☻ ")


@dataclass(frozen=True)
class Play:
    """Play in the terminal: arrows or wasd move, space waits, m masks, h hints, r restarts, n next level, q quits."""

    levels: Path | None = None
    """A Boxoban file or a level pool; generated when not given."""
    seed: int = 0
    """Of the generated levels and of the masking noise."""
    masked: bool = False
    """Begin with the masked view, as a policy sees the game."""
    mask_probability: float = 0.9
    """Of a tile to be shown as empty."""
    window: int = 3
    """Side of the square round you that is never masked; 0 for none."""

    def run(self) -> None:
        """Play until q or the end of the input."""
        levels = generate(jax.random.key(self.seed), 100) if self.levels is None else _read(self.levels)
        game = _Game(_environment(levels, self.mask_probability, self.window), levels, self.seed, self.masked)
        console = Console()
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
    """How many."""
    seed: int = 0
    """Of the generator."""
    height: int = 10
    """Rows, the border of walls included."""
    width: int = 10
    """Columns, the border of walls included."""
    boxes: int = 3
    """Boxes, and targets, in each."""

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
        num_boxes = _num_boxes(levels)
        with Console().status(f"solving {len(levels)} levels …"):
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
        Console().print(table)
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
    """Which level."""
    seed: int = 0
    """Of the masking noise."""
    mask_probability: float = 0.9
    """Of a tile to be shown as empty."""
    window: int = 3
    """Side of the square round the agent that is never masked; 0 for none."""

    def run(self) -> None:
        """Solve, replay and draw."""
        levels = _read(self.levels)
        if not 0 <= self.index < len(levels):
            raise CouldaError(f"{self.levels} has levels 0 to {len(levels) - 1}; there is no level {self.index}")
        if self.out.suffix not in (".gif", ".png"):
            raise CouldaError(f"'{self.out}' must end with .gif or .png")
        level = levels[self.index]
        environment = _environment(levels, self.mask_probability, self.window)
        found = solve(level[None], environment.num_boxes)
        actions = found.actions[0, : max(found.length[0], 0)]
        states, observations = _episode(environment, level, actions, self.seed)
        captions = [f"t = {t + 1}" for t in range(len(states))]
        if self.out.suffix == ".gif":
            drawing.write_animation(self.out, states, observations, captions)
        else:
            moments = np.unique(np.linspace(0, len(states) - 1, 6).round().astype(int))
            drawing.write_strip(self.out, states[moments], observations[moments], [captions[i] for i in moments])
        print(f"{self.out}: level {self.index}, {STATUS_NAMES[found.status[0]]}, {len(actions)} moves")


COMMANDS = {"play": Play, "generate": Generate, "solve": Solve, "render": Render}


class _Game:
    """What is on the screen while someone plays."""

    def __init__(self, environment: Sokoban, levels: np.ndarray, seed: int, masked: bool):
        self.environment, self.levels, self.masked = environment, levels, masked
        self.noise = _noise(environment, seed)
        self.level = 0
        self.restart()

    def restart(self) -> None:
        self.state = self.environment.initial(jnp.asarray(self.levels[self.level]))
        self.step, self.score, self.message = 0, 0.0, ""

    def press(self, key: str) -> bool:
        """Handle one key; False when the last level is over."""
        self.message = ""
        if key in _KEYS and not bool(self.environment.terminal(self.state)):
            self.act(_KEYS[key])
        elif key == "m":
            self.masked = not self.masked
        elif key == "r":
            self.restart()
        elif key == "h":
            self.hint()
        elif key == "n":
            if self.level + 1 == len(self.levels):
                return False
            self.level += 1
            self.restart()
        return True

    def act(self, action: int) -> None:
        following = self.environment.transition(self.state, jnp.uint8(action), ())
        self.score += float(self.environment.reward(self.state, jnp.uint8(action), following))
        self.state, self.step = following, self.step + 1
        if bool(self.environment.solved(following)):
            self.message = "solved! n for the next level"

    def hint(self) -> None:
        found = solve(np.asarray(self.state)[None], self.environment.num_boxes)
        if found.length[0] > 0:
            self.message = f"{tiles.ACTION_NAMES[found.actions[0, 0]]}, {found.length[0]} moves to go"
        else:
            self.message = "no way from here; r to restart" if found.length[0] < 0 else "solved"

    def screen(self) -> Text:
        noise = self.noise.at(jnp.int32(self.step))
        shown = self.environment.observe(self.state, noise) if self.masked else self.state
        text = Text()
        for row in np.asarray(shown):
            for tile in row:
                style = _STYLES[tile] or ("#366cbe" if tile == tiles.BOX_ON_TARGET else "#286838") + " on #a0bee8"
                text.append(_GLYPHS[tile], style)
            text.append("\n")
        view = "masked" if self.masked else "full"
        text.append(f"level {self.level}  step {self.step}  score {self.score:+.0f}  {view} view  {self.message}")
        return text


def _read(path: Path) -> np.ndarray:
    return read_pool(path) if path.is_dir() else read_levels(path)


def _num_boxes(levels: np.ndarray) -> int:
    return int(tiles.has_box(levels[0]).sum())


def _environment(levels: np.ndarray, mask_probability: float, window: int) -> Sokoban:
    _, height, width = levels.shape
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(tiles.NUM_ACTIONS),
        height=height,
        width=width,
        num_boxes=_num_boxes(levels),
        mask_probability=mask_probability,
        window=window,
    )


def _noise(environment: Sokoban, seed: int) -> TileNoise:
    bits = jax.random.bits(jax.random.key(seed), (2,), jnp.uint32)
    return TileNoise(bits, environment.height, environment.width)


def _episode(environment: Sokoban, level: np.ndarray, actions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States and observations `[T + 1, height, width]` of a sequence of actions."""
    noise = _noise(environment, seed)
    states = [environment.initial(jnp.asarray(level))]
    for action in actions:
        states.append(environment.transition(states[-1], jnp.asarray(action), ()))
    observations = [environment.observe(state, noise.at(jnp.int32(t))) for t, state in enumerate(states)]
    return np.stack(states), np.stack(observations)


def _solution_line(found, i: int) -> str:
    moves = "".join("udlr"[a] for a in found.actions[i, : max(found.length[i], 0)])
    return json.dumps({"level": i, "status": STATUS_NAMES[found.status[i]], "moves": moves}) + "\n"


@contextmanager
def _keyboard() -> Iterator[Iterator[str]]:
    """Keys as they are pressed, or the characters of the standard input when it is not a terminal."""
    if not sys.stdin.isatty():
        yield _keys()
        return
    import termios
    import tty

    settings = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _keys()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def _keys() -> Iterator[str]:
    while key := sys.stdin.read(1):
        if key == "\x1b":
            key = _ARROWS.get(key + sys.stdin.read(2), "")
        yield key
