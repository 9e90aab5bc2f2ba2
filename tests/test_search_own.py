"""Search in a model of one's own, from the command line: with an environment, with a log, and with neither."""

import json
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from coulda.cli import main
from coulda.devices import num_devices, one_device
from coulda.episodes import collect, write_log
from coulda.errors import CouldaError
from coulda.hindsight import Exact, Prior
from coulda.naming import load
from coulda.policies import TabularPolicy, UniformPolicy, as_policy, load_parameters, save_parameters
from coulda.pomdp import Policy
from coulda.recipes import hidden_bit_model, own_world
from coulda.report import load_report
from coulda.search import Logged, PolicySearch
from coulda.storage import ArtifactError
from coulda.studies.pump import DESKTOP, SMOKE, draw, study
from tests.conftest import ROOT

FILE = """
import gymnasium
import jax.numpy as jnp
import numpy as np
from coulda.environments import Pump, tiger
from coulda.policies import TabularPolicy, UniformPolicy, load_parameters
from coulda.recipes import hidden_bit_model
from coulda.studies.pump import Upkeep

model, world = hidden_bit_model(0.1), hidden_bit_model(0.9)
policy, nothing, cat = TabularPolicy(np.full((3, 2), 0.5)), UniformPolicy(2), TabularPolicy(np.full((3, 5), 0.2))
pump, upkeep = Pump(horizon=6, worn=0.1), Upkeep.zero()

def found():
    return load_parameters("out/policy", policy)

class Coins(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.day = 0
        return 0, {}

    def step(self, action):
        coin = int(self.np_random.random() < 0.8)
        self.day += 1
        return 1 + coin, float(action == coin), self.day == 3, False, {}

def coins():
    return gymnasium.wrappers.TimeLimit(Coins(), 3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE)
    own_world.cache_clear()
    return tmp_path


def search(*arguments: str) -> None:
    brief = "--updates 40 --episodes 8 --rollouts 4 --learning-rate 0.3 --evaluation-episodes 200 --no-progress"
    main(["search", "--model", "own.py:model", "--policy", "own.py:policy", *brief.split(), *arguments])


@pytest.mark.slow
def test_what_is_found_in_a_log_is_evaluated_by_its_name(folder, capsys):
    """The bit is 1 in nine of ten logged episodes and in one of ten of the model's."""
    write_log(folder / "log", collect(jax.random.key(0), hidden_bit_model(0.9), UniformPolicy(2), 200))
    search("--log", "log", "--folder", "run", "--out", "out")
    printed = " ".join(capsys.readouterr().out.split())
    assert "Scenarios: exact, since the posterior is known." in printed
    assert "model return" in printed
    assert "true" not in printed
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    # What hindsight says of the log: 200 episodes, four standard errors of its own share are 0.085.
    assert lines[-1]["model_return"] == pytest.approx(0.9, abs=0.1)
    found = load("own.py:found", Policy)
    assert float(found((), 0)[1].probabilities[1]) > 0.95
    table = load_report("out").table
    assert {(row.policy, row.method) for row in table.rows} == {
        (policy, method) for policy in ("before", "after 40 updates") for method in ("MB-PE", "CF-PE")
    }
    main(["evaluate", "log", "--model", "own.py:model", "--policy", "own.py:found"])
    assert "CF-PE" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        search("--log", "log", "--out", "out")
    assert "holds a report already" in capsys.readouterr().err


