"""What an episode reveals of its own level: a hidden level, from what was logged alone.

The agent sees its window unmasked, so that it is seen wherever it goes, and whatever it moves is seen where it was and
where it comes to be. A tile that shows anything but "empty" is what it seems to be, at any time; and "empty" is, in the
window. Going back from the last observation to the first, and taking a pushed box back from where it was pushed to,
leaves what is known of the level.

What is not known by the end was never in the window and never moved, and looked empty at all times: either it is,
or it was masked every time. So a tile's being unknown tells of what it is: floor far from the agent is never known, and
other tiles nearly always are. That is not missing at random given what is known; given the number of looks it has a
likelihood (`LevelEvidence`), which is what a model of levels must be trained with.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban.environment import first_agent
from coulda.errors import CouldaError
from coulda.pomdp import Episode

NARROWEST = 3
"""The window in which every push is seen."""


class Revealed(NamedTuple):
    """What is known of a level."""

    tiles: Array
    """`uint8[height, width]`, the tiles of the level where they are known, and otherwise "empty"."""
    known: Array
    """`bool[height, width]`."""


def revealed(episode: Episode, window: int = NARROWEST) -> Revealed:
    """What the observations of one episode tell for certain about its level, by the rules of the game.

    Args:
        episode: observations `[T + 1, height, width]` of tiles; what comes after its end is not looked at.
        window: the unmasked square round the agent, at least 3: otherwise the agent moves what nobody sees.
    """
    if window < NARROWEST:
        raise CouldaError(f"window is {window}; pushes are seen in one of at least {NARROWEST}, and not outside")
    observation = jnp.asarray(episode.observation, jnp.uint8)
    shown = jax.vmap(lambda grid: _shown(grid, window))(observation)
    shown &= (jnp.arange(len(shown)) <= episode.length)[:, None, None]

    def back(later: Revealed, step: Any) -> tuple[Revealed, None]:
        grid, following, seen, live = step
        tile = jnp.where(live & (_cells(grid) == _pushed_to(grid, following)), _without_box(later.tiles), later.tiles)
        return Revealed(jnp.where(seen, grid, tile), later.known | seen), None

    last = Revealed(jnp.where(shown[-1], observation[-1], jnp.uint8(tiles.EMPTY)), shown[-1])
    steps = observation[:-1], observation[1:], shown[:-1], episode.live
    return jax.lax.scan(back, last, steps, reverse=True)[0]


class LevelEvidence(eqx.Module):
    """What an episode says about its level: log-likelihoods, which a model p(level | h_t) is trained by.

    Called with an episode and the number of observations that h_t has, it gives log p(what follows h_t | a tile, h_t)
    up to a constant, `[height, width, tiles]`: 0 for the one possible tile where it is known, and -inf for the others.
    What is unknown looked empty in each of the n observations after h_t: for certain if it is, and with probability
    mask^n if not. The looks that h_t has itself are not counted: to weigh them is the model's task.
    """

    mask_probability: float = eqx.field(static=True)
    """The world's, which is known as its rules are."""
    window: int = eqx.field(static=True, default=NARROWEST)
    """The world's."""

    def __call__(self, episode: Episode, length: Array) -> Array:
        """The evidence of one episode."""
        found = revealed(episode, self.window)
        looks = (episode.length + 1 - length).astype(jnp.float32)
        category = jnp.arange(tiles.NUM_TILES)
        certain = (category == tiles.EMPTY) | (looks == 0)
        missed = jnp.where(certain, 0.0, looks * jnp.log(jnp.float32(self.mask_probability)))
        only = jnp.log(jax.nn.one_hot(found.tiles, tiles.NUM_TILES))
        return jnp.where(found.known[..., None], only, missed[None, None])


def _shown(grid: Array, window: int) -> Array:
    """Which tiles of an observation are certainly what they look like."""
    here, width, reach = first_agent(grid), grid.shape[1], window // 2
    row, column = jnp.divmod(_cells(grid), width)
    near = (abs(row - here // width) <= reach) & (abs(column - here % width) <= reach)
    return near & (here < grid.size) | (grid != tiles.EMPTY)


def _pushed_to(grid: Array, following: Array) -> Array:
    """The cell to which a box was pushed between two observations, or -1."""
    here, there = first_agent(grid), first_agent(following)
    pushes = (here != there) & tiles.has_box(grid.reshape(-1)[there])
    return jnp.where(pushes, 2 * there - here, -1)


def _without_box(tile: Array) -> Array:
    """The same tiles, boxes taken away."""
    return jnp.where(tiles.has_target(tile), jnp.uint8(tiles.TARGET), jnp.uint8(tiles.EMPTY))


def _cells(grid: Array) -> Array:
    return jnp.arange(grid.size, dtype=jnp.int32).reshape(grid.shape)
