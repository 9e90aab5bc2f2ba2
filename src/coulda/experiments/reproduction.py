"""Every figure of the paper at four sizes: what `coulda reproduce` runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coulda.errors import CouldaError
from coulda.experiments import mismatch, models, policy_evaluation, policy_search
from coulda.experiments.mismatch import MismatchPreset
from coulda.experiments.models import ModelsPreset
from coulda.experiments.pipeline import Ingredients
from coulda.experiments.policy_evaluation import EvaluationPreset
from coulda.experiments.policy_search import PLANNERS, SearchPreset, Setting, every_method
from coulda.recipes.impala import RECIPES, ImpalaRecipe
from coulda.recipes.networks import PolicyRecipe, ScenarioRecipe

_POLICY = PolicyRecipe(batch=32, learning_rate=8e-3, levels=60_000)
_SMALL_POLICY = PolicyRecipe(channels=4, units=8, updates=3, batch=4, levels=64)
_SMALL_MODEL = ScenarioRecipe(num_layers=1, channels=4, latents=2, updates=3, batch=4, levels=64)

INGREDIENTS = {
    "smoke": Ingredients("7x7", _SMALL_POLICY, _SMALL_MODEL, logged=32, truth=64),
    "quick": Ingredients(
        "7x7",
        replace(_POLICY, updates=700),
        ScenarioRecipe(updates=1000, levels=60_000),
        evaluation_levels=0,
    ),
    "desktop": Ingredients(
        "8x8",
        ImpalaRecipe(preset="8x8", updates=3000, levels=60_000),
        ScenarioRecipe(updates=4000, levels=60_000),
        logged=25_000,
    ),
    "paper": Ingredients(
        "10x10",
        RECIPES["10x10"],
        ScenarioRecipe(8, 32, updates=1_000_000, batch=4, learning_rate=3e-4, levels=1_000_000),
        logged=100_000,
        truth=100_000,
    ),
}
"""Levels, policy, scenario model and log. "paper" has the appendices' networks, batch and rate of scenarios."""

WORLDS: dict[str, dict[str, Any]] = {
    "7x7": {
        "policy": replace(_POLICY, updates=1500),
        "scenarios": ScenarioRecipe(levels=60_000, expert=True),
    },
    "10x10": {
        "policy": ImpalaRecipe(preset="10x10", updates=12_000, levels=60_000),
        "scenarios": ScenarioRecipe(updates=4000, levels=60_000),
        "logged": 10_000,
    },
}
"""Other worlds for the desktop: the smallest, and the paper's, with networks that two cores can train."""


@dataclass(frozen=True)
class Reproduction:
    """One experiment at one size."""

    run: Callable[[Path, bool], dict[str, Any]]
    """(folder, progress) -> its numbers."""
    preset: Any


def ingredients(preset: str, world: str | None, seed: int) -> Ingredients:
    """Of a preset, in its own world or another."""
    found = replace(INGREDIENTS[preset], seed=seed)
    if world is None or world == found.world:
        return found
    if world not in WORLDS or preset != "desktop":
        raise CouldaError(f"--world {world} goes with --preset desktop and one of {', '.join(WORLDS)}.")
    return replace(found, world=world, **WORLDS[world])


def networks(begin: Ingredients, preset: str) -> Reproduction:
    """How good the policy and the scenario model are."""
    made = ModelsPreset(begin, episodes=64 if preset == "smoke" else 2000)
    return Reproduction(lambda folder, progress: models.reproduce(folder, made, progress), made)


def evaluation(begin: Ingredients, preset: str) -> Reproduction:
    """Figure 2, left."""
    parts = policy_evaluation.FEWER_PARTS if preset == "quick" else policy_evaluation.PARTS_OF_T
    seeds = 1
    # A seed of the paper's world takes hours on a desktop.
    if preset == "desktop" and begin.world != "10x10":
        # What noisy policies achieve is rare, and the truth is measured but once.
        seeds, begin = 3, replace(begin, truth=100_000)
    made = EvaluationPreset(begin, parts_of_t=parts, seeds=seeds, separate=preset == "paper")
    return Reproduction(lambda folder, progress: policy_evaluation.reproduce(folder, made, progress), made)


def search(begin: Ingredients, preset: str) -> Reproduction:
    """Figure 2, right."""
    begin = replace(begin, scenarios=_scenarios_of_search(begin, preset))
    slowly = {"settings": every_method("batch, no ratio"), "time_constant": 2e4}
    desktop = {
        "7x7": {"updates": 300},
        # Both weightings would take twice as long; this one learns faster.
        "8x8": slowly | {"seeds": 5, "updates": 800},
        "10x10": slowly | {"seeds": 3, "updates": 300, "evaluate_every": 50},
    }
    sizes: dict[str, dict[str, Any]] = {
        "smoke": {
            "settings": (Setting("CF-GPS"), Setting("IMPALA")),
            "seeds": 2,
            "updates": 2,
            "evaluate_every": 1,
            "evaluation_levels": 32,
            "num_episodes": 2,
            "num_rollouts": 2,
            "num_resampled": 2,
            "channels": 4,
        },
        "quick": {"settings": every_method("scenario"), "seeds": 1, "updates": 200},
        "desktop": desktop[begin.world],
        "paper": {
            "updates": 20_000,
            "evaluate_every": 1000,
            "layers": 3,
            "channels": 32,
            "focus": False,
            "learning_rate": 2e-3,
            "time_constant": 1e5,
            "num_resampled": 160,
        },
    }
    made = replace(SearchPreset(begin), **sizes[preset])
    return Reproduction(lambda folder, progress: policy_search.reproduce(folder, made, progress), made)


def _scenarios_of_search(begin: Ingredients, preset: str) -> ScenarioRecipe:
    """For the episodes of all policies on the way, and not for the last percents of those of the uniform one."""
    if preset == "desktop" and begin.world == "10x10":
        # The solver takes longer there than the network: the model of the evaluation has to do.
        return begin.scenarios
    updates = min(begin.scenarios.updates, 2500) if preset == "desktop" else begin.scenarios.updates
    return replace(begin.scenarios, expert=True, updates=updates)


def planners(begin: Ingredients, preset: str) -> Reproduction:
    """CF-GPS with three experts on one budget."""
    found = search(begin, preset).preset
    made = replace(found, settings=PLANNERS, name="planners")
    return Reproduction(lambda folder, progress: policy_search.reproduce(folder, made, progress), made)


def latent_mismatch(begin: Ingredients, preset: str) -> Reproduction:
    """Figure 4."""
    made = MismatchPreset(begin, episodes=64 if preset == "smoke" else 2000)
    return Reproduction(lambda folder, progress: mismatch.reproduce(folder, made, progress), made)


FIGURES: dict[str, Callable[[Ingredients, str], Reproduction]] = {
    "models": networks,
    "evaluation": evaluation,
    "search": search,
    "planners": planners,
    "mismatch": latent_mismatch,
}
