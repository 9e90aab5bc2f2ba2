"""PO-Sokoban as a POMDP (section 3.2; Figure 3 of the appendix), for any tile grid.

Rules, all of them:

- The agent moves one tile up, down, left or right; NOOP is always legal. It pushes a box that stands in its way if the
  tile behind is free, and stays where it is otherwise. What lies outside the grid is wall.
- +1 for a box onto a target, -1 for a box off one, +10 when the number of boxes on targets reaches `num_boxes`.
  Then, or when there is no agent, the episode is over: the state is absorbing and the reward 0.
- An observation is the state with every tile flipped to "empty" with probability `mask_probability`, independently,
  except in a `window` × `window` square round the agent. The caption of Figure 3 exempts a 3×3 window (the default);
  the text of section 3.2 does not (`window=0`), which is far harder: a policy that learns to solve 88% of the levels
  with the window solves 28% without, in the same time.

On malformed grids: with several agents the first in raster order acts, and the others are floor. Any number of boxes
and targets is played as it falls, but solved means `num_boxes` boxes on targets, so that a level with too few of
either cannot be solved. Nothing is repaired: `check_level` counts what is wrong.
"""

from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.sokoban import tiles
from coulda.environments.sokoban.noise import Bits, TileNoiseSeeds
from coulda.errors import CouldaError
from coulda.noise import Iid, Independent, NoiseDistribution
from coulda.pomdp import POMDP, ActionMechanism, Scenario


