"""One process a folder: others are refused before they touch anything, and a kill leaves nothing in the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coulda.stages import Stages
from coulda.storage import LOCK, ArtifactError, exclusive, verify_artifact
from tests.programs import holders

PROGRAM = [sys.executable, str(Path(holders.__file__))]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@contextmanager
def working(command: str, *arguments) -> Iterator[subprocess.Popen]:
    """A process, which does not outlive the test."""
    with subprocess.Popen([*PROGRAM, command, *map(str, arguments)], **PIPES) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def working_at_once(command: str, path: Path, names: str) -> Iterator[list[subprocess.Popen]]:
    """A process a letter; none begins before all are there."""
    with ExitStack() as stack:
        processes = [stack.enter_context(working(command, path, name)) for name in names]
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(names)
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes


def run(command: str, *arguments) -> subprocess.CompletedProcess:
    program = [*PROGRAM, command, *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)


def is_held(folder: Path) -> bool:
    """Whether the kernel refuses it to a process of its own."""
    tried = subprocess.run([sys.executable, "-c", TRY, str(folder / LOCK)], capture_output=True, check=False)
    assert tried.returncode == 0 or b"BlockingIOError" in tried.stderr, tried.stderr
    return tried.returncode != 0


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_is_refused_and_goes_on_when_the_first_is_killed(tmp_path):
    with working("stall", tmp_path) as process:
        assert process.stdout.readline() == "writing\n"
        before = contents(tmp_path)
        assert any(name.startswith(".second-") and name.endswith(".partial/a") for name in before)
        refused = run("finish", tmp_path)
        assert refused.returncode == 1
        message = f"another process (pid {process.pid}) works in {tmp_path}; wait for it, or name another folder"
        assert f"CouldaError: {message}" in refused.stderr
        assert contents(tmp_path) == before
        process.send_signal(signal.SIGKILL)
    done = run("finish", tmp_path)
    assert done.returncode == 0, done.stderr
    made = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    assert [path.name.rpartition("-")[0] for path in made] == ["first", "second"]  # and nothing that is half written
    for path in made:
        verify_artifact(path)
    assert sorted(json.loads((tmp_path / "seconds.json").read_text())) == [path.name for path in made]


@pytest.mark.slow
def test_processes_that_take_turns_lose_nothing(tmp_path):
    refused = 0
    with working_at_once("take_turns", tmp_path, "ab") as processes:
        for process in processes:
            told, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
            refused += int(told)
    assert refused, "they never met; the test says nothing"
    made = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(made) == 20
    for path in made:
        verify_artifact(path)
    assert set(json.loads((tmp_path / "seconds.json").read_text())) == {path.name for path in made}


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    file = tmp_path / "numbers"
    with working_at_once("write", file, "ab") as processes:
        while any(process.poll() is None for process in processes):
            assert not file.exists() or file.read_bytes() in (b"a" * 100_000, b"b" * 100_000)
            time.sleep(0.001)
        for process in processes:
            _, error = process.communicate()
            assert process.returncode == 0, error
    assert list(tmp_path.iterdir()) == [file]


def test_a_child_does_not_hold_what_its_killed_parent_held(tmp_path):
    with working("fork", tmp_path) as process:
        child = int(process.stdout.readline())
        try:
            assert is_held(tmp_path)
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(child, 0)  # it lives
            assert not is_held(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_may_hold_a_folder_again_until_the_last_lets_go(tmp_path):
    first, second = Stages(tmp_path), Stages(tmp_path / "." / "")
    first.close()
    assert is_held(tmp_path)
    second.close()
    second.close()  # as often as one likes
    assert not is_held(tmp_path)


def test_a_folder_is_let_go_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), Stages(tmp_path):
        _ = 1 / 0
    assert not is_held(tmp_path)


def test_leftovers_of_killed_writers_are_swept_and_nothing_else(tmp_path):
    (tmp_path / ".note.abc.partial").mkdir()
    (tmp_path / ".note.abc.partial" / "a").touch()
    (tmp_path / ".numbers.json.abc.partial").touch()
    (tmp_path / ".kept").mkdir()
    with exclusive(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".kept", LOCK]
        (tmp_path / ".note.abc.partial").mkdir()
        with exclusive(tmp_path):  # somebody in this process may be writing by now
            assert (tmp_path / ".note.abc.partial").exists()


def test_damaged_times_are_refused_by_name_before_the_work(tmp_path):
    (tmp_path / "seconds.json").write_text('{"first": "long"')
    with Stages(tmp_path) as stages, pytest.raises(ArtifactError, match=r"seconds.json: expected seconds by stage"):
        stages.make("first", {}, {}, lambda path: pytest.fail(f"{path} was made"))
