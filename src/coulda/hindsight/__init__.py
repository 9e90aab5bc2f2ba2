"""Scenario sources p(U | h_t): the prior, exact posteriors, and learned ones."""

from coulda.hindsight.exact import Exact
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.source import Prior, ScenarioSource

__all__ = [
    "Exact",
    "ObservedStates",
    "Prior",
    "ScenarioSource",
]
