"""Pictures of levels, states and observations, in the colors of Figure 3.

Walls are red, boxes yellow, targets blue and the agent green.

`draw` needs numpy alone; strips and animations are written with Pillow (extra `sokoban`).
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from coulda.environments.sokoban import tiles
from coulda.errors import CouldaError
from coulda.extras import require

_FLOOR = (244, 240, 232)
_SPECK = (226, 220, 208)
_WALL, _MORTAR, _WALL_LIGHT = (176, 74, 62), (138, 54, 46), (196, 96, 82)
_BOX, _BOX_DARK, _BOX_LIGHT = (236, 180, 58), (176, 122, 24), (250, 212, 116)
_TARGET, _TARGET_LIGHT = (54, 108, 190), (160, 190, 232)
_AGENT, _AGENT_DARK, _EYE = (70, 158, 92), (40, 104, 58), (255, 255, 255)
_PAGE, _INK = (255, 255, 255), (70, 66, 60)
# Shapes are drawn so many times larger and averaged down.
_SUPERSAMPLING = 4


def draw(tile_grid: Any, size: int = 32) -> np.ndarray:
    """An RGB picture `uint8[height · size, width · size, 3]` of a grid of tiles."""
    grid = np.asarray(tile_grid)
    rows, columns = grid.shape
    return _sprites(size)[grid].swapaxes(1, 2).reshape(rows * size, columns * size, 3)


def side_by_side(state: Any, observation: Any, size: int = 32, gap: int = 16) -> np.ndarray:
    """The state on the left and what is seen of it on the right, on a white page."""
    left, right = draw(state, size), draw(observation, size)
    page = np.empty((left.shape[0] + 2 * gap, left.shape[1] + right.shape[1] + 3 * gap, 3), np.uint8)
    page[:] = _PAGE
    page[gap : gap + left.shape[0], gap : gap + left.shape[1]] = left
    page[gap : gap + right.shape[0], 2 * gap + left.shape[1] : -gap] = right
    return page


def write_animation(path: str | Path, states: Any, observations: Any, captions: Sequence[str], size: int = 24) -> None:
    """An animated GIF of an episode: state beside observation, `[T + 1, height, width]` each, one caption per frame."""
    image = require("PIL.Image", extra="sokoban")
    pages = [
        _captioned(side_by_side(state, observation, size), caption)
        for state, observation, caption in zip(states, observations, captions, strict=True)
    ]
    frames = [image.fromarray(page).quantize(64) for page in pages]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=[200] * (len(frames) - 1) + [1500], loop=0)


def write_strip(path: str | Path, states: Any, observations: Any, captions: Sequence[str], size: int = 20) -> None:
    """A PNG strip: one column per time step, the state above and the observation below."""
    image = require("PIL.Image", extra="sokoban")
    columns = [
        _captioned(_stack(state, observation, size), caption)
        for state, observation, caption in zip(states, observations, captions, strict=True)
    ]
    image.fromarray(np.concatenate(columns, axis=1)).save(path, optimize=True)


def _stack(state: Any, observation: Any, size: int) -> np.ndarray:
    """The state above and the observation below."""
    gap = size // 2
    top, bottom = draw(state, size), draw(observation, size)
    page = np.empty((top.shape[0] + bottom.shape[0] + 3 * gap, top.shape[1] + 2 * gap, 3), np.uint8)
    page[:] = _PAGE
    page[gap : gap + top.shape[0], gap:-gap] = top
    page[2 * gap + top.shape[0] : -gap, gap:-gap] = bottom
    return page


def _captioned(page: np.ndarray, caption: str) -> np.ndarray:
    """The page with a line of text below."""
    image = require("PIL.Image", extra="sokoban")
    pencil = require("PIL.ImageDraw", extra="sokoban")
    font = require("PIL.ImageFont", extra="sokoban").load_default(14)
    line = image.new("RGB", (page.shape[1], 24), _PAGE)
    pencil.Draw(line).text((page.shape[1] // 2, 8), caption, fill=_INK, font=font, anchor="mm")
    return np.concatenate([page, np.asarray(line)])


@lru_cache(maxsize=8)
def _sprites(size: int) -> np.ndarray:
    """`uint8[7, size, size, 3]`: one picture per tile category."""
    if size < 4:
        raise CouldaError(f"a tile must be at least 4 pixels wide, got {size}")
    floor = _floor(size * _SUPERSAMPLING)
    target = _on(floor, _target)
    drawn = {
        tiles.EMPTY: floor,
        tiles.WALL: _on(floor, _wall),
        tiles.BOX: _on(floor, _box),
        tiles.TARGET: target,
        tiles.AGENT: _on(floor, _agent),
        tiles.BOX_ON_TARGET: _on(target, _box, _badge),
        tiles.AGENT_ON_TARGET: _on(target, _agent),
    }
    large = np.stack([drawn[tile] for tile in range(tiles.NUM_TILES)])
    blocks = large.reshape(tiles.NUM_TILES, size, _SUPERSAMPLING, size, _SUPERSAMPLING, 3)
    return blocks.mean((2, 4)).round().astype(np.uint8)


def _floor(n: int) -> np.ndarray:
    picture = np.empty((n, n, 3))
    picture[:] = _FLOOR
    picture[_disc(n, 0.5, 0.5, 0.035)] = _SPECK
    return picture


def _on(picture: np.ndarray, *shapes: Any) -> np.ndarray:
    picture = picture.copy()
    for shape in shapes:
        for mask, color in shape(len(picture)):
            picture[mask] = color
    return picture


def _wall(n: int):
    """Two courses of bricks that continue across tiles."""
    y, x = _axes(n)
    yield np.ones((n, n), bool), _WALL
    yield ((y % 0.5) < 0.10), _WALL_LIGHT
    yield ((y % 0.5) > 0.45) | ((y < 0.5) & (abs(x - 0.25) < 0.025)) | ((y > 0.5) & (abs(x - 0.75) < 0.025)), _MORTAR


def _box(n: int):
    """A crate."""
    y, x = _axes(n)
    yield _rounded(n, 0.40, 0.08), _BOX_DARK
    yield _rounded(n, 0.35, 0.05), _BOX
    inner = _rounded(n, 0.26, 0.02)
    yield inner, _BOX_LIGHT
    yield inner & ((abs(x - y) < 0.06) | (abs(x + y - 1) < 0.06)), _BOX_DARK


def _badge(n: int):
    """A blue seal on a crate that is where it should be."""
    yield _disc(n, 0.5, 0.5, 0.20), _PAGE
    yield _disc(n, 0.5, 0.5, 0.165), _TARGET


def _target(n: int):
    """A ring round a dot."""
    yield _disc(n, 0.5, 0.5, 0.40), _TARGET
    yield _disc(n, 0.5, 0.5, 0.31), _TARGET_LIGHT
    yield _disc(n, 0.5, 0.5, 0.13), _TARGET


def _agent(n: int):
    """A round fellow with two eyes."""
    yield _disc(n, 0.5, 0.5, 0.34), _AGENT_DARK
    yield _disc(n, 0.5, 0.5, 0.29), _AGENT
    for x in (0.40, 0.60):
        yield _disc(n, 0.44, x, 0.075), _EYE
        yield _disc(n, 0.45, x, 0.035), _INK


def _axes(n: int) -> tuple[np.ndarray, np.ndarray]:
    y, x = (np.indices((n, n)) + 0.5) / n
    return y, x


def _disc(n: int, row: float, column: float, radius: float) -> np.ndarray:
    y, x = _axes(n)
    return (y - row) ** 2 + (x - column) ** 2 < radius**2


def _rounded(n: int, half: float, radius: float) -> np.ndarray:
    y, x = _axes(n)
    over = [np.maximum(abs(axis - 0.5) - (half - radius), 0) for axis in (y, x)]
    return over[0] ** 2 + over[1] ** 2 <= radius**2
