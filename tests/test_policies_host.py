"""Policies outside of JAX: the same answers as inside, in few calls, and a sentence for what is wrong."""

import json
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from coulda.cli import main
from coulda.environments import tiger
from coulda.episodes import Schema, checked_log, collect, policy_in_frame, write_log
from coulda.errors import CouldaError
from coulda.evaluation import DoublyRobust, FittedQ, ImportanceSampling, OnScenarios, compare, model_free
from coulda.evaluation.reading import read
from coulda.noise import Categorical, Normal
from coulda.policies import HostPolicyError, UniformPolicy, as_policy, find_policy, host
from coulda.pomdp import Policy, batched, rollout
from coulda.pomdp.batching import raised_as_they_are
from tests.conftest import ROOT

TIGER = tiger(horizon=3, reparameterization="inverse_cdf")
TWO = spaces.Discrete(2)
WEIGHT = np.array([[0.5, -0.3, 0.1], [-0.2, 0.4, 0.3]], np.float32)
KEY = jax.random.key(0)


def softmax(logits):
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


class Linear(Policy):
    """Softmax of a product."""

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.asarray(WEIGHT) @ observation)


class Counted:
    """The same in NumPy, and how often it was asked about how many."""

    def __init__(self):
        self.rows = []

    def predict_proba(self, observations):
        self.rows.append(len(observations))
        return softmax(observations @ WEIGHT.T)


def random_log(episodes=40, actions=TWO, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, episodes)
    steps = int(lengths.sum())
    action = rng.integers(0, 2, steps) if actions is TWO else rng.normal(size=(steps, 2)).astype(np.float32)
    log_prob = np.full(steps, np.log(0.5)) if actions is TWO else -(action**2).sum(1) / 2 - np.log(2 * np.pi)
    schema = Schema(spaces.Box(-np.inf, np.inf, (3,)), actions)
    observation = rng.normal(size=(steps + episodes, 3)).astype(np.float32)
    return checked_log(
        schema, observation, action, rng.normal(size=steps), lengths, rng.random(episodes) < 0.5, log_prob
    )


LOG = random_log()
FREE = [ImportanceSampling("weighted"), ImportanceSampling("per_decision"), DoublyRobust(), FittedQ(resamples=4)]


def values(comparison, name):
    return {method: estimate.value for method, estimate in comparison.estimates[name].items()}


@pytest.fixture(scope="module")
def table():
    asked = Counted()
    policies = {"inside": Linear(), "outside": as_policy(asked, TWO)}
    frame = LOG.to_frame()
    every = softmax(LOG.observation @ WEIGHT.T)
    last = np.cumsum(LOG.lengths + 1) - 1
    frame["new"] = np.nan
    steps = np.delete(np.arange(len(every)), last)
    frame.loc[steps, "new"] = every[steps, LOG.action]
    frame["all_0"], frame["all_1"] = every.T
    # Rows in any order, as tables have them.
    shuffled = frame.sample(frac=1, random_state=0)
    policies |= {name: policy_in_frame(shuffled, name) for name in ("new", "all")}
    # A table's episodes are in the order in which they appear there.
    order = shuffled["episode"].drop_duplicates().to_numpy()
    return compare(KEY, LOG.take(order), policies, FREE), asked


def test_the_same_policy_outside_has_the_same_table(table):
    comparison, asked = table
    inside, outside = values(comparison, "inside"), values(comparison, "outside")
    assert inside == pytest.approx(outside, rel=1e-5)
    assert asked.rows == [len(LOG.observation)], "all steps of all episodes in one call"


def test_columns_are_the_policy_where_they_suffice(table):
    comparison, _ = table
    inside, taken = values(comparison, "inside"), values(comparison, "new")
    assert values(comparison, "all") == pytest.approx(inside, rel=1e-5)
    assert {name: taken[name] for name in ("WIS", "PDIS")} == pytest.approx(
        {name: inside[name] for name in ("WIS", "PDIS")}, rel=1e-5
    )
    assert taken["DR"] is None
    assert "every action" in comparison.estimates["new"]["FQE"].explanation


