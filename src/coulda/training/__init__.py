"""How policies are trained from experience and from experts."""

from coulda.training.imitation import Imitation, ImitationInfo, ImitationState

__all__ = ["Imitation", "ImitationInfo", "ImitationState"]
