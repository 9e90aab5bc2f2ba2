"""Models fitted to logs."""
from coulda.fitting.fitting import fit, recipe_for
from coulda.fitting.fitted import Fitted
from coulda.fitting.hidden import HiddenFit
from coulda.fitting.neural import NeuralFit
from coulda.fitting.tabular import TabularFit
__all__ = ["Fitted", "HiddenFit", "NeuralFit", "TabularFit", "fit", "recipe_for"]
