"""scope-rl's importance sampling for continuous actions (its kernel, a bandwidth of 1) on arrays from a file."""

import json
import sys

import numpy as np
from scope_rl.ope.continuous import (
    PerDecisionImportanceSampling,
    SelfNormalizedPDIS,
    SelfNormalizedTIS,
    TrajectoryWiseImportanceSampling,
)

ESTIMATORS = {
    "IS": TrajectoryWiseImportanceSampling(),
    "WIS": SelfNormalizedTIS(),
    "PDIS": PerDecisionImportanceSampling(),
    "WPDIS": SelfNormalizedPDIS(),
}

with np.load(sys.argv[1], allow_pickle=False) as file:
    arrays = {name: file[name] for name in file.files}
steps = int(arrays.pop("steps"))
values = {
    name: float(estimator.estimate_policy_value(step_per_trajectory=steps, gamma=1.0, **arrays))
    for name, estimator in ESTIMATORS.items()
}
print(json.dumps({"values": values}))
