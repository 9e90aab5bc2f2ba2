"""scope-rl's importance sampling on arrays from a file: values, and warm seconds of all four together."""

import json
import sys
import time

import numpy as np
from scope_rl.ope.discrete import (
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


def estimate() -> dict[str, float]:
    """All four."""
    return {
        name: float(estimator.estimate_policy_value(step_per_trajectory=steps, gamma=1.0, **arrays))
        for name, estimator in ESTIMATORS.items()
    }


times, values = [], {}
for _ in range(6):
    start = time.process_time()
    values = estimate()
    times.append(time.process_time() - start)
print(json.dumps({"values": values, "processor": min(times[1:])}))
