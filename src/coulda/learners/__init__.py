"""How policies are trained from experience and from experts."""

from coulda.learners.imitation import Imitation, ImitationInfo, ImitationState
from coulda.learners.impala import Impala, ImpalaInfo, ImpalaState, episodes_of
from coulda.learners.loss import ActorCriticLoss
from coulda.learners.scenario_model import ScenarioState, ScenarioTraining
from coulda.learners.vtrace import VTrace, vtrace

__all__ = [
    "ActorCriticLoss",
    "Imitation",
    "ImitationInfo",
    "ImitationState",
    "Impala",
    "ImpalaInfo",
    "ImpalaState",
    "ScenarioState",
    "ScenarioTraining",
    "VTrace",
    "episodes_of",
    "vtrace",
]