class Sokoban(POMDP):
    """PO-Sokoban. State, level and observation are `uint8[height, width]` grids of `tiles`."""

    levels: NoiseDistribution
    """P(U_s1) over levels; a model that believes in other levels is this one with another distribution here."""
    action_mechanism: ActionMechanism
    """How π(a | h) and U_a become one of the five actions of `tiles`: up, down, left, right, NOOP."""
    height: int = eqx.field(static=True, default=10)
    width: int = eqx.field(static=True, default=10)
    num_boxes: int = eqx.field(static=True, default=3)
    horizon: int = eqx.field(static=True, default=50)
    mask_probability: float = eqx.field(static=True, default=0.9)
    window: int = eqx.field(static=True, default=3)

    def __check_init__(self):
        if self.num_boxes < 1 or self.horizon < 1 or self.height < 1 or self.width < 1:
            raise CouldaError(
                f"Sokoban needs num_boxes, horizon, height and width of at least 1; got {self.num_boxes}, "
                f"{self.horizon}, {self.height}, {self.width}"
            )
        if not 0 <= self.mask_probability <= 1:
            raise CouldaError(f"mask_probability must lie in [0, 1], got {self.mask_probability}")
        if self.window < 0 or (self.window and self.window % 2 == 0):
            raise CouldaError(f"window must be 0 (none) or odd, got {self.window}; the paper's figure has 3")

    @property
    def observation_space(self) -> gymnasium.Space:
        """A tile category for each cell, one byte each."""
        return gymnasium.spaces.MultiDiscrete(np.full((self.height, self.width), tiles.NUM_TILES), dtype=np.uint8)

    @property
    def action_space(self) -> gymnasium.Space:
        """Up, down, left, right, NOOP."""
        return gymnasium.spaces.Discrete(tiles.NUM_ACTIONS)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """P(U_s1), the distribution of levels."""
        return self.levels

    @property
    def observation_noise(self) -> Bits:
        """32 bits per tile."""
        return Bits((self.height, self.width))

    @property
    def scenario_prior(self) -> NoiseDistribution:
        """P(U), with the observation noise of an episode as 64 bits (`TileNoise`)."""
        return Independent(
            Scenario(
                initial=self.initial_noise,
                transition=Iid(self.transition_noise, self.horizon),
                observation=TileNoiseSeeds(self.height, self.width),
                action=Iid(self.action_mechanism.noise, self.horizon),
            )
        )

    def initial(self, u: Array) -> Array:
        """The level, in which all agents but the first are floor."""
        first = self._cells == first_agent(u)
        floor = _either(tiles.has_target(u), tiles.TARGET, tiles.EMPTY)
        return jnp.where(tiles.has_agent(u) & ~first, floor, u)

    def transition(self, state: Array, action: Array, u: Any) -> Array:  # noqa: ARG002
        """Move, push or stay; deterministic."""
        tile = self.initial(state).reshape(-1)
        here = first_agent(tile)
        there, behind = self._neighbor(here, action, 1), self._neighbor(here, action, 2)
        outside = {"mode": "fill", "fill_value": tiles.WALL}
        ahead, beyond = tile.at[there].get(**outside), tile.at[behind].get(**outside)
        push = tiles.has_box(ahead) & _is_free(beyond)
        # NOOP looks ahead at the agent itself, which is neither free nor a box.
        moves = (push | _is_free(ahead)) & ~self.terminal(state)
        floor = _either(tile.at[here].get(**outside) == tiles.AGENT_ON_TARGET, tiles.TARGET, tiles.EMPTY)
        agent = _either(tiles.has_target(ahead), tiles.AGENT_ON_TARGET, tiles.AGENT)
        box = _either(tiles.has_target(beyond), tiles.BOX_ON_TARGET, tiles.BOX)
        changed = jnp.stack([moves, moves, moves & push])
        cells = jnp.where(changed, jnp.stack([here, there, behind]), tile.size)
        return tile.at[cells].set(jnp.stack([floor, agent, box]), mode="drop").reshape(state.shape)

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """The change of the number of boxes on targets, +10 when that solves the level."""
        before, after = _boxes_on_targets(state), _boxes_on_targets(next_state)
        solved = (after >= self.num_boxes) & (before < self.num_boxes)
        placed = (after - before).astype(jnp.float32)
        return tiles.REWARD_ON_TARGET * placed + jnp.where(solved, tiles.REWARD_SOLVED, 0.0)

    def terminal(self, state: Array) -> Array:
        """Solved, or without an agent."""
        return self.solved(state) | ~jnp.any(tiles.has_agent(state))

    def solved(self, state: Array) -> Array:
        """Whether as many boxes are on targets as the model has boxes."""
        return _boxes_on_targets(state) >= self.num_boxes

    def malformed(self, scenario: Scenario) -> Array:
        """Whether the level is none of the generator's: wrong agents, boxes or targets, or solved already."""
        level = scenario.initial
        agents, boxes, targets = (jnp.sum(f(level)) for f in (tiles.has_agent, tiles.has_box, tiles.has_target))
        wrong = (agents != 1) | (boxes != self.num_boxes) | (targets != self.num_boxes)
        return wrong | (_boxes_on_targets(level) >= self.num_boxes)

    def observe(self, state: Array, u: Array) -> Array:
        """The state with masked tiles shown as empty; u is `uint32[height, width]`, uniform bits."""
        masked = ~self.in_window(state) & below_probability(u, self.mask_probability)
        return jnp.where(masked, jnp.uint8(tiles.EMPTY), state)

    def observation_log_prob(self, observation: Array, state: Array) -> Array:
        """The log of p(o | s): each tile is seen, or masked, or impossible."""
        p = jnp.float32(self.mask_probability)
        observation = observation.astype(state.dtype)  # logs keep categories as wider integers
        seen, blank = observation == state, observation == tiles.EMPTY
        hidden = jnp.where(blank, jnp.where(seen, 0.0, jnp.log(p)), jnp.where(seen, jnp.log1p(-p), -jnp.inf))
        return jnp.sum(jnp.where(self.in_window(state), jnp.where(seen, 0.0, -jnp.inf), hidden))

    @property
    def _cells(self) -> Array:
        """The number of each tile in raster order, `int32[height, width]`."""
        return jnp.arange(self.height * self.width, dtype=jnp.int32).reshape(self.height, self.width)

    def _neighbor(self, cell: Array, action: Array, distance: int) -> Array:
        """The cell `distance` steps from `cell`; past the last one where that is outside the grid."""
        down, right = distance * jnp.array(tiles.DISPLACEMENTS, jnp.int32)[action]
        row, column = cell // self.width + down, cell % self.width + right
        inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
        return jnp.where(inside, row * self.width + column, self.height * self.width)

    def in_window(self, state: Array) -> Array:
        """Where the agent sees without noise, `bool[height, width]`."""
        here, reach = first_agent(state), self.window // 2
        row, column = self._cells // self.width, self._cells % self.width
        near = (abs(row - here // self.width) <= reach) & (abs(column - here % self.width) <= reach)
        return near & bool(self.window) & (here < self.height * self.width)


def _is_free(tile: Array) -> Array:
    """Whether a box or the agent can enter the tile."""
    return (tile == tiles.EMPTY) | (tile == tiles.TARGET)


def first_agent(tile_grid: Array) -> Array:
    """The cell of the first agent in raster order, or the number of cells when there is none."""
    agent = tiles.has_agent(tile_grid)
    cells = jnp.arange(agent.size, dtype=jnp.int32).reshape(agent.shape)
    return jnp.min(jnp.where(agent, cells, agent.size))


def _boxes_on_targets(tile_grid: Array) -> Array:
    """How many boxes stand on targets, int32."""
    return jnp.sum(tile_grid == tiles.BOX_ON_TARGET, dtype=jnp.int32)


def below_probability(bits: Array, probability: float) -> Array:
    """An event of the given probability (to 2^-32), from uniform 32 bits."""
    threshold = round(probability * 2**32)
    return bits < np.uint32(threshold) if threshold < 2**32 else jnp.ones(bits.shape, bool)


def _either(condition: Array, yes: int, no: int) -> Array:
    return jnp.where(condition, jnp.uint8(yes), jnp.uint8(no))
