"""`coulda reproduce` on a bad day: a full disk, a folder that is none or in use, a stage that was touched, a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coulda.storage import LOCK, exclusive

RUN = [sys.executable, "-m", "coulda", "reproduce"]
SMOKE = ["evaluation", "--preset", "smoke", "--no-progress"]


def reproduce(folder: Path, *before: str) -> subprocess.CompletedProcess:
    command = [*before, *RUN, *SMOKE, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def finished(folder: Path) -> set[str]:
    return {path.name for path in (folder / "smoke" / "stages").iterdir() if (path / "manifest.json").exists()}


def test_a_folder_that_is_a_file_is_a_clear_mistake(tmp_path):
    (tmp_path / "taken").write_text("")
    result = reproduce(tmp_path / "taken")
    assert result.returncode == 2
    assert "Not a directory" in result.stderr
    assert "taken" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_in_use_is_a_clear_mistake(tmp_path):
    with exclusive(tmp_path / "smoke"):
        result = reproduce(tmp_path)
    assert result.returncode == 2
    assert f"another process (pid {os.getpid()}) works in {tmp_path / 'smoke'}; wait for it" in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in (tmp_path / "smoke").iterdir()] == [LOCK]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_a_clear_mistake(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    result = reproduce(tmp_path / "locked")
    assert result.returncode == 2
    assert "Permission denied" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_full_disk_loses_no_finished_stage_and_leaves_no_half_of_one(tmp_path):
    mount = f"mount -t tmpfs -o size=32k tmpfs {tmp_path} && "
    show = f"; code=$?; ls -A {tmp_path}/smoke/stages; exit $code"
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*namespace, mount + "true"], check=False).returncode:
        pytest.skip("no tmpfs may be mounted here")
    command = " ".join([*RUN, *SMOKE, "--folder", str(tmp_path)])
    result = subprocess.run([*namespace, mount + command + show], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "No space left on device" in result.stderr
    assert "the same command goes on" in result.stderr
    assert "Traceback" not in result.stderr
    # What a stage keeps of its training in a `.work` is no artifact.
    others = (".json", ".work", LOCK)
    kept = [name.rpartition("-")[0] for name in result.stdout.split() if not name.endswith(others)]
    assert kept == ["levels-policy"]
    assert not [name for name in result.stdout.split() if "partial" in name]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_numbers_and_a_touched_stage_is_refused(tmp_path):
    """SIGKILL in the middle of training; three minutes."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert reproduce(whole).returncode == 0
    command = [*RUN, *SMOKE, "--folder", str(killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not list(killed.glob("smoke/stages/scenario-model-*.work")):
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.05)
            process.send_signal(signal.SIGSTOP)  # it shall not get further meanwhile
            assert f"another process (pid {process.pid}) works in" in reproduce(killed).stderr
        finally:
            process.send_signal(signal.SIGKILL)
    assert not any(name.startswith("scenario-model") for name in finished(killed))
    before = finished(killed)
    assert any(name.startswith("policy") for name in before)
    result = reproduce(killed)
    assert result.returncode == 0, result.stderr
    assert "policy: unchanged" in result.stderr
    numbers = [
        json.loads((folder / "smoke" / "evaluation.json").read_text())["estimates"] for folder in (whole, killed)
    ]
    assert numbers[0] == numbers[1]
    (part,) = killed.glob("smoke/stages/policy-*/*.safetensors")
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    refused = reproduce(killed)
    assert refused.returncode == 2
    assert "SHA-256" in refused.stderr
    assert "remove" in refused.stderr
    assert "Traceback" not in refused.stderr
