"""How policies are trained from experience and from experts, and scenario models from pairs and from logs."""

from coulda.learners.imitation import Imitation, ImitationInfo, ImitationState
from coulda.learners.impala import Impala, ImpalaInfo, ImpalaState, episodes_of
from coulda.learners.loss import ActorCriticLoss
from coulda.learners.scenario_model import LogTraining, ScenarioState, ScenarioTraining
from coulda.learners.vtrace import VTrace, vtrace

__all__ = [
    "ActorCriticLoss",
    "Imitation",
    "ImitationInfo",
    "ImitationState",
    "Impala",
    "ImpalaInfo",
    "ImpalaState",
    "LogTraining",
    "ScenarioState",
    "ScenarioTraining",
    "VTrace",
    "episodes_of",
    "vtrace",
]
