"""Public checks that parts of your own obey the laws: call them in your tests.

>>> from coulda.environments import tiger
>>> from coulda.hindsight import Exact
>>> from coulda.policies import UniformPolicy
>>> model = tiger(horizon=4, reparameterization="gumbel_max")
>>> check_pomdp(model)
>>> check_policy(UniformPolicy(3), model)
>>> check_scenarios(Exact(model), model)

Each returns nothing, or raises a `CheckError` that says what was found and what to change.
"""

from coulda.testing.checks import CheckError, check_policy, check_pomdp, check_scm
from coulda.testing.sources import check_scenarios

__all__ = ["CheckError", "check_policy", "check_pomdp", "check_scenarios", "check_scm"]
