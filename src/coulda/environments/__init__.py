"""Worlds that logs come from, one folder or file each."""

from coulda.environments.bandit import contextual_bandit
from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.environments.sepsis import Sepsis
from coulda.environments.tabular import TabularPOMDP, forest, tiger

__all__ = ["LinearQuadratic", "Sepsis", "TabularPOMDP", "contextual_bandit", "forest", "tiger"]
