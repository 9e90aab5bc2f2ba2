"""What would have happened, had we acted differently? Counterfactual inference on logged experience.

What the README uses is here; the rest is in the packages, each of which says in `__all__` what it offers.
"""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from coulda.counterfactual import Counterfactual, counterfactual
from coulda.environments.sokoban.gym import register as _register
from coulda.errors import CouldaError
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

if TYPE_CHECKING:
    from coulda.episodes import EpisodeLog, collect, open_log
    from coulda.evaluation import Estimate, OnScenarios, compare, evaluate, model_free
    from coulda.hindsight import Exact, Prior
    from coulda.search import PolicySearch

_register()  # gymnasium.make("coulda/POSokoban-v0") after `import coulda`

__version__ = _version("coulda")

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
    "EpisodeLog": "episodes",
    "Estimate": "evaluation",
    "Exact": "hindsight",
    "OnScenarios": "evaluation",
    "PolicySearch": "search",
    "Prior": "hindsight",
    "collect": "episodes",
    "compare": "evaluation",
    "evaluate": "evaluation",
    "model_free": "evaluation",
    "open_log": "episodes",
}
"""Where to find what is imported when it is first asked for: these rooms take SciPy and optax with them."""


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'coulda' has no attribute '{name}'")
    return getattr(importlib.import_module(f"coulda.{_ROOMS[name]}"), name)
