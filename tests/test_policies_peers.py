"""Policies of other frameworks for real, in environments of their own, which `python -m benchmarks policies` makes."""

import json
import subprocess

import pytest

from benchmarks.harness import PEERS, beside
from tests.conftest import ROOT
from tests.test_docs import blocks

TUTORIAL = ROOT / "docs" / "tutorials" / "stable_baselines3.md"


def run(name, *arguments, cwd=ROOT):
    python = ROOT / ".cache" / "peers" / name / "bin" / "python"
    if not python.parents[1].joinpath(".ok").exists():
        pytest.skip(f"the peer {name} is not installed; `python -m benchmarks policies` does so")
    # The programs that users get, which these run for long. One thread: those of small networks wait for each other.
    env = beside() | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python), *arguments], capture_output=True, text=True, timeout=1800, cwd=cwd, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_scikit_learn():
    found = json.loads(run("scikit_learn", str(PEERS / "policies_scikit_learn.py")).splitlines()[-1])
    assert max(found["largest difference of a probability"].values()) < 1e-6
    assert found["largest difference of an estimate"] < 1e-4


@pytest.mark.slow
def test_pytorch():
    settings = json.dumps({"episodes": 500, "widths": [8], "repeats": 1, "threads": 1})
    found = json.loads(run("torch", str(PEERS / "policies_torch.py"), settings).splitlines()[-1])
    assert found["policies"]["two layers of 8"]["largest difference of an estimate"] < 1e-4
    assert found["returns in a model"]["largest difference"] < 1e-4


@pytest.mark.slow
def test_onnx():
    found = json.loads(run("onnx", str(PEERS / "policies_onnx.py")).splitlines()[-1])
    assert max(found["largest difference"].values()) < 1e-6


@pytest.mark.slow
def test_the_tutorial_of_stable_baselines(tmp_path):
    source = blocks(TUTORIAL)
    assert sum(bool(line.strip()) for line in source.split("\n")) <= 40, "lines of the user's code"
    told = run("stable_baselines3", "-c", source, cwd=tmp_path)
    assert "WIS" in told
    assert (tmp_path / "index.html").stat().st_size > 10_000
