"""Search for a policy in a small world or your own, on counterfactual trajectories: CF-GPS, GPS-like search, MB-PS."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
import optax
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation import Returns, on_policy
from coulda.evaluation.intervals import mean_interval
from coulda.executors import Executor, Work, WorkSpec
from coulda.hindsight import ScenarioSource
from coulda.hindsight.choosing import chosen
from coulda.hindsight.source import informed
from coulda.naming import anywhere
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import ExpertSchedule
from coulda.pomdp import POMDP, Episode, Policy, Scenario, batched, rollout
from coulda.recipes.running import Running
from coulda.recipes.worlds import World, find_world, own_world
from coulda.search import Logged, PolicySearch, ReturnWeightedRegression
from coulda.search.policy_search import collection_work
from coulda.trainer import Trained


@dataclass(frozen=True)
class SearchRecipe:
    """What is searched, where, and how. The scenarios make the method: prior is MB-PS, hindsight is CF-GPS."""

    world: str | None = None
    """Where: bandit, hidden-bit (by default), tiger, sepsis, linear, or file.py:function, returning a World."""
    model: str | None = None
    """Or in a model of your own, file.py:name. Its hindsight is chosen for it."""
    policy: str | None = None
    """With a model of your own, the policy to begin with; its float arrays are what is searched."""
    environment: str | None = None
    """With a model of your own, the real world in which episodes are collected; by default the model itself."""
    log: str | None = None
    """Or a log, in any format, from which each update's episodes are drawn instead; then the true return is not known,
    and what the model says of the log's scenarios is told."""
    scenarios: str = "hindsight"
    """Where scenarios come from: prior is MB-PS, first-observation is GPS-like, hindsight is CF-GPS; so is the name of
    a source (exact, observed, particles, tempered, nuts) or the folder of a trained one (`coulda train-hindsight`), to
    overrule the one that is chosen."""
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
    steps: int = 1
    """Steps of Adam per update on the same trajectories, towards the argmax of equation 1."""
    discount: float = 1.0
    """The discount of the return that is climbed and measured; 1 is none."""
    learning_rate: float = 0.03
    """The learning rate of Adam."""
    seed: int = 0
    """The seed of everything that is drawn."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a resumed run must share with the one before it: all but how long it goes on."""
        return {name: value for name, value in asdict(self).items() if name != "updates"}

    def find(self) -> World:
        """The world that is named."""
        if self.model is None:
            for name in ("policy", "environment", "log"):
                if getattr(self, name) is not None:
                    raise CouldaError(f"{name} is '{getattr(self, name)}', but no model is named; add --model.")
            return find_world(self.world or "hidden-bit")
        if self.world is not None:
            raise CouldaError(f"world '{self.world}' has a model of its own; leave out --world or --model.")
        if self.policy is None:
            raise CouldaError(f"model '{self.model}' needs a policy to begin with; add --policy file.py:name.")
        return own_world(self.model, self.policy, self.environment, self.log)

    @property
    def place(self) -> str:
        """The name of the world, for people."""
        own = self.log or self.environment or self.model
        return self.world or "hidden-bit" if own is None else Path(own).name

    def collection(self, batches: int) -> WorkSpec:
        """The recipe of the collection of episodes in so many batches, for workers anywhere."""
        names = {name: getattr(self, name) for name in ("world", "model", "policy", "environment")}
        if self.log is not None:
            raise CouldaError(f"workers collect episodes, but they come from log '{self.log}'; leave out --executor.")
        places = {name: anywhere(value) for name, value in names.items() if value is not None}
        settings = {"places": places, "episodes": self.episodes, "batches": batches}
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
            self.discount,
            self.steps,
            executor=executor,
        )

    def first_policy(self, world: World) -> Policy:
        """π^0."""
        return world.policy(jax.random.fold_in(jax.random.key(self.seed), 1))

    def _planner(self, world: World) -> Any:
        if self.planner == "policy":
            return None
        expert = MCTS(world.model, discount=self.discount) if self.planner == "mcts" else world.expert
        if expert is None:
            raise CouldaError(f"world '{self.place}' has no expert; use --planner policy or --planner mcts.")
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
    """Search in the recipe's world, with the return along the way; `state.policy` is the policy."""
    key = jax.random.key(recipe.seed)
    made, first = recipe.make_search(world, executor), recipe.first_policy(world)
    measured, evaluate = metric(world), None
    if running.evaluation_episodes:
        measure = returns(made, recipe.seed, running.evaluation_episodes)
        evaluate = lambda key, state: measure(key, state.policy)
    return running.train(key, made, first, recipe.updates, recipe.settings, evaluate, best=measured)


Measure = Callable[[Array, Policy], dict[str, float]]
"""(key, policy) -> its mean return, under the name of `metric`, and its 95% interval."""


def metric(world: World) -> str:
    """What is measured: the true return, or what the model says where there is only a log."""
    return "model_return" if isinstance(world.environment, Logged) else "true_return"


def returns(search: PolicySearch, seed: int, episodes: int) -> Measure:
    """The true return in the environment; of a log, that in the model on scenarios inferred from the log."""
    if isinstance(search.environment, Logged):
        return model_return(search, seed, episodes)
    return true_return(search.environment, episodes, Returns(search.discount))


def true_return(environment: POMDP, episodes: int, asked: Returns | None = None) -> Measure:
    """Of the environment itself."""

    def measure(key: Array, policy: Policy) -> dict[str, float]:
        found = on_policy(key, environment, policy, episodes, returns=asked)
        assert found.value is not None
        assert found.interval is not None
        return {"true_return": found.value, "low": found.interval.low, "high": found.interval.high}

    return measure


def model_return(search: PolicySearch, seed: int, episodes: int) -> Measure:
    """On one scenario for each of so many episodes drawn from the log, the same for all policies: CF-PE, or MB-PE.

    The search learns from these episodes too, so that what was found looks a little better here than it is.
    """
    assert isinstance(search.environment, Logged)
    key_draw, key_infer = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2))
    drawn = search.environment.draw(key_draw, episodes)
    source, repeated = chosen(search.model, search.scenarios).source, search.environment.repeated
    scenarios = _scenarios(source, repeated, jax.random.split(key_infer, episodes), drawn)

    def measure(key: Array, policy: Policy) -> dict[str, float]:  # noqa: ARG001 (the scenarios are drawn)
        found = mean_interval(np.asarray(_returns(search.model, policy, search.discount, scenarios)))
        return {"model_return": found.mean, "low": found.low, "high": found.high}

    return measure


@eqx.filter_jit
def _scenarios(source: ScenarioSource, repeated: bool, keys: Array, episodes: Episode) -> Scenario:
    one = lambda pair: informed(source, repeated, pair[1]).infer(*pair)
    return batched(one, (keys, episodes))


@eqx.filter_jit
def _returns(model: POMDP, policy: Policy, discount: float, scenarios: Scenario) -> Array:
    return batched(lambda u: rollout(model, policy, u).episode.discounted_return(discount), scenarios)


def collect(places: dict[str, Any], episodes: int, batches: int) -> Work:
    """What workers do: a share of the episodes of an update."""
    made = SearchRecipe(**places).find()
    return collection_work(made.simulator, made.policy(jax.random.key(0)), episodes, batches)
