"""Counterfactually-guided policy search: one program, in which the scenario source makes the method (section 4).

Model files to imitate, in the order in which they import each other: `objective` (equation 1), `policy_search`,
and its special cases `guided` (GPS) and `value_gradient` (SVG).
"""

from coulda.search.guided import CoefficientNoisePOMDP, CoefficientPrior, RegulatorPlanner, fit_coefficients
from coulda.search.objective import ReturnWeightedInfo, ReturnWeightedRegression
from coulda.search.policy_search import Learn, Logged, Objective, PolicySearch, SearchInfo, SearchState, collection_work
from coulda.search.value_gradient import ValueGradient, ValueGradientInfo

__all__ = [
    "CoefficientNoisePOMDP",
    "CoefficientPrior",
    "Learn",
    "Logged",
    "Objective",
    "PolicySearch",
    "RegulatorPlanner",
    "ReturnWeightedInfo",
    "ReturnWeightedRegression",
    "SearchInfo",
    "SearchState",
    "ValueGradient",
    "ValueGradientInfo",
    "collection_work",
    "fit_coefficients",
]
