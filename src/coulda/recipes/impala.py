"""A policy by IMPALA, without a model: in any world with discrete actions, a small one or PO-Sokoban.

In PO-Sokoban the policy learns on levels of the pool "policy" and is measured on levels that nothing was trained on.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import msgspec
import optax
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation import on_policy
from coulda.executors import Executor, Work, WorkSpec
from coulda.learners import ActorCriticLoss, Impala, episodes_of
from coulda.naming import anywhere
from coulda.policies import RecurrentPolicy
from coulda.policies.actor_critic import ActorCritic
from coulda.pomdp import POMDP
from coulda.recipes.held_out import HeldOut
from coulda.recipes.running import Running, falling
from coulda.recipes.sokoban import (
    PAPER_POLICY,
    SMALLEST_POLICY,
    SOKOBAN_WORLDS,
    PolicyNetwork,
    draw_levels,
    find_sokoban,
    make_sokoban,
)
from coulda.recipes.worlds import find_world
from coulda.trainer import Trained


@dataclass(frozen=True)
class ImpalaRecipe:
    """What is learned, where, and how: everything that a resumed run must share with the one before it."""

    world: str = "7x7"
    """Where: bandit, hidden-bit, tiger, sepsis, 7x7, 8x8, 10x10, or your own: file.py:function, returning a World."""
    network: PolicyNetwork = field(default_factory=PolicyNetwork)
    """The architecture of the policy in PO-Sokoban."""
    width: int = 32
    """Units of the recurrent policy in worlds other than PO-Sokoban."""
    updates: int = 20_000
    """Policy updates in all, those before a resume included."""
    batch: int = 32
    """Episodes per update."""
    learning_rate: float = 4e-3
    """The learning rate of Adam, constant for the first half and then falling to 0 along a cosine."""
    entropy_weight: float = 0.02
    """The weight of the policy's entropy in the loss."""
    # Credit for a push goes to the moves just before it. After 300 updates at 8x8, one seed each, the return in
    # training was 1.1 with γ = λ = .9, and .66 with .97 and .95.
    discount: float = 0.9
    """The discount γ."""
    decay: float = 0.9
    """The decay λ of the traces."""
    max_staleness: int = 0
    """How many updates the actors are behind: with 0 they wait for the learner, with 1 they act while it learns."""
    levels: int = 100_000
    """Different levels to learn from, at most, in PO-Sokoban."""
    seed: int = 0
    """The seed of everything that is drawn."""

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, its gradients clipped."""
        return falling(self.learning_rate, self.updates, self.updates - self.updates // 2)

    @property
    def loss(self) -> ActorCriticLoss:
        """Policy, value and entropy."""
        return ActorCriticLoss(self.discount, self.decay, entropy_weight=self.entropy_weight)

    @property
    def spec(self) -> WorkSpec:
        """The recipe of the actors' work, for workers anywhere."""
        return WorkSpec("coulda.recipes.impala:actors", {"recipe": asdict(replace(self, world=anywhere(self.world)))})

    def training(self, executor: Executor) -> Impala:
        """The learner, of what the executor's actors do."""
        return Impala(executor, self.optimizer, self.loss, self.max_staleness)

    def work(self, environment: POMDP) -> Work:
        """Episodes of the actors there."""
        return episodes_of(environment, self.first_policy(), batch=self.batch, seed=self.seed)

    def make_environment(self) -> POMDP:
        """Where to learn."""
        if self.world not in SOKOBAN_WORLDS:
            return find_world(self.world).simulator
        world = find_sokoban(self.world)
        return make_sokoban(draw_levels(jax.random.key(self.seed), world, "policy", self.levels), world)

    def first_policy(self) -> ActorCritic:
        """π^0: a conv-LSTM for PO-Sokoban, a small recurrent network for all else."""
        key, _ = jax.random.split(jax.random.key(self.seed))
        if self.world in SOKOBAN_WORLDS:
            return self.network.first_policy(key, find_sokoban(self.world))
        environment = find_world(self.world).simulator
        spaces: Any = environment.observation_space, environment.action_space
        if not hasattr(environment.action_space, "n"):
            raise CouldaError(
                f"IMPALA learns discrete actions here, and the actions of '{self.world}' are {spaces[1]}; "
                f"`coulda search --world {self.world}` learns there, or name another --world."
            )
        return RecurrentPolicy(key, *spaces, width=self.width)

    def make_evaluation(self, episodes: int) -> Callable[[Array, ActorCritic], dict[str, Any]]:
        """(key, policy) -> its mean return, in PO-Sokoban on held-out levels, and the share of them that it solves."""
        if self.world in SOKOBAN_WORLDS:
            return HeldOut.drawn(self.seed + 1, find_sokoban(self.world), episodes).solve_rate
        environment = find_world(self.world).simulator
        return lambda key, policy: {"held_out/return": on_policy(key, environment, policy, episodes).value}


IMPALA_RECIPES = {
    "smoke": ImpalaRecipe(network=SMALLEST_POLICY, updates=3, batch=4, levels=64),
    "quick": ImpalaRecipe(updates=3000, levels=60_000),
    "desktop": ImpalaRecipe(),
    "paper": ImpalaRecipe(network=PAPER_POLICY, updates=1_000_000),
}
"""Recipes by preset, for any world. "paper" has the paper's network and number of updates."""


def impala_recipe(world: str, preset: str) -> ImpalaRecipe:
    """The recipe of a preset in a world."""
    recipe = replace(IMPALA_RECIPES[preset], world=world)
    # About an hour of one core at 8x8, where it still improves.
    return replace(recipe, updates=28_000) if preset == "desktop" and world in ("8x8", "10x10") else recipe


def actors(recipe: dict[str, Any]) -> Work:
    """What the actors do, from a recipe as JSON has it."""
    made = msgspec.convert(recipe, ImpalaRecipe)
    return made.work(made.make_environment())


def learn(recipe: ImpalaRecipe, executor: Executor, running: Running) -> Trained:
    """Train by IMPALA; the best and the last are kept.

    With no episodes of evaluation nothing is measured, and which is the best is not known.
    """
    _, key = jax.random.split(jax.random.key(recipe.seed))
    evaluate = None
    if running.evaluation_episodes:
        measure = recipe.make_evaluation(running.evaluation_episodes)
        evaluate = lambda key, state: measure(key, state.policy)
    training, first = recipe.training(executor), recipe.first_policy()
    return running.train(key, training, first, recipe.updates, asdict(recipe), evaluate, best="held_out/return")