@pytest.mark.slow
def test_an_environment_tells_the_truth_and_without_one_the_model_is_the_world(folder, capsys):
    search("--environment", "own.py:world", "--out", "truth")
    assert "true return" in capsys.readouterr().out
    rows = {(row.policy, row.method): row.value for row in load_report("truth").table.rows}
    # 4,000 episodes or so: four standard errors are below 0.05.
    assert rows["after 40 updates", "on-policy"] == pytest.approx(0.9, abs=0.06)
    search("--scenarios", "exact", "--out", "own")
    # In the model itself the bit is 0 in nine of ten.
    guess = load_parameters("own/policy", TabularPolicy(np.full((3, 2), 0.5)))((), 0)[1]
    assert float(guess.probabilities[0]) > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "own.py:nothing"], "UniformPolicy has no floating-point array, so there is nothing to train"),
        (["--policy", "own.py:cat"], "knows 5 actions, but there are 2"),
        (["--environment", "own.py:world", "--log", "log"], "name one of them"),
        (["--log", "absent"], "is not there"),
        (["--scenarios", "particles", "--log", "log", "--executor", "processes"], "leave out --executor"),
        (["--model", "own.py:pump", "--policy", "own.py:upkeep", "--log", "log"], "the log's observations are"),
    ],
)
def test_mistakes_are_named(folder, capsys, arguments, message):
    write_log(folder / "log", collect(jax.random.key(0), hidden_bit_model(0.9), UniformPolicy(2), 4))
    with pytest.raises(SystemExit) as stop:
        search(*arguments)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_log_stands_in_the_place_of_an_environment():
    model, optimizer = hidden_bit_model(0.1), optax.sgd(0.1)
    first = TabularPolicy(np.full((3, 2), 0.5))
    log = collect(jax.random.key(0), hidden_bit_model(0.9), first, 6)
    logged = Logged.of(log, model)
    searched = PolicySearch(logged, model, Exact(model, first), optimizer, num_episodes=5, refresh=1)
    state = searched.init(first)
    u, episodes = searched.collect(jax.random.key(1), state)
    assert u is None
    known = {tuple(map(int, row)) for row in np.asarray(logged.episodes.observation)}
    assert {tuple(map(int, row)) for row in np.asarray(episodes.observation)} <= known
    state, info = searched.step(jax.random.key(1), state)
    assert float(info.behavior_return) == pytest.approx(float(episodes.reward.sum(1).mean()))
    moved, _ = searched.step(jax.random.key(2), state)
    assert np.array_equal(moved.source.behavior.logits, first.logits), "who acted in the log stays who acted"
    assert not np.array_equal(moved.policy.logits, first.logits)
    for name, value in (("learn", lambda *_: None), ("executor", object())):
        with pytest.raises(CouldaError, match=f"{name} is given, but episodes come from a log"):
            PolicySearch(logged, model, Prior(model), optimizer, **{name: value})


def test_parameters_of_another_policy_are_refused(tmp_path):
    policy = TabularPolicy(np.full((3, 2), 0.5))
    save_parameters(tmp_path / "policy", policy)
    assert np.array_equal(load_parameters(tmp_path / "policy", policy).logits, policy.logits)
    with pytest.raises(CouldaError, match="parameters of a TabularPolicy, not of a UniformPolicy"):
        load_parameters(tmp_path / "policy", UniformPolicy(2))
    with pytest.raises(ArtifactError, match=r"expected float32\[4, 2\], found float32\[3, 2\]"):
        load_parameters(tmp_path / "policy", TabularPolicy(np.full((4, 2), 0.5)))


@pytest.mark.slow
def test_a_model_without_a_posterior_is_searched_with_the_source_that_is_chosen(folder, capsys):
    brief = "--preset smoke --evaluation-episodes 8 --no-progress --folder run --out out"
    main(["search", "--model", "own.py:pump", "--policy", "own.py:upkeep", *brief.split()])
    assert "Scenarios: particles (1,000), since" in capsys.readouterr().out
    assert {row.method for row in load_report("out").table.rows} == {"MB-PE", "CF-PE", "on-policy"}


def test_the_committed_study_is_of_the_settings_that_the_code_has():
    found = json.loads((ROOT / "results" / "pump" / "search.json").read_text())
    assert found["preset"] == json.loads(json.dumps(asdict(DESKTOP)))


@pytest.mark.slow
def test_the_study_of_the_pump_has_all_its_seeds():
    found = study(SMOKE)
    for name in ("CF-GPS", "MB-PS"):
        assert np.isfinite(found[name]["true returns"]).all()
        assert np.shape(found[name]["true returns"]) == (2, 3)
    # Both begin with the same policy, which is measured on the same noise.
    assert [curve[0] for curve in found["CF-GPS"]["true returns"]] == [
        curve[0] for curve in found["MB-PS"]["true returns"]
    ]
    assert draw(found).startswith("<?xml")


@pytest.mark.slow
def test_a_gymnasium_environment_is_searched_as_it_is(folder, capsys):
    """Three coins, each heads with probability 0.8, are guessed: 1.5 right before, at most 2.4 after."""
    search("--model", "own.py:coins", "--out", "out")
    assert "Scenarios: inverted, since what the simulator draws can be gone through." in capsys.readouterr().out
    rows = {(row.policy, row.method): row.value for row in load_report("out").table.rows}
    # Of 200 episodes, four standard errors are 0.2.
    assert rows["before", "on-policy"] == pytest.approx(1.5, abs=0.25)
    assert rows["after 40 updates", "on-policy"] > 2.1


def test_a_program_that_calls_the_host_is_for_one_device():
    model = hidden_bit_model(0.5)
    outside = as_policy(lambda seen: np.full((len(seen), 2), 0.5), model.action_space)
    searched = PolicySearch(model, model, Prior(model), optax.sgd(0.1), planner=outside)
    assert searched.calls_host
    assert not PolicySearch(model, model, Prior(model), optax.sgd(0.1)).calls_host
    with one_device(False):
        assert num_devices() == jax.local_device_count()
        with one_device(True), one_device(False):
            assert num_devices() == 1
    assert num_devices() == jax.local_device_count()
