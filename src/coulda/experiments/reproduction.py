"""Every figure of the paper at four sizes, in three worlds: what `coulda reproduce` runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from coulda.experiments import mismatch, models, policy_evaluation, policy_search
from coulda.experiments.mismatch import MismatchPreset
from coulda.experiments.models import ModelsPreset
from coulda.experiments.pipeline import Ingredients
from coulda.experiments.policy_evaluation import EvaluationPreset
from coulda.experiments.policy_search import PLANNERS, SearchPreset, Setting, every_method
from coulda.recipes.imitation import POLICY_RECIPES, policy_recipe
from coulda.recipes.impala import impala_recipe
from coulda.recipes.scenario_model import SCENARIO_RECIPES, ScenarioRecipe
from coulda.recipes.sokoban import PolicyNetwork, find_sokoban

OWN_WORLDS = {"smoke": "7x7", "quick": "7x7", "desktop": "8x8", "paper": "10x10"}
"""The world of each preset, where no other is asked for."""


def ingredients(preset: str, world: str | None = None, seed: int = 0) -> Ingredients:
    """Levels, policy, scenario model and log of a preset, in its own world or another.

    "paper" has the appendices' networks, and their batch and learning rate of scenarios.
    """
    world, scenarios = world or OWN_WORLDS[preset], SCENARIO_RECIPES[preset]
    find_sokoban(world)  # refuses a name that is none
    if preset == "smoke":
        return Ingredients(world, POLICY_RECIPES["smoke"], scenarios, logged=32, truth=64, seed=seed)
    if preset == "quick":
        # The solver teaches quickly in the smallest world; in larger ones IMPALA gets further in the same time.
        policy = POLICY_RECIPES["quick"] if world == "7x7" else impala_recipe(world, "quick")
        return Ingredients(world, policy, scenarios, evaluation_levels=0, seed=seed)
    if preset == "paper":
        policy = impala_recipe(world, "paper")
        return Ingredients(world, policy, scenarios, logged=100_000, truth=100_000, seed=seed)
    return replace(_DESKTOP[world], seed=seed)


_DESKTOP = {
    "7x7": Ingredients(
        "7x7",
        replace(POLICY_RECIPES["quick"], updates=1500),
        ScenarioRecipe(levels=60_000, expert=True),
        logged=25_000,
    ),
    "8x8": Ingredients(
        "8x8", impala_recipe("8x8", "quick"), ScenarioRecipe(updates=4000, levels=60_000), logged=25_000
    ),
    # The paper's world, with networks that two cores can train.
    "10x10": Ingredients(
        "10x10",
        policy_recipe("10x10", "desktop"),
        ScenarioRecipe(updates=2500, levels=60_000),
        logged=10_000,
    ),
}


def models_preset(sizes: Ingredients, preset: str) -> ModelsPreset:
    """How good the policy and the scenario model are."""
    return ModelsPreset(sizes, episodes=64 if preset == "smoke" else 2000)


def evaluation_preset(sizes: Ingredients, preset: str) -> EvaluationPreset:
    """Figure 2, left."""
    parts = policy_evaluation.FEWER_PARTS if preset == "quick" else policy_evaluation.PARTS_OF_T
    seeds = 1
    if preset == "desktop":
        # What noisy policies achieve is rare, and the truth is measured but once.
        seeds, sizes = 3, replace(sizes, truth=50_000 if sizes.world == "10x10" else 100_000)
    return EvaluationPreset(sizes, parts_of_t=parts, seeds=seeds, separate=preset == "paper")


def search_preset(sizes: Ingredients, preset: str) -> SearchPreset:
    """Figure 2, right."""
    made = SearchPreset(replace(sizes, scenarios=_scenarios_of_search(sizes, preset)))
    if preset == "smoke":
        return replace(
            made,
            settings=(Setting("CF-GPS"), Setting("IMPALA")),
            seeds=2,
            updates=2,
            evaluate_every=1,
            evaluation_levels=32,
            num_episodes=2,
            num_rollouts=2,
            num_resampled=2,
            network=PolicyNetwork(channels=4),
        )
    if preset == "quick":
        return replace(made, settings=every_method("scenario"), seeds=1, updates=200)
    if preset == "paper":
        return replace(
            made,
            updates=20_000,
            evaluate_every=1000,
            network=PolicyNetwork(layers=3, channels=32, focus=False),
            learning_rate=2e-3,
            time_constant=1e5,
            num_resampled=160,
        )
    if sizes.world == "7x7":
        return replace(made, updates=300)
    # Both weightings would take twice as long; this one learns faster.
    made = replace(made, settings=every_method("batch, no ratio"), seeds=5, time_constant=2e4)
    if sizes.world == "8x8":
        return replace(made, updates=800)
    # In the paper's world a solved level would outweigh all others at temperature 1, and what limits learning is how
    # many steps are taken towards the argmax of equation 1, and how large they are: results/NOTES.md has the trials.
    made = replace(made, updates=2000, temperature=4.0, steps=4, num_resampled=16, falling=0.5)
    return replace(made, learning_rate=1e-2, impala_learning_rate=5e-3)


def _scenarios_of_search(sizes: Ingredients, preset: str) -> ScenarioRecipe:
    """A scenario model for the episodes of all policies on the way, not for the last percents of the uniform one's."""
    updates = min(sizes.scenarios.updates, 2500) if preset == "desktop" else sizes.scenarios.updates
    return replace(sizes.scenarios, expert=True, updates=updates)


def planners_preset(sizes: Ingredients, preset: str) -> SearchPreset:
    """CF-GPS with three experts on one budget."""
    return replace(search_preset(sizes, preset), settings=PLANNERS, name="planners")


def mismatch_preset(sizes: Ingredients, preset: str) -> MismatchPreset:
    """Figure 4."""
    return MismatchPreset(sizes, episodes=64 if preset == "smoke" else 2000)


class Figure(NamedTuple):
    """One figure."""

    preset: Callable[[Ingredients, str], Any]
    """(ingredients, name of the preset) -> all its sizes."""
    reproduce: Callable[..., dict[str, Any]]
    """(folder, sizes, progress) -> its numbers."""


FIGURES = {
    "models": Figure(models_preset, models.reproduce),
    "evaluation": Figure(evaluation_preset, policy_evaluation.reproduce),
    "search": Figure(search_preset, policy_search.reproduce),
    "planners": Figure(planners_preset, policy_search.reproduce),
    "mismatch": Figure(mismatch_preset, mismatch.reproduce),
}
