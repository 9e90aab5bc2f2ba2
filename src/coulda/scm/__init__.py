"""Structural causal models (Definition 1), interventions (Definition 2), and their picture."""

from coulda.scm.drawing import Drawing, draw
from coulda.scm.intervention import Intervention, do
from coulda.scm.model import SCM, Mechanism, SCMError

__all__ = [
    "SCM",
    "Drawing",
    "Intervention",
    "Mechanism",
    "SCMError",
    "do",
    "draw",
]
