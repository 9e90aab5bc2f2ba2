"""Scenario sources p(U | h_t): the prior, exact posteriors, sampled and learned ones; and whether to believe them."""

from coulda.hindsight.amortized import Amortized
from coulda.hindsight.calibration import Calibration, Quantity, calibrate
from coulda.hindsight.choosing import choose
from coulda.hindsight.conv_draw import ConvDRAW, load_scenario_model, save_scenario_model
from coulda.hindsight.corrected import Corrected
from coulda.hindsight.drawing import draw_calibration
from coulda.hindsight.exact import Exact
from coulda.hindsight.inverted import Inverted
from coulda.hindsight.learned import Learned, LearnedOnline
from coulda.hindsight.nuts import Nuts
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.pairs import Pairs, simulate_pairs
from coulda.hindsight.particles import Particles
from coulda.hindsight.source import Choice, Inference, Prior, ScenarioSource
from coulda.hindsight.stepwise import Stepwise
from coulda.hindsight.tempered import Tempered
from coulda.hindsight.training import TrainedHindsight, train_hindsight

__all__ = [
    "Amortized",
    "Calibration",
    "Choice",
    "ConvDRAW",
    "Corrected",
    "Exact",
    "Inference",
    "Inverted",
    "Learned",
    "LearnedOnline",
    "Nuts",
    "ObservedStates",
    "Pairs",
    "Particles",
    "Prior",
    "Quantity",
    "ScenarioSource",
    "Stepwise",
    "Tempered",
    "TrainedHindsight",
    "calibrate",
    "choose",
    "draw_calibration",
    "load_scenario_model",
    "save_scenario_model",
    "simulate_pairs",
    "train_hindsight",
]
