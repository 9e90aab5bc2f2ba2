"""Scenario sources p(U | h_t): the prior, exact posteriors, and learned ones."""

from coulda.hindsight.conv_draw import ConvDRAW, load_scenario_model, save_scenario_model
from coulda.hindsight.exact import Exact
from coulda.hindsight.learned import Learned, LearnedOnline
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.source import Prior, ScenarioSource

__all__ = [
    "ConvDRAW",
    "Exact",
    "Learned",
    "LearnedOnline",
    "ObservedStates",
    "Prior",
    "ScenarioSource",
    "load_scenario_model",
    "save_scenario_model",
]
