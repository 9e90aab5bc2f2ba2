"""The worlds of PO-Sokoban in which experiments run, and pools of levels that never share one.

Small worlds repeat their levels, so that two batches from the generator are not disjoint. A level therefore belongs to
one pool by its own digest, whoever draws it: what trains a policy, what trains a scenario model, what is logged
and what measures the truth cannot overlap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import numpy as np
from jax import Array

from coulda.environments.sokoban import Sokoban, SolverPlanners, UniformLevels, generate, solver_planners, tiles
from coulda.errors import CouldaError
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.policies.grids import GridPolicy
from coulda.policies.last_seen import LastSeenPolicy
from coulda.pomdp import GumbelMaxChoice, Scenario
from coulda.progress import Advance


@dataclass(frozen=True)
class SokobanWorld:
    """A world of square levels."""

    side: int
    """Tiles along an edge of the grid, the border of walls included."""
    boxes: int
    """Boxes, and targets, in each level."""
    horizon: int
    """The horizon T."""
    mask: float
    """The probability that a tile is masked."""

    @property
    def max_states(self) -> int:
        """How many states the boxes and the agent have in a level without inner walls: a table needs no more."""
        floor = (self.side - 2) ** 2
        return math.comb(floor, self.boxes) * floor


SOKOBAN_WORLDS: dict[str, SokobanWorld] = {
    "7x7": SokobanWorld(7, 1, 25, 0.8),
    "8x8": SokobanWorld(8, 2, 40, 0.875),
    "10x10": SokobanWorld(10, 3, 50, 0.9),
}
"""The last is the paper's. The others keep mask^T as small: a tile is seen at least once about as often."""

POOLS = {"policy": 0.3, "scenarios": 0.3, "log": 0.2, "truth": 0.2}
"""Who uses levels, and each one's share of all of them."""

LEVELS_AT_ONCE = 250_000
"""How many levels the generator draws between two looks at the progress."""


@dataclass(frozen=True)
class PolicyNetwork:
    """The architecture of a policy."""

    memory: Literal["conv-lstm", "last-seen"] = "conv-lstm"
    """What the policy remembers: what a conv-LSTM learns to (paper), or what it last saw of each cell."""
    layers: int = 1
    """Layers of the policy's conv-LSTM (paper: 3), or residual blocks over what was last seen."""
    channels: int = 16
    """Channels of each of its layers (paper: 32)."""
    ticks: int = 1
    """Passes through all layers of a conv-LSTM per observation (paper: 2)."""
    units: int = 128
    """Units of the dense layer before the heads."""
    focus: bool = True
    """Whether the heads look at the agent's cell and at what all have in common, in the place of every cell (paper:
    no); after a map of what was last seen they always do."""

    def first_policy(self, key: Array, world: SokobanWorld) -> GridPolicy:
        """The policy before it learns."""
        agent, sizes = (tiles.AGENT, tiles.AGENT_ON_TARGET), {"channels": self.channels, "units": self.units}
        if self.memory == "last-seen":
            options = {"horizon": world.horizon, "agent": agent, "masked": tiles.EMPTY, "blocks": self.layers}
            return LastSeenPolicy(key, world.side, world.side, **options, **sizes)
        options = {"layers": self.layers, "ticks": self.ticks, "focus": agent if self.focus else ()}
        return ConvLSTMPolicy(key, world.side, world.side, **options, **sizes)


SMALLEST_POLICY = PolicyNetwork(channels=4, units=8)
"""A policy for a look at whether everything runs."""
PAPER_POLICY = PolicyNetwork(layers=3, channels=32, ticks=2, units=256, focus=False)
"""The policy of the paper's appendix."""


def find_sokoban(name: str) -> SokobanWorld:
    """A world of PO-Sokoban by its name."""
    if name not in SOKOBAN_WORLDS:
        raise CouldaError(f"PO-Sokoban has no world '{name}'; its worlds are {', '.join(SOKOBAN_WORLDS)}.")
    return SOKOBAN_WORLDS[name]


def make_sokoban(levels: np.ndarray, world: SokobanWorld) -> Sokoban:
    """PO-Sokoban of that world on levels drawn uniformly from `levels`, with Gumbel-max actions."""
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(5),
        height=world.side,
        width=world.side,
        num_boxes=world.boxes,
        horizon=world.horizon,
        mask_probability=world.mask,
    )


def without_levels(world: SokobanWorld) -> Sokoban:
    """The rules of that world, for who knows none of its levels: in the place of them stands one that is all wall."""
    return make_sokoban(np.full((1, world.side, world.side), tiles.WALL, np.uint8), world)


def solvers(world: SokobanWorld) -> Callable[[Scenario], SolverPlanners]:
    """For a batch of scenarios, the exact solver of each level; it has no answer where a level is not one of ours."""
    return partial(solver_planners, num_boxes=world.boxes, max_states=world.max_states)


def level_key(seed: int) -> Array:
    """The key from which the levels of all pools are drawn."""
    return jax.random.split(jax.random.key(seed), 3)[0]


def draw_levels(key: Array, world: SokobanWorld, pool: str, n: int, advance: Advance | None = None) -> np.ndarray:
    """`n` levels of one pool, `uint8[n, side, side]`: what the generator draws, those of other pools left out.

    `advance` is told how many more there are.
    """
    found, count = [], 0
    for i in range(1000):
        wanted = min(int(1.1 * (n - count) / POOLS[pool]) + 16, LEVELS_AT_ONCE)
        batch = generate(jax.random.fold_in(key, i), wanted, world.side, world.side, world.boxes)
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
    """Refuse pools `[n, height, width]` of which two share a level."""
    owners: dict[bytes, str] = {}
    for name, levels in pools.items():
        for level in np.unique(levels.reshape(len(levels), -1), axis=0):
            if (owner := owners.setdefault(level.tobytes(), name)) != name:
                raise CouldaError(f"the pools '{owner}' and '{name}' share a level; draw them with `draw_levels`.")
