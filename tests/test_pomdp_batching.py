"""`batched` is vmap, whatever the chunks and the devices."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import tiger
from coulda.policies import UniformPolicy
from coulda.pomdp import batched, rollout

MODEL = tiger(horizon=4, reparameterization="inverse_cdf")


def returns(keys):
    return jax.jit(
        lambda keys: batched(
            lambda key: rollout(MODEL, UniformPolicy(3), MODEL.scenario_prior.sample(key)).episode_return,
            keys,
            chunk_size=3,
        )
    )(keys)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_chunks_make_no_difference(size):
    keys = jax.random.split(jax.random.key(0), size)
    alone = [returns(keys[i : i + 1])[0] for i in range(size)]
    np.testing.assert_array_equal(returns(keys), jnp.stack(alone))


DEVICES = """
import json, sys, jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from tests.test_pomdp_batching import returns
assert jax.local_device_count() == int(sys.argv[1])
print(json.dumps([float(r) for r in returns(jax.random.split(jax.random.key(0), 7))]))
"""


def test_devices_make_no_difference():
    """Seven episodes over two devices: one is made up and dropped."""
    answers = []
    for devices in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", DEVICES, devices], capture_output=True, text=True, check=False, timeout=300
        )
        assert run.returncode == 0, run.stderr
        answers.append(json.loads(run.stdout))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("chunk_size", [2, 3, 7, 100])
def test_empty_arrays_come_through(chunk_size):
    found = batched(lambda x: (x + 1, jnp.zeros((3, 0))), jnp.arange(7), chunk_size=chunk_size)
    assert found[0].tolist() == list(range(1, 8))
    assert found[1].shape == (7, 3, 0)
