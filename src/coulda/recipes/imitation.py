"""A policy for PO-Sokoban from the exact solver, by DAgger: the quick way in small worlds."""

from dataclasses import asdict, dataclass, field

import jax
import numpy as np

from coulda.environments.sokoban import Sokoban
from coulda.learners.imitation import Imitation
from coulda.recipes.held_out import measured
from coulda.recipes.running import Running, falling
from coulda.recipes.sokoban import PAPER_POLICY, SMALLEST_POLICY, PolicyNetwork, SokobanWorld, make_sokoban, solvers
from coulda.trainer import Trained


@dataclass(frozen=True)
class PolicyRecipe:
    """How a policy is made from the solver, by DAgger."""

    network: PolicyNetwork = field(default_factory=PolicyNetwork)
    """The policy's architecture."""
    updates: int = 3200
    """Policy updates in all, those before a resume included."""
    batch: int = 16
    """Episodes per update."""
    learning_rate: float = 1e-2
    """The learning rate of Adam, constant for the first half and then falling to 0 along a cosine."""
    cloning_updates: int = 100
    """Over so many updates the solver's share in acting falls from 1 to 0."""
    levels: int = 100_000
    """Different levels to learn from, at most."""

    def training(self, environment: Sokoban, world: SokobanWorld) -> Imitation:
        """DAgger from the exact solver."""
        optimizer = falling(self.learning_rate, self.updates, self.updates - self.updates // 2)
        return Imitation(environment, solvers(world), optimizer, self.batch, self.cloning_updates)


POLICY_RECIPES = {
    "smoke": PolicyRecipe(SMALLEST_POLICY, updates=3, batch=4, levels=64),
    "quick": PolicyRecipe(updates=700, batch=32, learning_rate=8e-3, levels=60_000),
    "desktop": PolicyRecipe(),
    "paper": PolicyRecipe(PAPER_POLICY, updates=1_000_000),
}
"""Recipes by preset. "paper" has the paper's network; there it learns by IMPALA."""


def train_policy(seed: int, world: SokobanWorld, levels: np.ndarray, recipe: PolicyRecipe, running: Running) -> Trained:
    """DAgger from the exact solver, on `levels [n, side, side]` of the pool "policy"; `state.policy` is the policy."""
    _, key_network, key_train = jax.random.split(jax.random.key(seed), 3)
    training = recipe.training(make_sokoban(levels, world), world)
    first = recipe.network.first_policy(key_network, world)
    settings = {"seed": seed, "world": asdict(world), "recipe": asdict(recipe)}
    solved = lambda held_out, key, state: held_out.solve_rate(key, state.policy)
    evaluate = measured(seed, world, running.evaluation_episodes, solved)
    return running.train(key_train, training, first, recipe.updates, settings, evaluate)
