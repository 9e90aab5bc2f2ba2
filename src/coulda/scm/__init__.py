"""Structural causal models (Definition 1), interventions (Definition 2), and their picture."""

from coulda.scm.intervention import Intervention, do
from coulda.scm.model import SCM, Mechanism, SCMError

__all__ = ["SCM", "Intervention", "Mechanism", "SCMError", "do"]