def test_other_columns_give_another_table(table):
    """The twin: the probabilities of another log's order are not these."""
    comparison, _ = table
    frame = LOG.to_frame()
    frame["new"] = 0.25
    found = ImportanceSampling("per_decision").estimate(KEY, policy_in_frame(frame, "new"), LOG)
    assert abs(found.value - values(comparison, "inside")["PDIS"]) > 1e-3


def test_gaussian_policies_outside():
    box = spaces.Box(-np.inf, np.inf, (2,))
    log = random_log(actions=box)
    mean = lambda o: o @ WEIGHT.T
    outside = as_policy(lambda o: (mean(o), np.array([0.5, 2.0])), box)
    found = read(log, {"outside": outside}).taken["outside"]
    acted_on = np.delete(log.observation, np.cumsum(log.lengths + 1) - 1, 0)
    z = (log.action - mean(acted_on)) / np.array([0.5, 2.0])
    np.testing.assert_allclose(found[found != 0], -(z**2).sum(1) / 2 - np.log(2 * np.pi), rtol=1e-5)
    carry, distribution = outside((), jnp.ones(3))
    assert carry == ()
    np.testing.assert_allclose(
        distribution.log_prob(jnp.zeros(2)), Normal(mean(np.ones(3)), [0.5, 2.0]).log_prob(0.0 * jnp.ones(2))
    )


@eqx.filter_jit
def returns(policy, keys):
    return batched(lambda key: rollout(TIGER, policy, TIGER.scenario_prior.sample(key)).episode_return, keys)


def by_side(observations):
    """Listen, unless something was heard."""
    return np.array([[0.8, 0.1, 0.1], [0.2, 0.1, 0.7], [0.2, 0.7, 0.1]])[np.asarray(observations) % 3]


class BySide(Policy):
    """The same in JAX."""

    def __call__(self, carry, observation):
        return carry, Categorical(jnp.asarray(by_side(np.arange(3)), jnp.float32)[observation % 3])


def test_rollouts_ask_once_a_step_for_all_episodes():
    calls = []

    def asked(observations):
        calls.append(len(observations))
        return by_side(observations)

    keys = jax.random.split(KEY, 300)
    outside = returns(as_policy(asked, TIGER.action_space), keys)
    np.testing.assert_array_equal(outside, returns(BySide(), keys))
    assert calls == [300] * TIGER.horizon


class Recurrent(Policy):
    """Bolder with every reward, and with every number that was seen."""

    def initial_carry(self):
        return {"paid": jnp.float32(0), "seen": jnp.int32(0)}

    def __call__(self, carry, observation):
        carry = carry | {"seen": carry["seen"] + observation.astype(jnp.int32)}
        level = jnp.tanh(carry["paid"] / 10) + 0.1 * carry["seen"].astype(jnp.float32)
        return carry, Categorical(logits=jnp.stack([jnp.float32(0), level, -level]))

    def remember(self, carry, action, reward):
        return carry | {"paid": carry["paid"] + reward + 0.5 * action.astype(jnp.float32)}


class RecurrentOutside:
    """The same in NumPy."""

    initial_state: ClassVar = {"paid": 0.0, "seen": 0}

    def __call__(self, observations, states):
        seen = states["seen"] + observations
        level = np.tanh(states["paid"] / 10) + np.float32(0.1) * seen.astype(np.float32)
        return softmax(np.stack([0 * level, level, -level], 1)), states | {"seen": seen}

    def remember(self, states, actions, rewards):
        return states | {"paid": states["paid"] + rewards + np.float32(0.5) * actions}


def test_states_are_carried_along():
    keys = jax.random.split(KEY, 300)
    outside = as_policy(RecurrentOutside(), TIGER.action_space)
    np.testing.assert_array_equal(returns(outside, keys), returns(Recurrent(), keys))
    assert (np.asarray(returns(Recurrent(), keys)) != np.asarray(returns(BySide(), keys))).any()


ON_TWO_DEVICES = """
import json, jax
jax.config.update("jax_num_cpu_devices", 2)
import tests.test_policies_host as test
from coulda.policies import as_policy
found = test.returns(as_policy(test.by_side, test.TIGER.action_space), jax.random.split(jax.random.key(0), 7))
print(json.dumps([float(r) for r in found]))
"""


