"""`coulda evaluate`: the table printed, the JSON written and the figures are those of `compare`."""

import json
from pathlib import Path

import jax
import pytest
import tyro

from coulda.cli.evaluate import Evaluate
from coulda.episodes import collect, write_any
from coulda.episodes.files import write_log
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, compare, model_free
from coulda.hindsight import Exact
from coulda.naming import load
from coulda.pomdp import POMDP, Policy
from coulda.recipes.evaluation import EvaluationRecipe
from coulda.report import load_report, tabulate
from tests.conftest import ROOT
from tests.triage import BEHAVIOR, TARGET, triage

EPISODES = 1000  # as in other tests of evaluation, so that they share programs
WORLD = """
from tests.triage import BEHAVIOR, TARGET, triage

def model():
    return triage()

NUMBER = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ward")
    write_any(folder / "log", collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES))
    (folder / "world.py").write_text(WORLD)
    return folder


def test_the_table_is_that_of_compare(folder: Path, capsys):
    world = folder / "world.py"
    arguments = [str(folder / "log"), "--model", f"{world}:model", "--out", str(folder / "out"), "--seed", "11"]
    arguments += ["--policy", f"{world}:TARGET", "--policy", f"{world}:BEHAVIOR"]
    tyro.cli(Evaluate, args=arguments).run()
    printed = capsys.readouterr().out
    written = json.loads((folder / "out" / "table.json").read_text())
    log = collect(jax.random.key(0), triage(), BEHAVIOR, EPISODES)
    policies = {"TARGET": TARGET, "BEHAVIOR": BEHAVIOR}
    expected = compare(jax.random.key(11), log, policies, [*model_free(log), OnScenarios(triage(), Exact(triage()))])
    for name, estimate in expected.rows():
        assert written["policies"][name][estimate.method]["value"] == pytest.approx(estimate.value, abs=1e-6)
        assert written["policies"][name][estimate.method]["verdict"] == estimate.verdict
        assert estimate.method in printed
    assert (folder / "out" / "estimates.png").stat().st_size > 1000
    report = load_report(folder / "out")
    assert report.table == tabulate(expected)
    assert report.explorer is not None
    assert len(report.explorer.episodes) == 60
    with pytest.raises(FileExistsError, match="holds a report already"):
        tyro.cli(Evaluate, args=arguments).run()


@pytest.mark.slow
def test_workers_elsewhere_make_the_same_table(folder: Path, monkeypatch):
    """The log has two pieces, and a worker makes both."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
    world, log = folder / "world.py", folder / "long"
    write_log(log, [collect(jax.random.key(i), triage(), BEHAVIOR, 30) for i in range(2)])
    arguments = [str(log), "--model", f"{world}:model", "--policy", f"{world}:TARGET"]
    tables = []
    for executor in ("in-process", "processes"):
        out = folder / executor
        tyro.cli(
            Evaluate, args=[*arguments, "--steps", "2", "--workers", "1", "--executor", executor, "--out", str(out)]
        ).run()
        tables.append((out / "table.json").read_text())
    assert tables[0] == tables[1]
    assert "CF-PE(2)" in tables[0]


def test_executors_need_a_model_and_an_address_needs_ray(folder: Path):
    arguments = [str(folder / "log"), "--policy", f"{folder / 'world.py'}:TARGET"]
    with pytest.raises(CouldaError, match="none is named; add --model"):
        tyro.cli(Evaluate, args=[*arguments, "--executor", "processes"]).run()
    with pytest.raises(CouldaError, match="add --executor ray"):
        tyro.cli(Evaluate, args=[*arguments, "--model", f"{folder / 'world.py'}:model", "--address", "auto"]).run()


def test_what_is_wrong_is_said_before_a_model_is_fitted(folder: Path, capsys):
    """Each with a sentence, and nothing fitted: neither said, nor in the program's memory."""
    wrong = {
        "nobody": {"policy": [f"{folder}/world.py:nobody"]},
        "to be held against": {"policy": [f"{folder}/world.py:TARGET"], "rival": f"{folder}/world.py:model"},
        "add --model": {"policy": [f"{folder}/world.py:TARGET"], "executor": "processes"},
    }
    for sentence, options in wrong.items():
        with pytest.raises(CouldaError, match=sentence):
            Evaluate(folder / "log", **options).run()
        assert "fitted" not in capsys.readouterr().out


def test_policies_of_one_name_are_both_in_the_table(folder: Path):
    (folder / "other.py").write_text(WORLD)
    names = tuple(f"{folder}/{file}.py:TARGET" for file in ("world", "other"))
    both = EvaluationRecipe(str(folder / "log"), (*names, names[0], f"{folder}/world.py:BEHAVIOR"))
    assert list(both.named_policies) == [*names, "BEHAVIOR"]


def test_objects_are_loaded_by_name(folder: Path):
    assert isinstance(load(f"{folder / 'world.py'}:model", POMDP), POMDP)
    assert isinstance(load("tests.triage:TARGET", Policy), Policy)
    with pytest.raises(CouldaError, match="names no object"):
        load("nothing", POMDP)
    with pytest.raises(CouldaError, match="has no 'absent'"):
        load(f"{folder / 'world.py'}:absent", POMDP)
    with pytest.raises(CouldaError, match="is a int, not a Policy"):
        load(f"{folder / 'world.py'}:NUMBER", Policy)
    with pytest.raises(FileNotFoundError):
        load(f"{folder / 'absent.py'}:model", POMDP)
