"""ONNX files beside coulda: run by `benchmarks/policies.py` in an environment of its own.

Every kind of policy that can be written is run by onnxruntime, and is read back as a policy.
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from coulda.policies import FeedforwardPolicy, LinearGaussianPolicy, TabularPolicy, find_policy, write_onnx

KEY, BOX, TWO, THREE = jax.random.key(0), spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Discrete(3)
POLICIES = {
    "table": (TabularPolicy([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]]), THREE, TWO),
    "linear": (LinearGaussianPolicy(jnp.ones((3, 3)) / 3, jnp.arange(3.0), jnp.zeros(3)), BOX, BOX),
    "perceptron": (FeedforwardPolicy(KEY, BOX, TWO), BOX, TWO),
    "of numbers": (FeedforwardPolicy(KEY, THREE, TWO), THREE, TWO),
    "gaussian": (FeedforwardPolicy(KEY, BOX, BOX, scale=0.5), BOX, BOX),
}


def main() -> None:
    """Print how far the answers are apart."""
    found = {}
    for name, (policy, seen, done) in POLICIES.items():
        observations = np.stack([seen.sample() for _ in range(100)])
        distribution = jax.vmap(lambda o, policy=policy: policy((), o)[1])(jnp.asarray(observations))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.onnx"
            write_onnx(path, policy)
            answers, _ = find_policy(str(path), done).host.answers(observations)
        parts = (jax.nn.softmax(distribution.logits),) if done is TWO else (distribution.mean, distribution.scale)
        pairs = zip(answers, parts, strict=True)
        found[name] = max(float(np.abs(mine - np.asarray(theirs)).max()) for mine, theirs in pairs)
    print(json.dumps({"largest difference": found}))


if __name__ == "__main__":
    main()
