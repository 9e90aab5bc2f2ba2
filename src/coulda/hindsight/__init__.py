"""Scenario sources p(U | h_t): the prior, exact posteriors, and learned ones; and whether to believe them."""

from coulda.hindsight.calibration import Calibration, Quantity, calibrate
from coulda.hindsight.conv_draw import ConvDRAW, load_scenario_model, save_scenario_model
from coulda.hindsight.drawing import draw_calibration
from coulda.hindsight.exact import Exact
from coulda.hindsight.learned import Learned, LearnedOnline
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.source import Prior, ScenarioSource

__all__ = [
    "Calibration",
    "ConvDRAW",
    "Exact",
    "Learned",
    "LearnedOnline",
    "ObservedStates",
    "Prior",
    "Quantity",
    "ScenarioSource",
    "calibrate",
    "draw_calibration",
    "load_scenario_model",
    "save_scenario_model",
]
