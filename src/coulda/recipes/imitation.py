"""A policy for PO-Sokoban from the exact solver, by DAgger: the quick way in small worlds."""

from dataclasses import asdict, dataclass, field, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from coulda.environments.sokoban import Sokoban
from coulda.learners.imitation import Imitation
from coulda.policies.grids import GridPolicy
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
    sharpness: float = 1.0
    """What the logits are multiplied with in the end. What the solver teaches under a mask is how likely each action is
    the right one; who acts with these probabilities dithers, and who mostly does the likeliest solves more."""
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
OVER_A_MAP = PolicyRecipe(
    PolicyNetwork("last-seen", layers=3, channels=32),
    updates=3000,
    batch=64,
    learning_rate=2e-3,
    cloning_updates=300,
    sharpness=5.0,
    levels=60_000,
)
"""In the paper's world two cores teach it in half an hour to solve more than half of new levels."""


def policy_recipe(world: str, preset: str) -> PolicyRecipe:
    """What is known to work best in a world: where a conv-LSTM learns little in hours, a map of what was last seen."""
    return OVER_A_MAP if (world, preset) == ("10x10", "desktop") else POLICY_RECIPES[preset]


def train_policy(seed: int, world: SokobanWorld, levels: np.ndarray, recipe: PolicyRecipe, running: Running) -> Trained:
    """DAgger from the exact solver, on `levels [n, side, side]` of the pool "policy"; `state.policy` is the policy.

    It learns as it is, and is measured, and returned, with the recipe's sharpness.
    """
    _, key_network, key_train = jax.random.split(jax.random.key(seed), 3)
    training = recipe.training(make_sokoban(levels, world), world)
    first = recipe.network.first_policy(key_network, world)
    settings = {"seed": seed, "world": asdict(world), "recipe": asdict(recipe)}
    sharp = lambda state: sharpened(state.policy, recipe.sharpness)
    solved = lambda held_out, key, state: held_out.solve_rate(key, sharp(state))
    evaluate = measured(seed, world, running.evaluation_episodes, solved)
    trained = running.train(key_train, training, first, recipe.updates, settings, evaluate)
    return replace(trained, state=eqx.tree_at(lambda state: state.policy, trained.state, sharp(trained.state)))


def sharpened(policy: GridPolicy, factor: float) -> GridPolicy:
    """The policy with all its logits times `factor`; what it says of values stays."""
    heads = lambda policy: (policy.heads.weight, policy.heads.bias)
    by = jnp.full_like(policy.heads.bias, factor).at[-1].set(1.0)
    return eqx.tree_at(heads, policy, replace_fn=lambda x: x * jnp.broadcast_to(by, x.shape))
