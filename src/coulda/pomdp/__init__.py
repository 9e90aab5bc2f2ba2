"""POMDPs as structural causal models (paper, section 2.1 and Figure 1, right).

Model files to imitate, in the order in which they import each other: `scenario` (the noise of one episode),
`actions` (how a policy's distribution becomes an action), `model` (`POMDP`, and the two kinds of which exact
inference is known), `actors` (`Policy`, `Planner`), `rollout` (what it leaves behind, `Episode` and `Trajectory`, and
`walk`, along an episode that was logged), `unrolled` (`as_scm`), `batching`.
"""

from coulda.mechanisms import GumbelMaxChoice, InverseCDFChoice, choice
from coulda.pomdp.actions import ActionMechanism, LocationScaleAction
from coulda.pomdp.actors import Actor, Planner, Policy
from coulda.pomdp.batching import batched, sum_over_batch
from coulda.pomdp.black_box import BlackBoxPOMDP
from coulda.pomdp.model import POMDP, FinitePOMDP, LinearGaussianPOMDP, Outcomes, TransitionChoices
from coulda.pomdp.observed import AdditiveNoisePOMDP, ObservedPOMDP
from coulda.pomdp.rollout import Episode, Trajectory, rollout
from coulda.pomdp.scenario import LazyNoise, Scenario
from coulda.pomdp.unrolled import as_scm, change_policy, named_noise

__all__ = [
    "POMDP",
    "ActionMechanism",
    "Actor",
    "AdditiveNoisePOMDP",
    "BlackBoxPOMDP",
    "Episode",
    "FinitePOMDP",
    "GumbelMaxChoice",
    "InverseCDFChoice",
    "LazyNoise",
    "LinearGaussianPOMDP",
    "LocationScaleAction",
    "ObservedPOMDP",
    "Outcomes",
    "Planner",
    "Policy",
    "Scenario",
    "Trajectory",
    "TransitionChoices",
    "as_scm",
    "batched",
    "change_policy",
    "choice",
    "named_noise",
    "rollout",
    "sum_over_batch",
]
