"""A log is enough: models fitted to logs, their hindsight, and a verdict on both.

Model files to imitate, in the order in which they import each other: `folds` (who has seen an episode), `tables` and
`tabular`, `steps`, `vectors`, `training` and `neural`, `judging` (what speaks for and against a fit), `lasting`,
`confounding` and `memory` (what came before), `sharing` (which noise to suggest), `finite_em`, `gaussian_em`, `systems`
and `hidden`, `grounds` (what rows inherit), `fitted`, `fitting` (`fit`), `storing`.
"""

from coulda.fitting.fitted import Fitted, Recipe
from coulda.fitting.fitting import fit, recipe_for
from coulda.fitting.hidden import FittedHidden, HiddenFit
from coulda.fitting.neural import NeuralFit
from coulda.fitting.source import CrossFitted
from coulda.fitting.storing import load_fitted, save_fitted
from coulda.fitting.systems import FittedSystem
from coulda.fitting.tables import FittedTable
from coulda.fitting.tabular import TabularFit
from coulda.fitting.vectors import FittedVectors, VectorState

__all__ = [
    "CrossFitted",
    "Fitted",
    "FittedHidden",
    "FittedSystem",
    "FittedTable",
    "FittedVectors",
    "HiddenFit",
    "NeuralFit",
    "Recipe",
    "TabularFit",
    "VectorState",
    "fit",
    "load_fitted",
    "recipe_for",
    "save_fitted",
]
