"""What would a policy be worth? Model-free, model-based and counterfactual estimates in one table (section 3).

Model files to imitate, in the order in which they import each other: `estimate`, `intervals`, `reading` (a log, read
once), `method`, `diagnostics`, one file per family of methods (`importance`, `fitted_q`, `doubly_robust`,
`on_scenarios` with its `model_checks` and `mismatch`, `on_policy`), `table` (what `shown` and `drawing` show), and
`comparison`.
"""

from coulda.evaluation.comparison import compare, evaluate, model_free
from coulda.evaluation.doubly_robust import DoublyRobust
from coulda.evaluation.drawing import draw_errors
from coulda.evaluation.estimate import Diagnostic, Estimate, Method
from coulda.evaluation.fitted_q import FittedQ
from coulda.evaluation.importance import ImportanceSampling
from coulda.evaluation.intervals import Interval, Precision, Returns
from coulda.evaluation.on_policy import OnPolicy, on_policy
from coulda.evaluation.on_scenarios import OnScenarios
from coulda.evaluation.regressions import LinearQ, NetworkQ, QFunction, QuadraticQ, RandomFeaturesQ, TableQ
from coulda.evaluation.rivals import Rivals, rivals
from coulda.evaluation.sensitivity import coupling_bounds
from coulda.evaluation.table import Comparison, Difference

__all__ = [
    "Comparison",
    "Diagnostic",
    "Difference",
    "DoublyRobust",
    "Estimate",
    "FittedQ",
    "ImportanceSampling",
    "Interval",
    "LinearQ",
    "Method",
    "NetworkQ",
    "OnPolicy",
    "OnScenarios",
    "Precision",
    "QFunction",
    "QuadraticQ",
    "RandomFeaturesQ",
    "Returns",
    "Rivals",
    "TableQ",
    "compare",
    "coupling_bounds",
    "draw_errors",
    "evaluate",
    "model_free",
    "on_policy",
    "rivals",
]
