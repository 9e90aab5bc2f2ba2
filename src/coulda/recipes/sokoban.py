"""The worlds of PO-Sokoban in which experiments run, and pools of levels that never share one.

Small worlds repeat their levels, so that two batches from the generator are not disjoint. A level therefore belongs to
one pool by its own digest, whoever draws it: what trains a policy, what trains a scenario model, what is logged
and what measures the truth cannot overlap.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array

from coulda.environments.sokoban import Sokoban, UniformLevels, generate, tiles
from coulda.errors import CouldaError
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.pomdp import GumbelMaxChoice
from coulda.progress import Advance


@dataclass(frozen=True)
class SokobanWorld:
    """A world: its grid with the border, its boxes, its horizon T, and the probability that a tile is masked."""

    side: int
    boxes: int
    horizon: int
    mask: float

    @property
    def max_states(self) -> int:
        """States of the boxes and the agent in a level without inner walls: more need no table."""
        floor = (self.side - 2) ** 2
        return math.comb(floor, self.boxes) * floor


SIZES = {
    "7x7": SokobanWorld(7, 1, 25, 0.8),
    "8x8": SokobanWorld(8, 2, 40, 0.875),
    "10x10": SokobanWorld(10, 3, 50, 0.9),
}
"""The last is the paper's. The others keep mask^T as small: a tile is seen at least once about as often."""

POOLS = {"policy": 0.3, "scenarios": 0.3, "log": 0.2, "truth": 0.2}
"""Who uses levels, and each one's share of all of them."""


LEVELS_AT_ONCE = 250_000
"""That the generator draws between two looks at the progress."""


def find_size(name: str) -> SokobanWorld:
    """A world by its name."""
    if name not in SIZES:
        raise CouldaError(f"there is no world '{name}'; the worlds are {', '.join(SIZES)}.")
    return SIZES[name]


def sokoban(levels: np.ndarray, size: SokobanWorld) -> Sokoban:
    """PO-Sokoban of that size on levels drawn uniformly from `levels`, with Gumbel-max actions."""
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(5),
        height=size.side,
        width=size.side,
        num_boxes=size.boxes,
        horizon=size.horizon,
        mask_probability=size.mask,
    )


def sokoban_policy(key: Array, size: SokobanWorld, *, focus: bool, **options: int) -> ConvLSTMPolicy:
    """A policy before it learns; with `focus` its heads look at the agent's cell and at the mean of all."""
    looks_at = (tiles.AGENT, tiles.AGENT_ON_TARGET) if focus else ()
    return ConvLSTMPolicy(key, size.side, size.side, focus=looks_at, **options)


def draw_levels(key: Array, size: SokobanWorld, pool: str, n: int, advance: Advance | None = None) -> np.ndarray:
    """`n` levels of one pool, `uint8[n, size, size]`: what the generator draws, those of other pools left out.

    `advance` is told how many more there are.
    """
    found, count = [], 0
    for i in range(1000):
        wanted = min(int(1.1 * (n - count) / POOLS[pool]) + 16, LEVELS_AT_ONCE)
        batch = generate(jax.random.fold_in(key, i), wanted, *_shape(size))
        found.append(batch[pool_of(batch) == pool])
        count += len(found[-1])
        if advance is not None:
            advance(len(found[-1]))
        if count >= n:
            break
    return np.concatenate(found)[:n]


def pool_of(levels: np.ndarray) -> np.ndarray:
    """The pool that each level `[n, height, width]` belongs to, by a digest of its tiles (FNV-1a, 64 bits)."""
    digest = np.full(len(levels), 0xCBF29CE484222325, np.uint64)
    with np.errstate(over="ignore"):
        for cell in levels.reshape(len(levels), -1).T:
            digest = (digest ^ cell) * np.uint64(0x100000001B3)
    # The upper bits: the lower ones of this digest mix less.
    place = (digest >> np.uint64(32)).astype(np.float64) / 2**32
    edges = np.cumsum(list(POOLS.values()))
    return np.array(list(POOLS))[np.minimum(np.searchsorted(edges, place, side="right"), len(POOLS) - 1)]


def check_disjoint(pools: dict[str, np.ndarray]) -> None:
    """Refuse pools `[n, height, width]` of which two share a level, or one holds a level of another's."""
    owners: dict[bytes, str] = {}
    for name, levels in pools.items():
        for level in np.unique(levels.reshape(len(levels), -1), axis=0):
            if (owner := owners.setdefault(level.tobytes(), name)) != name:
                raise CouldaError(f"the pools '{owner}' and '{name}' share a level; draw them with `draw_levels`.")


def _shape(size: SokobanWorld) -> tuple[int, int, int]:
    return size.side, size.side, size.boxes
