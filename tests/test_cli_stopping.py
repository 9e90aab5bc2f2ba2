"""Ctrl-C and SIGTERM, sent to real processes."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BRIEF = ["--no-progress", "--evaluation-episodes", "8", "--evaluate-every", "1000000", "--updates", "1000000"]
TRAININGS = {
    "train": ["train", "--world", "tiger", "--preset", "smoke", "--batch", "4", *BRIEF],
    "search": ["search", "--world", "bandit", "--preset", "smoke", "--episodes", "2", "--rollouts", "2", *BRIEF],
    "train-policy": ["train-policy", "--preset", "smoke", *BRIEF],
}


def begin(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "coulda", *arguments], stderr=subprocess.PIPE, text=True)


def wait_for_steps(log: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 600
    while not (log.exists() and log.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", TRAININGS)
def test_a_training_that_is_stopped_says_so(command, number, tmp_path: Path):
    process = begin(*TRAININGS[command], "--folder", str(tmp_path))
    wait_for_steps(tmp_path / "log.jsonl", process)
    process.send_signal(number)
    _, told = process.communicate(timeout=600)
    (saved,) = tmp_path.glob("step-*")
    steps = json.loads((saved / "manifest.json").read_text())["metadata"]["step"]
    assert told.strip().splitlines()[-1] == f"stopped after {steps} updates"
    assert "Traceback" not in told
    assert process.returncode == 128 + number
    assert not (tmp_path / "policy").exists()  # half a policy is none


@pytest.mark.slow
def test_ctrl_c_while_importing_is_quiet(tmp_path: Path):
    """Twelve moments between the start and the first message."""
    (tmp_path / "log.csv").write_text("episode,step,observation,action,reward\n0,0,0,0,1.0\n")
    stopped = 0
    for moment in range(12):
        process = begin("evaluate", str(tmp_path / "log.csv"), "--policy", "nobody.py:policy")
        time.sleep(0.2 + 0.2 * moment)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=300)
        assert "Traceback" not in told or "coulda/" not in told, told  # Python's own start is not ours
        assert process.returncode in (130, -signal.SIGINT, 2), told
        stopped += process.returncode != 2
    assert stopped
