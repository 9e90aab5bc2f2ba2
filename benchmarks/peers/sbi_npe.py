"""Neural posterior estimation by the package sbi, on a task of its benchmark: posterior draws, and how long it took.

Arguments: the task, a folder with the pairs (`pairs.npz`: theta, x) and the observations (`observations.npz`: x), the
density estimator, draws per observation, and the seconds of the processor after which training is stopped, with the
best that it has. Writes `sbi-ESTIMATOR.npz` there.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sbi.inference import NPE
from sbi.utils import BoxUniform

warnings.filterwarnings("ignore")
torch.set_num_threads(1)  # as ours, whose programs are too small for more
torch.manual_seed(0)
task, folder, estimator = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3]
os.chdir(folder)  # where sbi leaves a log of its own
count, limit = int(sys.argv[4]), float(sys.argv[5])


def load(name):
    """Arrays of a file as float32 tensors."""
    with np.load(folder / name, allow_pickle=False) as file:
        return {key: torch.as_tensor(file[key], dtype=torch.float32) for key in file}


class Limited(NPE):
    """Stops at the limit."""

    stopped = False

    def _converged(self, epoch, stop_after_epochs):
        converged = super()._converged(epoch, stop_after_epochs)
        self.stopped = not converged and time.process_time() - begun > limit
        if self.stopped:
            self._neural_net.load_state_dict(self._best_model_state_dict)
        return converged or self.stopped


PRIORS = {
    "two_moons": lambda: BoxUniform(-torch.ones(2), torch.ones(2)),
    "gaussian_linear": lambda: torch.distributions.MultivariateNormal(torch.zeros(10), 0.1 * torch.eye(10)),
}
pairs, observations = load("pairs.npz"), load("observations.npz")["x"]
start, begun = time.perf_counter(), time.process_time()
inference = Limited(PRIORS[task](), density_estimator=estimator, show_progress_bars=False)
inference.append_simulations(pairs["theta"], pairs["x"]).train()
trained, worked = time.perf_counter() - start, time.process_time() - begun
posterior = inference.build_posterior()
start = time.perf_counter()
draws = [posterior.sample((count,), x=x, show_progress_bars=False).numpy() for x in observations]
sampled = time.perf_counter() - start
np.savez(folder / f"sbi-{estimator}.npz", draws=np.stack(draws))
found = {"seconds of training": trained, "processor seconds of training": worked, "stopped": inference.stopped}
found["epochs"] = inference.summary["epochs_trained"][-1]
print("\n" + json.dumps(found | {"draws a second": count * len(observations) / sampled}))