@pytest.mark.slow
def test_devices_make_no_difference():
    done = subprocess.run([sys.executable, "-c", ON_TWO_DEVICES], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == returns(BySide(), jax.random.split(KEY, 7)).tolist()


def test_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(host, "MOST_ROWS", 16)
    asked = Counted()
    read(LOG, {"outside": as_policy(asked, TWO)})
    assert asked.rows == [16] * (LOG.num_steps // 16) + [LOG.num_steps % 16]


def test_classes_are_put_in_their_places():
    class Classifier:
        classes_ = np.array([2, 0])

        def predict_proba(self, observations):
            assert observations.shape[1:] == (1,), "a column even of single numbers"
            return np.tile([0.9, 0.1], (len(observations), 1))

    _, found = as_policy(Classifier(), spaces.Discrete(3))((), jnp.int32(1))
    np.testing.assert_allclose(found.probabilities, [0.1, 0.0, 0.9], rtol=1e-6)


@pytest.fixture
def torch(monkeypatch):
    """What is used of PyTorch beside stable-baselines3's own objects."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(no_grad=nullcontext, nn=SimpleNamespace(Module=int)))


class BaselinesPolicy:
    """What stable-baselines3's actor–critic policies have."""

    training = True

    def __init__(self, action_space, **distribution):
        self.action_space, self.said = action_space, SimpleNamespace(**distribution)

    def obs_to_tensor(self, observations):
        return observations, True

    def set_training_mode(self, mode):
        self.training = mode

    def get_distribution(self, observations):
        return SimpleNamespace(
            distribution=SimpleNamespace(**{k: np.tile(v, (len(observations), 1)) for k, v in vars(self.said).items()})
        )


def test_stable_baselines_policies_are_known_by_their_distributions(torch):
    policy = BaselinesPolicy(TWO, probs=[0.25, 0.75])
    _, found = as_policy(SimpleNamespace(policy=policy), TWO)((), jnp.zeros(3))
    np.testing.assert_allclose(found.probabilities, [0.25, 0.75], rtol=1e-6)
    assert not policy.training
    box = spaces.Box(-1, 1, (2,))
    _, found = as_policy(BaselinesPolicy(box, mean=[1.0, 2.0], stddev=[0.5, 0.5]), box)((), jnp.zeros(3))
    np.testing.assert_allclose(found.mean, [1, 2])
    with pytest.raises(CouldaError, match=r"trained for actions in Discrete\(2\), and these are Discrete\(3\)"):
        as_policy(policy, spaces.Discrete(3))


def constant(*answer):
    return lambda observations: np.tile(np.array(answer), (len(observations), 1))


BAD = {
    "sum to 1.1,": constant(0.5, 0.6),
    "end with a softmax": constant(2.0, -3.0),
    "which sum to nan": constant(np.nan, np.nan),
    r"probabilities \[\d+, 3\] for \d+ observations and 2 actions": constant(0.2, 0.3, 0.5),
    r"probabilities \[2\]": lambda observations: np.array([0.5, 0.5]),
    "returned 2 values; return probabilities": lambda observations: (observations, observations),
    r"raised ZeroDivisionError: .*float32\[\d+, 3\](.|\n)*in broken": lambda observations: broken(),
}


def broken():
    return 1 / 0


@pytest.mark.parametrize("sentence", BAD)
def test_bad_answers_over_a_log(sentence):
    with pytest.raises(HostPolicyError, match=sentence):
        compare(KEY, LOG, {"bad": as_policy(BAD[sentence], TWO)}, [ImportanceSampling()])


def test_bad_answers_inside_of_jax(capfd):
    policy = as_policy(lambda observations: broken(), TIGER.action_space)
    with (
        pytest.raises(HostPolicyError, match=r"raised ZeroDivisionError(.|\n)*in broken") as told,
        raised_as_they_are(),
    ):
        returns(policy, jax.random.split(KEY, 300)).block_until_ready()
    assert "jax/_src" not in str(told.value)
    assert "pure_callback failed" not in capfd.readouterr().err


def test_bad_gaussians_and_states():
    box = spaces.Box(-9, 9, (2,))
    log = random_log(actions=box)
    for sentence, answer in {
        r"return \(mean, scale\)": lambda o: np.zeros((len(o), 2)),
        "the scale above 0": lambda o: (np.zeros((len(o), 2)), np.zeros((len(o), 2))),
        r"a mean \[\d+, 3\]": lambda o: (np.zeros((len(o), 3)), 1.0),
    }.items():
        with pytest.raises(HostPolicyError, match=sentence):
            read(log, {"bad": as_policy(answer, box)})
    forgetful = RecurrentOutside()
    forgetful.initial_state = {"paid": 0.0, "seen": 0, "more": 0}
    found = as_policy(forgetful, TIGER.action_space)
    with pytest.raises(HostPolicyError, match=r"its initial_state, with a row for each of the 1 observations"):
        found.host.answers(np.zeros(1, np.int32), {"paid": np.zeros(1), "seen": np.zeros(1, int)})


def test_what_is_no_policy_is_told():
    for sentence, found, space in (
        ("cannot be asked for actions", object(), TWO),
        ("neither numbered nor vectors", constant(1.0), spaces.MultiBinary(3)),
        ("has a class 5", SimpleNamespace(predict_proba=None, classes_=np.array([0, 5])), TWO),
        ("fit it to the numbers of actions", SimpleNamespace(predict_proba=None, classes_=np.array(["a"])), TWO),
        ("for discrete actions", SimpleNamespace(predict_proba=None), spaces.Box(-1, 1)),
    ):
        with pytest.raises(CouldaError, match=sentence):
            as_policy(found, space)
    with pytest.raises(CouldaError, match=r"policy 'x' does not fit: .*wrapped for 3 actions.*Box"):
        compare(KEY, random_log(actions=spaces.Box(-9, 9, (2,))), {"x": as_policy(by_side, spaces.Discrete(3))})
    with pytest.raises(CouldaError, match="known along a log alone"):
        find_policy("column:new", TWO)
    with pytest.raises(CouldaError, match="as_policy"):
        compare(KEY, LOG, {"x": by_side})
    with pytest.raises(CouldaError, match="HostPolicy knows 4 actions, but there are 3 in TabularPOMDP"):
        collect(KEY, TIGER, as_policy(by_side, spaces.Discrete(4)), 2)


def test_columns_are_checked():
    frame = LOG.to_frame()
    with pytest.raises(CouldaError, match="no such column; the table has"):
        policy_in_frame(frame, "new")
    frame["new"] = 0.5
    frame.loc[0, "new"] = np.nan
    with pytest.raises(CouldaError, match=r"episode 0, step 0, field 'new': .*missing, infinite or below 0"):
        policy_in_frame(frame, "new")
    frame["sum_0"], frame["sum_1"] = 0.5, 0.6
    with pytest.raises(CouldaError, match="is not a distribution"):
        policy_in_frame(frame, "sum")
    frame["high"] = 1.5
    with pytest.raises(CouldaError, match=r"policy 'high' does not fit: .*at most 1"):
        compare(KEY, LOG, {"high": policy_in_frame(frame, "high")}, [ImportanceSampling()])
    frame["new"] = 0.5
    column = policy_in_frame(frame, "new")
    with pytest.raises(CouldaError, match="of this log"):
        compare(KEY, LOG[:9], {"new": column}, [ImportanceSampling()])
    with pytest.raises(CouldaError, match=r"policy 'new' does not fit: .*TabularPOMDP asks it about other histories"):
        compare(KEY, LOG, {"new": column}, [OnScenarios(TIGER)])
    frame["all_0"] = frame["all_1"] = 0.5
    frame.loc[frame["action"].isna(), ["all_0", "all_1"]] = np.nan
    with pytest.raises(CouldaError, match=r"was cut off.*in the row of the last observation"):
        compare(KEY, LOG, {"all": policy_in_frame(frame, "all")}, [FittedQ()])


MY = """
from functools import partial
import numpy as np
from coulda.policies import UniformPolicy

class Classifier:
    classes_ = np.array([0, 1])
    def predict_proba(self, observations):
        return np.full((len(observations), 2), 0.5)

fitted = Classifier()
ours = UniformPolicy(2)

def function(observations):
    return np.full((len(observations), 2), 0.5)

def maker(path="somewhere"):
    return Classifier()

bound = partial(maker, "elsewhere")
"""


@pytest.mark.parametrize("name", ["Classifier", "fitted", "ours", "function", "maker", "bound"])
def test_all_of_them_are_found_by_name(name, tmp_path):
    path = tmp_path / "my_foreign_policies.py"
    path.write_text(MY)
    _, found = find_policy(f"{path}:{name}", TWO)((), jnp.zeros(3))
    np.testing.assert_allclose(found.probabilities, [0.5, 0.5])


def test_free_methods_with_numbered_observations():
    """Where observations are numbered each is asked about once."""
    rng = np.random.default_rng(0)
    lengths = np.full(30, 4)
    schema = Schema(spaces.Discrete(3), spaces.Discrete(3))
    columns = rng.integers(0, 3, 150), rng.integers(0, 3, 120), rng.normal(size=120)
    log = checked_log(schema, *columns, lengths, np.ones(30, bool), np.full(120, np.log(1 / 3)))
    calls = []

    def asked(observations):
        calls.append(len(observations))
        return by_side(observations)

    policies = {"inside": BySide(), "outside": as_policy(asked, schema.action_space), "uniform": UniformPolicy(3)}
    found = compare(KEY, log, policies, [m for m in model_free(log) if not isinstance(m, FittedQ)])
    assert values(found, "inside") == pytest.approx(values(found, "outside"), rel=1e-5)
    assert sum(calls) <= 2 * 9


COMMANDED = """
import numpy as np
from coulda.environments import tiger
from coulda.policies import TabularPolicy

TABLE = np.array([[0.2, 0.1, 0.7], [0.2, 0.7, 0.1], [0.8, 0.1, 0.1]])
model = tiger(horizon=3, reparameterization="gumbel_max")
inside = TabularPolicy(TABLE)

def outside(observations):
    return TABLE[observations]
"""


@pytest.mark.slow
def test_the_command_takes_both_and_their_column(tmp_path, monkeypatch):
    """MB-PE and CF-PE on the same noise, and importance sampling, which a column is enough for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "commanded.py").write_text(COMMANDED)
    log = collect(KEY, tiger(horizon=3, reparameterization="gumbel_max"), UniformPolicy(3), 60)
    frame = log.to_frame()
    table = np.array([[0.2, 0.1, 0.7], [0.2, 0.7, 0.1], [0.8, 0.1, 0.1]])
    frame[["new_0", "new_1", "new_2"]] = table[frame["observation"].to_numpy()]
    frame.to_parquet("log.parquet")
    policies = ["--policy", "commanded.py:inside", "--policy", "commanded.py:outside"]
    main(["evaluate", "log.parquet", *policies, "--model", "commanded.py:model", "--out", "run"])
    found = json.loads((tmp_path / "run" / "table.json").read_text())["policies"]
    values = {name: {method: one["value"] for method, one in rows.items()} for name, rows in found.items()}
    assert {"WIS", "DR", "FQE", "MB-PE", "CF-PE"} <= values["inside"].keys()
    assert values["outside"] == pytest.approx(values["inside"], rel=1e-5)
    main(["evaluate", "log.parquet", "--policy", "column:new", "--out", "other"])
    found = json.loads((tmp_path / "other" / "table.json").read_text())["policies"]["new"]
    assert {name: one["value"] for name, one in found.items()} == pytest.approx(
        {name: values["inside"][name] for name in found}, rel=1e-5
    )


@pytest.mark.slow
def test_explanations_and_search_of_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.py").write_text(COMMANDED)
    log = collect(KEY, tiger(horizon=3, reparameterization="gumbel_max"), UniformPolicy(3), 8)
    write_log("log", log)
    explained = []
    for name in ("inside", "outside"):
        main(
            [
                "explain",
                "log",
                "--model",
                "asked.py:model",
                "--policy",
                f"asked.py:{name}",
                "--out",
                name,
            ]
        )
        explained.append(json.loads((tmp_path / name / "explanations.json").read_text()))
    assert explained[0] == explained[1]
    with pytest.raises(SystemExit):
        main(["search", "--model", "asked.py:model", "--policy", "asked.py:outside", "--preset", "smoke"])
    assert "runs outside of JAX, so that its parameters cannot be searched" in capsys.readouterr().err
