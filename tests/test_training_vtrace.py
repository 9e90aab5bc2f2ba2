"""V-trace against the sum in its definition, against rlax's numbers, and in the cases that can be told by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.learners.vtrace import vtrace
from tests.conftest import FIXTURES

RLAX = json.loads((FIXTURES / "vtrace_rlax.json").read_text())["examples"]


def episode(seed, steps=9, end=6):
    """Random log-ratios, rewards and values; garbage after the end."""
    rng = np.random.default_rng(seed)
    log_ratio, reward, value = rng.normal(size=(3, steps)).astype(np.float32)
    return log_ratio, reward, value, np.arange(steps) < end


def direct_sum(log_ratio, reward, value, live, discount, decay, clip_rho, clip_c):
    """v_t = V_t + Σ_s γ^{s-t} (Π c_i) δ_s, term by term in float64, and the advantage with λ = 1."""
    end = int(live.sum())
    ratio = np.exp(log_ratio.astype(float))
    rho, c = np.minimum(ratio, clip_rho), decay * np.minimum(ratio, clip_c)
    V = np.append(value[:end].astype(float), 0.0)
    delta = [rho[s] * (reward[s] + discount * V[s + 1] - V[s]) for s in range(end)]
    target = np.zeros(len(live) + 1)
    for t in range(end):
        target[t] = V[t] + sum(discount ** (s - t) * np.prod(c[t:s]) * delta[s] for s in range(t, end))
    advantage = np.zeros(len(live))
    for t in range(end):
        following = decay * target[t + 1] + (1 - decay) * V[t + 1]
        advantage[t] = rho[t] * (reward[t] + discount * following - V[t])
    return target[:-1], advantage


SETTINGS = [
    {"discount": 1.0, "decay": 1.0, "clip_rho": 1.0, "clip_c": 1.0},
    {"discount": 0.9, "decay": 1.0, "clip_rho": 2.0, "clip_c": 0.5},
    {"discount": 0.95, "decay": 0.8, "clip_rho": 1.0, "clip_c": 1.0},
    {"discount": 0.95, "decay": 1.0, "clip_rho": np.inf, "clip_c": np.inf},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("end", [0, 1, 6, 9])
def test_equals_the_sum_of_the_definition(settings, end):
    inputs = episode(end, end=end)
    found = jax.jit(lambda *arrays: vtrace(*arrays, **settings))(*inputs)
    target, advantage = direct_sum(*inputs, **settings)
    np.testing.assert_allclose(found.target, target, atol=2e-5)
    np.testing.assert_allclose(found.advantage, advantage, atol=2e-5)


def test_the_direct_sum_tells_settings_apart():
    """The twin: what was compared above depends on every setting."""
    inputs = episode(9, end=9)
    base = {"discount": 0.9, "decay": 0.9, "clip_rho": 1.5, "clip_c": 1.2}
    target, _ = direct_sum(*inputs, **base)
    for name in base:
        other, _ = direct_sum(*inputs, **(base | {name: 0.5}))
        assert np.abs(target - other).max() > 1e-2, name


@pytest.mark.parametrize("number", range(len(RLAX)))
def test_equals_rlax(number):
    example = RLAX[number]
    inputs = [jnp.asarray(example[name], jnp.float32) for name in ("log_ratio", "reward", "value")]
    settings = {name: example[name] for name in ("discount", "decay", "clip_rho")}
    found = vtrace(*inputs, jnp.asarray(example["live"]), **settings)
    np.testing.assert_allclose(found.target, example["target"], atol=1e-5)
    np.testing.assert_allclose(found.advantage, example["advantage"], atol=1e-5)


def test_on_policy_targets_are_returns_to_go():
    _, reward, value, live = episode(3)
    found = vtrace(jnp.zeros(9), reward, value, live)
    to_go = np.cumsum(np.where(live, reward, 0)[::-1])[::-1]
    np.testing.assert_allclose(found.target, np.where(live, to_go, 0), atol=1e-5)
    np.testing.assert_allclose(found.advantage, np.where(live, to_go - value, 0), atol=1e-5)


def test_what_follows_the_end_does_not_matter():
    inputs = episode(4)
    spoiled = [np.where(inputs[3], array, np.nan) for array in inputs[:3]]
    for a, b in zip(jax.tree.leaves(vtrace(*inputs)), jax.tree.leaves(vtrace(*spoiled, inputs[3])), strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_trust_no_correction():
    """Where π never does what was done, nothing can be learned: the target is the value, the advantage 0."""
    _, reward, value, live = episode(5)
    found = vtrace(jnp.full(9, -jnp.inf), reward, value, live)
    np.testing.assert_array_equal(found.target, np.where(live, value, 0))
    np.testing.assert_array_equal(found.advantage, np.zeros(9))


@pytest.mark.parametrize(("clip_rho", "valued"), [(np.inf, "target"), (1.0, "between"), (0.0, "nothing")])
def test_the_fixed_point_is_the_value_of_the_clipped_policy(clip_rho, valued):
    """One step, all actions enumerated: E_μ[v] = V has V at the value of π_ρ̄ ∝ min(ρ̄ μ, π) (Theorem 1), exactly."""
    behavior, target, paid = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.3, 0.6]), np.array([1.0, 2.0, 4.0])
    weights = np.minimum(clip_rho * behavior, target)
    value = weights @ paid / weights.sum() if weights.any() else 1.7  # with ρ̄ = 0 any value is one
    step = lambda ratio, reward: vtrace(ratio, reward, jnp.full(1, value), jnp.ones(1, bool), clip_rho=clip_rho)
    ratios = jnp.asarray(np.log(target / behavior)[:, None], jnp.float32)
    found = jax.vmap(step)(ratios, jnp.asarray(paid[:, None], jnp.float32)).target[:, 0]
    np.testing.assert_allclose(behavior @ np.asarray(found), value, rtol=1e-5)
    exact, naive = target @ paid, behavior @ paid
    assert {"target": abs(value - exact) < 1e-6, "between": naive < value < exact, "nothing": True}[valued]
