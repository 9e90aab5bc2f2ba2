"""Levels that nothing was trained on, and how good a policy is on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.environments.sokoban import Sokoban
from coulda.pomdp import Policy, batched, rollout
from coulda.recipes.sokoban import SokobanWorld, draw_levels, make_sokoban
from coulda.trainer.loop import Evaluate


@dataclass(frozen=True)
class HeldOut:
    """A world with levels that nothing was trained on, of the pool "truth", and how many episodes measure it."""

    environment: Sokoban
    episodes: int = 1000

    @classmethod
    def drawn(cls, seed: int, world: SokobanWorld, episodes: int) -> "HeldOut":
        """A measure with as many levels as episodes."""
        return cls(make_sokoban(draw_levels(jax.random.key(seed), world, "truth", episodes), world), episodes)

    def solve_rate(self, key: Array, policy: Policy) -> dict[str, Array]:
        """The share of levels that the policy solves, and its mean return."""
        return _solve_rate(self.environment, policy, jax.random.split(key, self.episodes))


Measure = Callable[[HeldOut, Array, Any], dict[str, Array]]
"""(held-out levels, key, state of the training) -> metrics."""


def measured(seed: int, world: SokobanWorld, episodes: int, measure: Measure) -> Evaluate | None:
    """The trainer's `evaluate`, on held-out levels; None where no episodes are wanted."""
    if not episodes:
        return None
    held_out = HeldOut.drawn(seed + 1, world, episodes)
    return lambda key, state: measure(held_out, key, state)


@eqx.filter_jit
def _solve_rate(environment: Sokoban, policy: Policy, keys: Array) -> dict[str, Array]:
    def one(key: Array) -> tuple[Array, Array]:
        trajectory = rollout(environment, policy, environment.scenario_prior.sample(key))
        return environment.solved(trajectory.state[-1]).astype(jnp.float32), trajectory.episode_return

    solved, returns = batched(one, keys)
    return {"held_out/solved": jnp.mean(solved), "held_out/return": jnp.mean(returns)}
