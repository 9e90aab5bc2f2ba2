"""What would have happened, had we acted differently? Counterfactual inference on logged experience."""

from importlib.metadata import version as _version

from coulda.counterfactual import Counterfactual, counterfactual
from coulda.environments.sokoban.gym import register as _register
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

_register()  # gymnasium.make("coulda/POSokoban-v0") after `import coulda`

__version__ = _version("coulda")

__all__ = [
    "POMDP",
    "SCM",
    "Bernoulli",
    "Categorical",
    "Counterfactual",
    "Empirical",
    "Episode",
    "Gumbel",
    "Independent",
    "Intervention",
    "Mechanism",
    "NoiseDistribution",
    "Normal",
    "Planner",
    "Point",
    "Policy",
    "SCMError",
    "Scenario",
    "Trajectory",
    "Uniform",
    "batched",
    "counterfactual",
    "do",
    "mix",
    "rollout",
]
