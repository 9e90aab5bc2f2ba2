"""Search for a policy in a small world, on counterfactual trajectories: CF-GPS, GPS-like search and MB-PS."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import optax
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation import on_policy
from coulda.executors import Executor, Work, WorkSpec
from coulda.naming import anywhere
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import ExpertSchedule
from coulda.pomdp import Policy
from coulda.recipes.running import Running
from coulda.recipes.worlds import World, find_world
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.search.policy_search import collection_work
from coulda.trainer import Trained


@dataclass(frozen=True)
class SearchRecipe:
    """What is searched, where, and how. The scenarios make the method: prior is MB-PS, hindsight is CF-GPS."""

    world: str = "hidden-bit"
    """Where: bandit, hidden-bit, tiger, sepsis, linear, or your own: file.py:function, returning a World."""
    scenarios: Literal["prior", "first-observation", "hindsight"] = "hindsight"
    """Where scenarios come from: prior is MB-PS, first-observation is GPS-like, hindsight is CF-GPS."""
    updates: int = 200
    """Policy updates in all, those before a resume included."""
    episodes: int = 16
    """Logged episodes per update; one scenario is inferred from each."""
    rollouts: int = 10
    """Counterfactual trajectories per scenario."""
    refresh: int = 1
    """The behavior policy becomes a copy of the policy every so many updates."""
    planner: Literal["policy", "expert", "mcts"] = "policy"
    """Who plans: the policy itself, or its mixture with the world's expert or with tree search on the model."""
    beta: float = 0.5
    """The expert's share in the planner at first."""
    time_constant: float = 1e5
    """The time constant of beta's exponential decay, in episodes."""
    temperature: float = 1.0
    """The temperature of the return in the weights."""
    normalization: Literal["scenario", "batch"] = "scenario"
    """Over what the weights are normalized: a scenario's trajectories, or the batch, which is equation 1 as written."""
    ratio: bool = True
    """Whether the weights have the importance ratio of policy and planner."""
    resampled: int | None = None
    """Take gradients on this many trajectories, drawn by weight; on all by default."""
    learning_rate: float = 0.03
    """The learning rate of Adam."""
    seed: int = 0
    """The seed of everything that is drawn."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a resumed run must share with the one before it: all but how long it goes on."""
        return {name: value for name, value in asdict(self).items() if name != "updates"}

    def collection(self, batches: int) -> WorkSpec:
        """The recipe of the collection of episodes in so many batches, for workers anywhere."""
        settings = {"world": anywhere(self.world), "episodes": self.episodes, "batches": batches}
        return WorkSpec("coulda.recipes.search:collect", settings)

    def make_search(self, world: World, executor: Executor | None = None) -> PolicySearch:
        """The search that is described here; the executor's workers collect its episodes, or this process does."""
        return PolicySearch(
            world.environment,
            world.model,
            world.source(self.scenarios),
            optax.adam(self.learning_rate),
            self._planner(world),
            ReturnWeightedRegression(self.rollouts, self.temperature, self.normalization, self.ratio, self.resampled),
            self.episodes,
            self.refresh,
            executor=executor,
        )

    def first_policy(self, world: World) -> Policy:
        """π^0."""
        return world.policy(jax.random.fold_in(jax.random.key(self.seed), 1))

    def _planner(self, world: World) -> Any:
        if self.planner == "policy":
            return None
        expert = MCTS(world.model) if self.planner == "mcts" else world.expert
        if expert is None:
            raise CouldaError(f"world '{self.world}' has no expert; use --planner policy or --planner mcts.")
        if not hasattr(world.model.action_space, "n"):
            return expert  # continuous actions are not mixed: the expert plans alone
        return ExpertSchedule(expert, self.beta, self.time_constant)


SEARCH_RECIPES = {
    "smoke": SearchRecipe(updates=2, episodes=2, rollouts=2),
    "quick": SearchRecipe(updates=50),
    "desktop": SearchRecipe(),
    "paper": SearchRecipe(updates=20_000, resampled=160),
}
"""Recipes by preset, for any world. "paper" has as many updates and trajectories as the paper's PO-Sokoban."""


def search_policy(recipe: SearchRecipe, world: World, running: Running, executor: Executor | None = None) -> Trained:
    """Search in the recipe's world, with the true return along the way; `state.policy` is the policy."""
    key = jax.random.key(recipe.seed)
    evaluate = None
    if running.evaluation_episodes:
        measure = true_return(world, running.evaluation_episodes)
        evaluate = lambda key, state: measure(key, state.policy)
    made, first = recipe.make_search(world, executor), recipe.first_policy(world)
    return running.train(key, made, first, recipe.updates, recipe.settings, evaluate, best="true_return")


def true_return(world: World, episodes: int) -> Callable[[Array, Policy], dict[str, float]]:
    """(key, policy) -> its mean return in the environment itself, and its 95% interval."""

    def measure(key: Array, policy: Policy) -> dict[str, float]:
        found = on_policy(key, world.environment, policy, episodes)
        assert found.value is not None
        assert found.interval is not None
        return {"true_return": found.value, "low": found.interval.low, "high": found.interval.high}

    return measure


def collect(world: str, episodes: int, batches: int) -> Work:
    """What workers do: a share of the episodes of an update."""
    made = find_world(world)
    return collection_work(made.environment, made.policy(jax.random.key(0)), episodes, batches)
