"""Solvable levels at random, after Racanière et al. 2017, "Imagination-augmented agents", appendix.

A room is carved by a random walk of 1.5·(height + width) steps that turns with probability 0.35, redraws its
direction at the border and stamps one of five 3×3 patterns at each step. Targets and player are placed
uniformly. Reverse play (depth-first over pulls, the player walking freely between them) then looks for the state
with every box and the player off the targets and the highest score = (changes of the pulled box) × (sum of the boxes'
displacements). What was pulled can be pushed back, so a level is solvable by construction. Flips and rotations
of levels are *not* levels of the same distribution: the patterns are not symmetric.

Some choices are not in that text and follow from a comparison with real Boxoban levels
(`benchmarks/sokoban_levels.py`, and results/NOTES.md for what else was tried):

- The direction is redrawn at the border instead of the position being clamped there.
- A room gets ten placements before it is given up: real rooms are hardly chosen by whether a level fits into them.
- A state of the search is where the boxes are and *where the player stands* after a pull, not which cells it can reach;
  pulls are tried in random order, anew at each state.
- At most 350 states are visited.
- The player is finally put uniformly on a cell that it can reach and that is not a target.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from coulda.errors import CouldaError

GENERATION = 2
"""Raised by every change that gives a key other levels, so that nothing made on earlier ones is taken for new."""

MAX_DEPTH = 300
MAX_STATES = 350
_MAX_PLACEMENTS = 10
# Most rooms yield a level; a size of which so many do not is too small for its boxes.
_MAX_ROOMS = 1_000
_CHUNK = 256


def generate(key: jax.Array, n: int, height: int = 10, width: int = 10, num_boxes: int = 3) -> np.ndarray:
    """`n` random solvable levels, the same for a key whatever the number of cores.

    Level `i` depends on the key and `i` alone: a longer batch begins with the shorter one.

    Args:
        key: From `jax.random.key`.
        n: Number of levels.
        height: Rows, the border of walls included.
        width: Columns, the border of walls included.
        num_boxes: Boxes, and targets, in each level.

    Returns:
        `uint8[n, height, width]` of `tiles`.
    """
    from coulda.environments.sokoban._generate import generate_levels

    if n < 0 or num_boxes < 1 or height < 4 or width < 4:
        raise CouldaError(
            "levels need n ≥ 0, at least one box and a room of at least 4×4; "
            f"got n={n}, num_boxes={num_boxes}, {height}×{width}"
        )
    seed = _seed_of(key)
    levels = np.empty((n, height * width), np.uint8)

    def fill(first: int) -> int:
        chunk = levels[first : first + _CHUNK]
        return generate_levels(
            seed, first, height, width, num_boxes, MAX_DEPTH, MAX_STATES, _MAX_PLACEMENTS, _MAX_ROOMS, chunk
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = sum(pool.map(fill, range(0, n, _CHUNK)))
    if failures:
        raise CouldaError(
            f"{failures} of {n} levels of {height}×{width} with {num_boxes} boxes found no playable room among "
            f"{_MAX_ROOMS} each; use a larger room or fewer boxes"
        )
    return levels.reshape(n, height, width)


def _seed_of(key: jax.Array) -> np.uint64:
    """64 bits for a compiled generator from a JAX key."""
    low, high = np.asarray(jax.random.bits(key, (2,), jnp.uint32)).astype(np.uint64)
    return low | high << np.uint64(32)
