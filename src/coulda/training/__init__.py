"""How policies are trained from experience and from experts."""

from coulda.training.actor_critic import ActorCriticLoss
from coulda.training.imitation import Imitation, ImitationInfo, ImitationState
from coulda.training.impala import Impala, ImpalaInfo, ImpalaState, episodes_of
from coulda.training.vtrace import VTrace, vtrace

__all__ = [
    "ActorCriticLoss",
    "Imitation",
    "ImitationInfo",
    "ImitationState",
    "Impala",
    "ImpalaInfo",
    "ImpalaState",
    "VTrace",
    "episodes_of",
    "vtrace",
]
