"""PO-Sokoban as a game for a person: keys, hints, and the screen, with the masked view that a policy has."""

from collections.abc import Iterator
from typing import TextIO

import jax
import jax.numpy as jnp
import numpy as np
from rich.text import Text

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban.environment import Sokoban
from coulda.environments.sokoban.noise import TileNoise, UniformLevels
from coulda.environments.sokoban.solver import solve
from coulda.pomdp import GumbelMaxChoice

KEYS = {"w": tiles.UP, "s": tiles.DOWN, "a": tiles.LEFT, "d": tiles.RIGHT, " ": tiles.NOOP}
"""What moves; the others are in `Game.press`."""
_ARROWS = {"\x1b[A": "w", "\x1b[B": "s", "\x1b[D": "a", "\x1b[C": "d"}
_STYLES = ("on #f4f0e8", "#b04a3e on #b04a3e", "#b07a18 on #f4f0e8", "#366cbe on #f4f0e8", "#286838 on #f4f0e8", "", "")
_GLYPHS = ("  ", "██", "▐▌", "◎ ", "☻ ", "▐▌", "☻ ")


class Game:
    """Levels played one after the other; `press` keys, and look at the `screen`.

    Args:
        environment: its transitions, rewards and observations.
        levels: `uint8[n, height, width]`.
        seed: the seed of the masking noise.
        masked: whether the view is masked at first.
    """

    def __init__(self, environment: Sokoban, levels: np.ndarray, seed: int, masked: bool):
        self.environment, self.levels, self.masked = environment, levels, masked
        self.noise = _masking_noise(environment, seed)
        self.level = 0
        self.restart()

    def restart(self) -> None:
        """Begin the level again."""
        self.state = self.environment.initial(jnp.asarray(self.levels[self.level]))
        self.step, self.score, self.message = 0, 0.0, ""

    def press(self, key: str) -> bool:
        """Handle one key; False when the last level is over."""
        self.message = ""
        if key in KEYS and not bool(self.environment.terminal(self.state)):
            self.act(KEYS[key])
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
        """One move."""
        following = self.environment.transition(self.state, jnp.uint8(action), ())
        self.score += float(self.environment.reward(self.state, jnp.uint8(action), following))
        self.state, self.step = following, self.step + 1
        if bool(self.environment.solved(following)):
            self.message = "solved! n for the next level"

    def hint(self) -> None:
        """Say the first move of a shortest solution from here."""
        found = solve(np.asarray(self.state)[None], self.environment.num_boxes)
        if found.length[0] > 0:
            self.message = f"{tiles.ACTION_NAMES[found.actions[0, 0]]}, {found.length[0]} moves to go"
        else:
            self.message = "no way from here; r to restart" if found.length[0] < 0 else "solved"

    def screen(self) -> Text:
        """The grid, and a line about it."""
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


def environment_of(levels: np.ndarray, mask_probability: float, window: int) -> Sokoban:
    """PO-Sokoban on these levels `[n, height, width]`, with as many boxes as the first has."""
    _, height, width = levels.shape
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(tiles.NUM_ACTIONS),
        height=height,
        width=width,
        num_boxes=count_boxes(levels),
        mask_probability=mask_probability,
        window=window,
    )


def count_boxes(levels: np.ndarray) -> int:
    """How many boxes the first level has."""
    return int(tiles.has_box(levels[0]).sum())


def _masking_noise(environment: Sokoban, seed: int) -> TileNoise:
    """The noise of one episode's observations."""
    bits = jax.random.bits(jax.random.key(seed), (2,), jnp.uint32)
    return TileNoise(bits, environment.height, environment.width)


def replay(environment: Sokoban, level: np.ndarray, actions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States and observations `[T + 1, height, width]` of a sequence of actions."""
    noise = _masking_noise(environment, seed)
    states = [environment.initial(jnp.asarray(level))]
    for action in actions:
        states.append(environment.transition(states[-1], jnp.asarray(action), ()))
    observations = [environment.observe(state, noise.at(jnp.int32(t))) for t, state in enumerate(states)]
    return np.stack(states), np.stack(observations)


def read_keys(stream: TextIO) -> Iterator[str]:
    """The keys of a stream of characters, arrows as the letters that do the same."""
    while key := stream.read(1):
        if key == "\x1b":
            key = _ARROWS.get(key + stream.read(2), "")
        yield key
