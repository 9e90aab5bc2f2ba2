"""What would have happened, had we acted differently? Counterfactual inference on logged experience.

What the README uses is here, imported when it is first asked for; the rest is in the packages, each of which says in
`__all__` what it offers.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coulda.counterfactuals import Counterfactual, counterfactual
    from coulda.episodes import EpisodeLog, collect, open_log
    from coulda.errors import CouldaError
    from coulda.evaluation import Estimate, OnScenarios, compare, evaluate, model_free
    from coulda.hindsight import Exact, Prior
    from coulda.noise import (
        Bernoulli,
        Categorical,
        Empirical,
        Gumbel,
        Independent,
        NoiseDistribution,
        Normal,
        Point,
        Uniform,
        mix,
    )
    from coulda.pomdp import POMDP, Episode, Planner, Policy, Scenario, Trajectory, batched, rollout
    from coulda.scm import SCM, Intervention, Mechanism, SCMError, do
    from coulda.search import PolicySearch

__all__ = [
    "POMDP",
    "SCM",
    "Bernoulli",
    "Categorical",
    "CouldaError",
    "Counterfactual",
    "Empirical",
    "Episode",
    "EpisodeLog",
    "Estimate",
    "Exact",
    "Gumbel",
    "Independent",
    "Intervention",
    "Mechanism",
    "NoiseDistribution",
    "Normal",
    "OnScenarios",
    "Planner",
    "Point",
    "Policy",
    "PolicySearch",
    "Prior",
    "SCMError",
    "Scenario",
    "Trajectory",
    "Uniform",
    "batched",
    "collect",
    "compare",
    "counterfactual",
    "do",
    "evaluate",
    "mix",
    "model_free",
    "open_log",
    "rollout",
]

_ROOMS = {
    "counterfactuals": ("Counterfactual", "counterfactual"),
    "episodes": ("EpisodeLog", "collect", "open_log"),
    "errors": ("CouldaError",),
    "evaluation": ("Estimate", "OnScenarios", "compare", "evaluate", "model_free"),
    "hindsight": ("Exact", "Prior"),
    "noise": (
        "Bernoulli",
        "Categorical",
        "Empirical",
        "Gumbel",
        "Independent",
        "NoiseDistribution",
        "Normal",
        "Point",
        "Uniform",
        "mix",
    ),
    "pomdp": ("POMDP", "Episode", "Planner", "Policy", "Scenario", "Trajectory", "batched", "rollout"),
    "scm": ("SCM", "Intervention", "Mechanism", "SCMError", "do"),
    "search": ("PolicySearch",),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("coulda")
    if name not in _HOME:
        raise AttributeError(f"module 'coulda' has no attribute '{name}'")
    return getattr(importlib.import_module(f"coulda.{_HOME[name]}"), name)
