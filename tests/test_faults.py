"""A little of `make faults`; a learner over two processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from tests.conftest import ROOT
from tests.programs import corruption

PROGRAMS = ROOT / "tests" / "programs"
NETWORK = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]


def isolated(*command) -> list[str]:
    """A command in a network of its own, where nothing can be reached from outside."""
    if subprocess.run([*NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let us make a network of our own")
    return [*NETWORK, sys.executable, *map(str, command)]


def test_damaged_checkpoints_and_logs_are_refused():
    told = corruption.main(160, seed=1)
    assert told["outcomes"] == {"refused": 160}
    assert len(told["damages"]) == 2 * len(corruption.DAMAGES)


def test_a_reader_that_checks_nothing_would_be_caught(tmp_path):
    """The twin: where a reader accepts whatever it finds, the program says so."""
    good = tmp_path / "good" / "note"
    good.mkdir(parents=True)
    for name in ("a", "b"):
        (good / name).write_text(name * 10)
    rng = corruption.random.Random(0)
    outcomes = {corruption.attack(rng, good, good, lambda path: None, tmp_path)[1] for _ in range(20)}
    assert outcomes == {"accepted"}


def test_a_stage_may_be_killed_at_any_file_operation():
    program = [sys.executable, str(PROGRAMS / "crash_points.py")]
    told = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, timeout=600).stdout)
    assert told["kills"] > 30
    assert told["outcomes"] == {"as if nothing had happened": told["kills"]}


@pytest.mark.slow
def test_ray_loses_nothing_when_actors_nodes_and_learners_die(tmp_path):
    command = isolated(PROGRAMS / "cluster.py", "brief", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert told["bits"]["batches compared"] == 10
    for name, kills in (("actors", 2), ("nodes", 1)):
        assert told[name]["kills"] == kills
        assert told[name]["requests"] >= 16  # what fits in flight
        assert (told[name]["lost"], told[name]["duplicated"], told[name]["wrong"]) == (0, 0, 0)
    assert told["learner"] == {"kills": 1, "steps": 60, "of": 60, "bit-identical": True}


@pytest.mark.slow
def test_ray_gives_up_and_lets_nobody_in():
    """Ten deaths are three here; a cluster of our own asks for a token that nobody else has."""
    done = subprocess.run(isolated(PROGRAMS / "ray_limits.py"), capture_output=True, text=True, timeout=1200, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert "its worker died 3 times" in told["dying"]["told"]
    assert told["dying"]["deaths"] == 3
    assert told["hanging"]["told"].startswith("a worker did not answer in 20 seconds")
    assert told["nobody"]["told"].startswith("no Ray cluster answers at 127.0.0.1:1")
    assert told["nobody"]["seconds"] < 20
    assert told["strangers"].pop("the right one") == "let in"
    assert "let in" not in told["strangers"].values()


@pytest.mark.slow
def test_a_learner_over_two_hosts_learns_what_one_does(tmp_path):
    """Sums over hosts are in another order: float error, and no more."""
    program = PROGRAMS / "two_hosts.py"
    script = f'"$0" {program} {tmp_path}/r0 0 45671 & "$0" {program} {tmp_path}/r1 1 45671 && wait $!'
    subprocess.run([sys.executable, program, tmp_path / "alone"], check=True, timeout=600)
    done = subprocess.run(
        [*isolated()[:-1], "sh", "-c", script, sys.executable], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    alone, first, second = (safetensors.numpy.load_file(tmp_path / name) for name in ("alone", "r0", "r1"))
    for name, array in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], array, rtol=1e-4, atol=1e-6)
