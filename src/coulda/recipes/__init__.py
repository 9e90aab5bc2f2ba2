"""Worlds to work in, and recipes for what is trained in them: what the commands run, for use from Python.

`worlds` has small worlds and finds a user's own, `sokoban` the worlds of PO-Sokoban and their pools of levels. `impala`
trains a policy without a model and `search` on counterfactual trajectories; `imitation` trains PO-Sokoban's policy from
the exact solver and `scenario_model` its model p(U | h_t), and `hindsight` trains that of any simulator. `held_out`
measures on levels that nothing was trained on, and `running` says where a run is kept. A recipe is a frozen dataclass,
and presets are values of it. Each is imported when it is first asked for: a command needs one of them.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coulda.recipes.calibration import CalibrationRecipe
    from coulda.recipes.evaluation import EvaluationRecipe
    from coulda.recipes.held_out import HeldOut
    from coulda.recipes.hindsight import HindsightRecipe
    from coulda.recipes.imitation import POLICY_RECIPES, PolicyRecipe, policy_recipe, train_policy
    from coulda.recipes.impala import IMPALA_RECIPES, ImpalaRecipe, impala_recipe, learn
    from coulda.recipes.running import Running
    from coulda.recipes.scenario_model import (
        SCENARIO_RECIPES,
        ScenarioNetwork,
        ScenarioRecipe,
        quality,
        train_scenarios,
    )
    from coulda.recipes.search import SEARCH_RECIPES, SearchRecipe, model_return, search_policy, true_return
    from coulda.recipes.sokoban import (
        PAPER_POLICY,
        POOLS,
        SMALLEST_POLICY,
        SOKOBAN_WORLDS,
        PolicyNetwork,
        SokobanWorld,
        check_disjoint,
        draw_levels,
        find_sokoban,
        level_key,
        make_sokoban,
        pool_of,
        solvers,
    )
    from coulda.recipes.worlds import WORLDS, World, find_world, hidden_bit_model, own_world

__all__ = [
    "IMPALA_RECIPES",
    "PAPER_POLICY",
    "POLICY_RECIPES",
    "POOLS",
    "SCENARIO_RECIPES",
    "SEARCH_RECIPES",
    "SMALLEST_POLICY",
    "SOKOBAN_WORLDS",
    "WORLDS",
    "CalibrationRecipe",
    "EvaluationRecipe",
    "HeldOut",
    "HindsightRecipe",
    "ImpalaRecipe",
    "PolicyNetwork",
    "PolicyRecipe",
    "Running",
    "ScenarioNetwork",
    "ScenarioRecipe",
    "SearchRecipe",
    "SokobanWorld",
    "World",
    "check_disjoint",
    "draw_levels",
    "find_sokoban",
    "find_world",
    "hidden_bit_model",
    "impala_recipe",
    "learn",
    "level_key",
    "make_sokoban",
    "model_return",
    "own_world",
    "policy_recipe",
    "pool_of",
    "quality",
    "search_policy",
    "solvers",
    "train_policy",
    "train_scenarios",
    "true_return",
]

_FILES = {
    "calibration": ("CalibrationRecipe",),
    "evaluation": ("EvaluationRecipe",),
    "held_out": ("HeldOut",),
    "hindsight": ("HindsightRecipe",),
    "imitation": ("POLICY_RECIPES", "PolicyRecipe", "policy_recipe", "train_policy"),
    "impala": ("IMPALA_RECIPES", "ImpalaRecipe", "impala_recipe", "learn"),
    "running": ("Running",),
    "scenario_model": ("SCENARIO_RECIPES", "ScenarioNetwork", "ScenarioRecipe", "quality", "train_scenarios"),
    "search": ("SEARCH_RECIPES", "SearchRecipe", "model_return", "search_policy", "true_return"),
    "sokoban": (
        "PAPER_POLICY",
        "POOLS",
        "SMALLEST_POLICY",
        "SOKOBAN_WORLDS",
        "PolicyNetwork",
        "SokobanWorld",
        "check_disjoint",
        "draw_levels",
        "find_sokoban",
        "level_key",
        "make_sokoban",
        "pool_of",
        "solvers",
    ),
    "worlds": ("WORLDS", "World", "find_world", "hidden_bit_model", "own_world"),
}
_HOME = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
