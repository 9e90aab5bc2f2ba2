"""Solvable levels at random, after Racanière et al. 2017, "Imagination-augmented agents", appendix.

A room is carved by a random walk of 1.5·(height + width) steps that turns with probability 0.35, redraws its
direction at the border and stamps one of five 3×3 patterns at each step. Targets and player are placed
uniformly. Reverse play (moves and pulls, depth-first, in an order drawn once per level) then looks for the state
with every box off the targets and the highest score = (changes of the pulled box) × (sum of the boxes'
displacements). What was pulled can be pushed back, so a level is solvable by construction. Flips and rotations
of levels are *not* levels of the same distribution: the patterns are not symmetric.

Four choices are not in that text and follow from a comparison with real Boxoban levels
(`benchmarks/sokoban_levels.py`): the direction is redrawn at the border instead of the position being clamped there;
at most 1,000 states are visited; the order of actions is drawn once per level (anew at each state, the boxes end too
far from the targets: Kolmogorov–Smirnov distance .057 instead of .035); and the player is finally put uniformly on a
cell that it can reach and that is not a target.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from coulda.errors import CouldaError

MAX_DEPTH = 300
MAX_STATES = 1_000
# Most rooms yield a level at once; one that fails this often is too small for its boxes.
_MAX_ATTEMPTS = 1_000
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
        return generate_levels(seed, first, height, width, num_boxes, MAX_DEPTH, MAX_STATES, _MAX_ATTEMPTS, chunk)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = sum(pool.map(fill, range(0, n, _CHUNK)))
    if failures:
        raise CouldaError(
            f"{failures} of {n} levels of {height}×{width} with {num_boxes} boxes found no playable room in "
            f"{_MAX_ATTEMPTS} attempts each; use a larger room or fewer boxes"
        )
    return levels.reshape(n, height, width)


def _seed_of(key: jax.Array) -> np.uint64:
    """64 bits for a compiled generator from a JAX key."""
    low, high = np.asarray(jax.random.bits(key, (2,), jnp.uint32)).astype(np.uint64)
    return low | high << np.uint64(32)
