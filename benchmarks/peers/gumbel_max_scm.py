"""Counterfactual trajectories by Oberst & Sontag's own code: `gumbel_max_scm.py CHECKOUT FILE`, one core.

CHECKOUT is a folder with their repository (clinicalml/gumbel-max-scm), which is on no index. FILE has the model, the
logged episodes in their columns (t, action, state, next state, two components, reward), and the policy.
"""

import json
import sys
import time

import numpy as np

checkout, file = sys.argv[1:]
sys.path[:0] = [checkout, f"{checkout}/pymdptoolbox/src"]
from cf.counterfactual import BatchSampler, MatrixMDP  # noqa: E402

given = np.load(file)
np.random.seed(0)  # noqa: NPY002 - their draws are of the global generator
sampler = BatchSampler(MatrixMDP(given["model"], given["rewards"]))
wall, processor = time.perf_counter(), time.process_time()
made = sampler.cf_trajectory(given["logged"], given["policy"], n_cf_samps=1)
count = len(made)
print(
    json.dumps(
        {
            "wall": (time.perf_counter() - wall) / count,
            "cpu": (time.process_time() - processor) / count,
            "mean_steps": float((made[:, 0, :, 1] >= 0).sum(-1).mean()),
        }
    )
)
