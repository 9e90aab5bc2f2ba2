"""Policies of other frameworks beside coulda, each in an environment of its own.

- **PyTorch**: what a module costs in `compare` on 10^5 logged episodes, over its own batched forward passes.
- **scikit-learn**: classifiers' probabilities, and the table that they give.
- **stable-baselines3**: PPO's estimates on CartPole from another policy's log, beside what it earns there.
- **ONNX**: what we write is run by onnxruntime, and read back.
"""

import json
from typing import Any

from benchmarks.harness import run_beside, sized

TORCH = sized({"episodes": 100_000, "widths": [64, 256], "repeats": 3}, {"episodes": 200, "widths": [8], "repeats": 1})


def main() -> dict[str, Any]:
    """What was found."""
    return {
        "pytorch": run_beside("torch", "policies_torch.py", json.dumps(TORCH | {"threads": 1})),
        "scikit-learn": run_beside("scikit_learn", "policies_scikit_learn.py"),
        "stable-baselines3": run_beside("stable_baselines3", "policies_stable_baselines3.py"),
        "onnx": run_beside("onnx", "policies_onnx.py"),
    }
