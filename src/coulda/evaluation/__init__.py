"""What would a policy be worth? Model-free, model-based and counterfactual estimates in one table (section 3).

Model files to imitate, in the order in which they import each other: `estimate`, `intervals`, `history` (policies over
logged histories), `diagnostics`, one file a family of estimators (`importance`, `fitted_q`, `doubly_robust`,
`on_scenarios`), `model_checks` and `comparison`.
"""

from coulda.evaluation.comparison import Comparison, Difference, compare
from coulda.evaluation.doubly_robust import doubly_robust
from coulda.evaluation.estimate import Diagnostic, Estimate, Interval
from coulda.evaluation.fitted_q import LinearQ, NetworkQ, TableQ, fitted_q
from coulda.evaluation.importance import importance_sampling
from coulda.evaluation.on_scenarios import evaluate, evaluate_policies, on_policy

__all__ = [
    "Comparison",
    "Diagnostic",
    "Difference",
    "Estimate",
    "Interval",
    "LinearQ",
    "NetworkQ",
    "TableQ",
    "compare",
    "doubly_robust",
    "evaluate",
    "evaluate_policies",
    "fitted_q",
    "importance_sampling",
    "on_policy",
]
