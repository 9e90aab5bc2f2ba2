"""Benchmarks import, list themselves and run at their smallest; what they measure is nothing to a test."""

import importlib
import json
import re
import subprocess
import sys

import pytest

from benchmarks import readme
from benchmarks.__main__ import BENCHMARKS, HOURS, each, summary
from benchmarks.harness import ROOT

FOLDER = ROOT / "benchmarks"
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__main__")
"""All but `peers/`, whose scripts run in environments that have the peers."""
BESIDES = {
    "harness": "what they share",
    "readme": "writes README.md",
    "scope_worlds": "scope-rl's worlds, for scope_rl",
    "faults": "`make faults`",
    "scaling": "a simulation, run by its own name",
    "sepsis_agreement": "a comparison of numbers, run by its own name",
    "sokoban_levels": "a comparison of levels, run by its own name",
    "published_sepsis": "a peer's arithmetic in our own code",
    "published_explanations": "a peer's arithmetic in our own code",
    "sbibm": "tasks",
    "c2st": "the score of draws, for amortized",
    "__init__": "the package",
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_every_module_is_a_benchmark_or_known_to_be_none():
    assert set(MODULES) == {*BENCHMARKS, *BESIDES}


@pytest.mark.parametrize("name", MODULES)
def test_import(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert name in BESIDES or callable(module.main)


def test_list_and_help_do_not_import_what_they_name():
    listed = bench("--list")
    assert listed.stdout.splitlines() == [f"{name:16}{summary(name)}" for name in BENCHMARKS]
    assert "NAME" in bench("--help").stdout
    refused = bench("nothing")
    assert refused.returncode == 2
    assert "there is no benchmark ['nothing']" in refused.stderr


def test_one_that_fails_does_not_lose_the_others(capsys):
    found, failed = each(["1", "nothing", "3"], int)
    assert (found, failed) == ({"1": 1, "3": 3}, ["nothing"])
    said = capsys.readouterr().err
    assert "2 of 3: nothing" in said
    assert "invalid literal" in said
    assert set(HOURS) <= set(BENCHMARKS)


def test_the_page_is_made_from_the_results():
    """`python -m benchmarks.readme` writes it anew; and what is behind a peer is called so."""
    page = readme.README.read_text()
    assert page == readme.made()
    ratios = {row: readme._at(json.loads((ROOT / "results" / row.file).read_text()), row.path) for row in readme.ROWS}
    assert page.count("behind the peer") == sum(ratio < 1 for ratio in ratios.values())


def missing(name: str) -> str | None:
    """Peers that a benchmark would install."""
    source = (FOLDER / f"{name}.py").read_text()
    peers = re.findall(r'run_(?:peer|beside)\(\s*"(\w+)"', source)
    away = [peer for peer in peers if not (ROOT / ".cache" / "peers" / peer / ".ok").exists()]
    if away:
        return f"the peers {away} are not installed; `python -m benchmarks {name}` does so"
    if name == "amortized" and not importlib.import_module("benchmarks.sbibm").has_data("two_moons"):
        return "the data of the simulation-based inference benchmark are not here"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_smallest(name):
    if reason := missing(name):
        pytest.skip(reason)
    done = bench("--tiny", name)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)[name]["measured"]["command"] == f"python -m benchmarks {name}"
