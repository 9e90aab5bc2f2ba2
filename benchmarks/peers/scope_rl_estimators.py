"""scope-rl's estimators on arrays from a file: values, and warm seconds of its importance sampling.

Actions are vectors where the file has a policy's actions (its kernel, a bandwidth of 1), else numbers. Where it has
states, fitted Q comes too, in so many updates as are asked for, with the settings that `CreateOPEInput` has when none
are given; next actions are drawn from the policy itself, where scope-rl takes those of the policy without its noise.
"""

import json
import sys
import time
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import torch
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.ope import FQE, DiscreteFQE, FQEConfig

with np.load(sys.argv[1], allow_pickle=False) as file:
    arrays = {name: file[name] for name in file.files}
steps, state = int(arrays.pop("steps")), arrays.pop("state", None)
policy = {name: torch.as_tensor(arrays.pop(name)) for name in ("weights", "settings") if name in arrays}
continuous = "evaluation_policy_action" in arrays
ope = import_module(f"scope_rl.ope.{'continuous' if continuous else 'discrete'}")
IMPORTANCE = {
    "IS": ope.TrajectoryWiseImportanceSampling(),
    "WIS": ope.SelfNormalizedTIS(),
    "PDIS": ope.PerDecisionImportanceSampling(),
    "WPDIS": ope.SelfNormalizedPDIS(),
}
FITTED = {"DM": ope.DirectMethod(), "DR": ope.DoublyRobust(), "SNDR": ope.SelfNormalizedDR()}


def estimate(estimators: dict, **more: np.ndarray) -> dict[str, float]:
    """All of them."""
    return {
        name: float(one.estimate_policy_value(step_per_trajectory=steps, gamma=1.0, **arrays, **more))
        for name, one in estimators.items()
    }


def act(seen: torch.Tensor) -> torch.Tensor:
    """As the policy of the benchmark does."""
    weights, settings = policy["weights"], policy["settings"]
    found = seen.double() @ weights[:, :-1].T + weights[:, -1]
    if continuous:
        return (torch.tanh(found) + settings[0] * torch.randn(found.shape)).float()
    sharpness, epsilon = settings
    chances = (1 - epsilon) * torch.softmax(sharpness * found, 1) + epsilon / found.shape[1]
    return torch.multinomial(chances, 1)[:, 0]


def fitted_q() -> np.ndarray:
    """Of every action at logged states; of vectors, of the logged one and of the policy's."""
    torch.manual_seed(0)
    ends = np.arange(len(state)) % steps == steps - 1
    actions = arrays["action"].astype(np.float32) if continuous else arrays["action"]
    data = MDPDataset(state.astype(np.float32), actions, arrays["reward"].astype(np.float32), ends.astype(float))
    config = FQEConfig(gamma=1.0, encoder_factory=VectorEncoderFactory(hidden_units=[100]), learning_rate=1e-4)
    found = (FQE if continuous else DiscreteFQE)(SimpleNamespace(impl=SimpleNamespace(predict_best_action=act)), config)
    found.fit(data, n_steps=int(sys.argv[2]), logger_adapter=NoopAdapterFactory(), show_progress=False)
    seen = state.astype(np.float32)
    if continuous:
        asked = [actions, arrays["evaluation_policy_action"].astype(np.float32)]
    else:
        asked = [np.full(len(seen), a) for a in range(arrays["evaluation_policy_action_dist"].shape[1])]
    return np.stack([found.predict_value(seen, actions) for actions in asked], 1)


times, values = [], {}
for _ in range(6):
    start = time.process_time()
    values = estimate(IMPORTANCE)
    times.append(time.process_time() - start)
found = {"processor": min(times[1:])}
if state is not None:
    start = time.process_time()
    values |= estimate(FITTED, state_action_value_prediction=fitted_q())
    found["processor, fitted"] = time.process_time() - start
print(json.dumps({"values": values} | found))
