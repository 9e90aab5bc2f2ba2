"""Policies out of JAX: the same distributions by NumPy alone, and sentences for what cannot leave."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from coulda.cli import main
from coulda.environments import tiger
from coulda.errors import CouldaError
from coulda.noise import Categorical, Gumbel
from coulda.policies import (
    ConvLSTMPolicy,
    FeedforwardPolicy,
    LinearGaussianPolicy,
    Mixture,
    NoisyPolicy,
    RecurrentPolicy,
    TabularPolicy,
    UniformPolicy,
    as_policy,
    export_policy,
    numpy_policy,
    write_onnx,
)
from coulda.pomdp import Policy

KEY = jax.random.key(0)
BOX, TWO, THREE = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Discrete(3)
TABLE = TabularPolicy([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])


class Own(Policy):
    """One of a user's own, with indices, comparisons, a dictionary to see and a memory."""

    table: jax.Array

    def initial_carry(self):
        return jnp.zeros((2, 2)), jnp.int32(0)

    def __call__(self, carry, observation):
        memory, last = carry
        row = jnp.take(self.table, observation["number"] + last, axis=0, mode="clip") + self.table[jnp.array([2, 0]), 1]
        level = jnp.where(observation["level"] > 0, jnp.sin(observation["level"]), 0.5) + memory.sum(0)
        logits = row + jnp.cumsum(level) - jax.nn.logsumexp(memory)
        return (jnp.stack([logits, memory[1]]), last), Categorical(logits=logits)

    def remember(self, carry, action, reward):
        return carry[0] * 0.5, action


SEEN = spaces.Dict({"number": TWO, "level": spaces.Box(-1, 1, (2,))})
POLICIES = {
    "table": (TABLE, THREE),
    "noisy": (NoisyPolicy(TABLE, 0.1), THREE),
    "mixture": (Mixture((TABLE, UniformPolicy(2)), [0.3, 0.7]), THREE),
    "linear": (LinearGaussianPolicy(jnp.ones((2, 3)), jnp.arange(2.0), jnp.zeros(2)), BOX),
    "perceptron": (FeedforwardPolicy(KEY, BOX, TWO, width=4), BOX),
    "gaussian perceptron": (FeedforwardPolicy(KEY, THREE, BOX, width=4), THREE),
    "recurrent": (RecurrentPolicy(KEY, BOX, TWO, width=4), BOX),
    "convolutional": (
        ConvLSTMPolicy(KEY, 5, 5, layers=2, channels=4, units=4, focus=(3,)),
        spaces.Box(0, 6, (5, 5), np.uint8),
    ),
    "own": (Own(jnp.arange(6.0).reshape(3, 2)), SEEN),
}
LOOKS_AT_REWARDS = {"recurrent"}


@pytest.mark.parametrize("name", POLICIES)
def test_numpy_says_the_same_along_an_episode(name):
    policy, space = POLICIES[name]
    act, state, reward = numpy_policy(policy, space, seed=0), None, None
    carry = policy.initial_carry()
    space.seed(0)
    call, remember = eqx.filter_jit(policy), eqx.filter_jit(policy.remember)
    for t in range(3):
        observation = space.sample()
        carry, expected = call(carry, jax.tree.map(jnp.asarray, observation))
        found, _ = act.distribution(observation, state, reward)
        if isinstance(expected, Categorical):
            np.testing.assert_allclose(found, jax.nn.softmax(expected.logits), atol=1e-6)
        else:
            np.testing.assert_allclose(found, (expected.mean, expected.scale), atol=1e-6)
        action, state = act(observation, state, reward)
        reward = 0.3 * t - 0.2
        carry = remember(carry, jnp.asarray(action), jnp.float32(reward))
    assert act.program["looks at rewards"] == (name in LOOKS_AT_REWARDS)


def test_actions_are_drawn_from_the_distribution():
    """2,000 draws of 0.2 against 0.8; five standard errors, which one in 10^6 correct ones fails."""
    act = numpy_policy(TABLE, THREE, seed=0)
    drawn = np.mean([act(2)[0] for _ in range(2000)])
    assert abs(drawn - 0.8) < 5 * np.sqrt(0.16 / 2000) < abs(drawn - 0.5)


WITHOUT_JAX = """
import sys
sys.path.insert(0, sys.argv[1])
from found.act import load
act, state, reward = load(seed=3), None, None
for observation in ([0.1, 0.2, 0.3], [0.0, -1.0, 1.0]):
    action, state = act(observation, state, reward)
    reward = 1.0
    print(int(action))
assert not {"jax", "coulda"} & sys.modules.keys()
"""


def test_the_folder_acts_without_jax(tmp_path):
    policy, space = POLICIES["recurrent"]
    export_policy(tmp_path / "found", policy, space)
    command = [sys.executable, "-c", WITHOUT_JAX, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    act = numpy_policy(policy, space, seed=3)
    first, state = act([0.1, 0.2, 0.3])
    assert done.stdout.split() == [str(first), str(act([0.0, -1.0, 1.0], state, 1.0)[0])]
    with pytest.raises(ValueError, match="looks at rewards"):
        act([0.0, 0.0, 0.0], state)
    with pytest.raises(ValueError, match=r"float32\[3\]; got \[2\]"):
        act([0.0, 0.0])
    weights = tmp_path / "found" / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(subprocess.CalledProcessError) as broken:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "is not what was written" in broken.value.stderr


def test_observations_without_a_row_are_refused():
    with pytest.raises(ValueError, match="does not know the observation 7"):
        numpy_policy(TABLE, THREE)(7)


class Sorted(Policy):
    """Sorts, which NumPy is not taught here."""

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.sort(observation))


class Continuous(Policy):
    """Acts by something that is neither Categorical nor Normal."""

    def __call__(self, carry, observation):
        return carry, Gumbel()


def test_what_cannot_leave_is_told():
    for sentence, policy in (
        ("the operation 'sort', which NumPy is not taught", Sorted()),
        ("gives a Gumbel", Continuous()),
        ("runs outside of JAX already", as_policy(lambda o: np.ones((len(o), 1)), spaces.Discrete(1))),
    ):
        with pytest.raises(CouldaError, match=sentence):
            numpy_policy(policy, BOX)


MY = """
from coulda.policies import TabularPolicy
from coulda.environments import tiger
model = tiger(horizon=2, reparameterization="gumbel_max")
policy = TabularPolicy([[0.2, 0.3, 0.5]] * 3)
"""


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_exported.py").write_text(MY)
    main(["export", "my_exported.py:policy", "found", "--model", "my_exported.py:model"])
    assert "from found.act import load" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "act.py", "program.json", "weights.npz", "manifest.json",
    }  # fmt: skip
    with pytest.raises(SystemExit):
        main(["export", "my_exported.py:policy", "other"])
    assert "name a --model or a --log" in capsys.readouterr().err


def test_onnx_files_are_read_and_written(tmp_path):
    """In an environment with the extra; the benchmark of policies does so for all three that can be written."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from coulda.policies import onnx_policy

    write_onnx(tmp_path / "policy.onnx", TABLE)
    found = onnx_policy(tmp_path / "policy.onnx", TWO)
    np.testing.assert_allclose(found.probabilities(np.arange(3)), jax.nn.softmax(TABLE.logits), atol=1e-6)


def test_tiger_is_acted_in():
    """What a user does: a loop of an environment's own, with the policy's state."""
    model = tiger(horizon=3, reparameterization="gumbel_max")
    act, state = numpy_policy(UniformPolicy(3), model.observation_space, seed=0), None
    for observation in (2, 0, 1):
        action, state = act(observation, state)
        assert action in range(3)
