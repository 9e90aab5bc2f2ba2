"""`batched` is vmap, whatever the chunks and the devices."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from coulda.environments import tiger
from coulda.policies import UniformPolicy
from coulda.pomdp import batched, batching, rollout, sum_over_batch
from coulda.pomdp.batching import LARGEST, _at_once, host_call
from tests.conftest import ROOT

MODEL = tiger(horizon=2, reparameterization="inverse_cdf")


@jax.jit
def returns(keys):
    one = lambda key: rollout(MODEL, UniformPolicy(3), MODEL.scenario_prior.sample(key)).episode_return
    return batched(one, keys, chunk_size=3)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_chunks_make_no_difference(size):
    keys = jax.random.split(jax.random.key(0), size)
    alone = [returns(keys[i : i + 1])[0] for i in range(size)]
    np.testing.assert_array_equal(returns(keys), jnp.stack(alone))


TWO_DEVICES = """
import json, jax
jax.config.update("jax_num_cpu_devices", 2)
from tests.test_pomdp_batching import returns
found = returns(jax.random.split(jax.random.key(0), 7))
assert len(found.sharding.device_set) == 2, found.sharding
print(json.dumps([float(r) for r in found]))
"""


def test_devices_make_no_difference():
    """Seven episodes over two devices: one is made up and dropped."""
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert jax.local_device_count() == 1
    assert json.loads(done.stdout) == returns(jax.random.split(jax.random.key(0), 7)).tolist()


@pytest.mark.parametrize("chunk_size", [2, 3, 7, 100])
def test_empty_arrays_come_through(chunk_size):
    found = batched(lambda x: (x + 1, jnp.zeros((3, 0))), jnp.arange(7), chunk_size=chunk_size)
    assert found[0].tolist() == list(range(1, 8))
    assert found[1].shape == (7, 3, 0)


def test_one_chunk_of_small_elements_is_one_devices():
    """A second trace, for two devices, takes longer than they do; large ones are worth it."""
    looped = lambda size: lambda x: jax.lax.scan(lambda c, _: (c + x, None), jnp.zeros(size), None, 3)[0]
    assert _at_once(looped(4), jnp.arange(64.0))[2]
    assert not _at_once(looped(4), jnp.arange(64.0), 32)[2]
    assert not _at_once(looped(1000), jnp.arange(64.0))[2]


def test_calls_to_the_host_are_one_devices():
    """Each device would wait in a call for a thread that hands over its arguments, and so for ever."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    doubled = lambda x: host_call(lambda rows: 2 * rows, shape, x)
    _, at_once, alone = _at_once(doubled, jnp.arange(64.0))
    assert alone
    assert at_once == LARGEST
    assert not _at_once(lambda x: 2 * x, jnp.arange(2.0 * LARGEST))[2]
    np.testing.assert_array_equal(batched(doubled, jnp.arange(64.0)), 2 * np.arange(64.0))


def weighted(weights, xs):
    """A sum over the batch, whose loop makes `[64]` of each element, and the gradient of the weights `[64, 64]`."""
    step = lambda c, _: (jnp.tanh(c @ weights), None)
    along = lambda x: jnp.sum(jax.lax.scan(step, x, None, length=3)[0])
    return jax.grad(lambda weights: jnp.sum(jax.vmap(along)(xs)))(weights), jnp.sum(xs > 0)


def lengths_of_scans(program):
    """Of the outermost loops."""
    return [equation.params["length"] for equation in program.jaxpr.eqns if equation.primitive.name == "scan"]


def test_sums_are_made_in_chunks_that_the_cache_likes(monkeypatch):
    weights, xs = jax.random.normal(jax.random.key(0), (64, 64)), jax.random.normal(jax.random.key(1), (48, 64))
    # A function of its own each time: what was traced is not traced again.
    summed = lambda: jax.make_jaxpr(lambda weights, xs: sum_over_batch(weighted, weights, xs))(weights, xs)
    whole = summed()
    assert set(lengths_of_scans(whole)) == {3}
    monkeypatch.setattr(batching, "CACHE", 8 * 4 * 64)
    chunked = summed()
    # Of eight elements each; the weights' gradient, eight times the cache, is there once whatever the chunk.
    assert lengths_of_scans(chunked) == [6]
    found, expected = (jax.jit(jaxpr_as_fun(program))(weights, xs) for program in (chunked, whole))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-5)
    assert found[1] == expected[1] > 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert set(lengths_of_scans(summed())) == {3}


@pytest.mark.parametrize(
    ("size", "at_once", "chunks"), [(32, 8, 4), (32, 64, 1), (31, 8, 1), (30, 8, 5), (32, 1, 8), (9, 8, 1)]
)
def test_chunks_are_equal_or_there_is_one(size, at_once, chunks):
    assert batching._equal_chunks(size, at_once) == chunks
    assert size % chunks == 0
