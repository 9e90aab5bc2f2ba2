"""Processes that work in one folder, to be refused, killed and let in by tests.

python holders.py stall FOLDER             make one stage, then stay inside the writing of a second
python holders.py finish FOLDER            make both
python holders.py take_turns FOLDER NAME   when told to, make ten stages, opening the folder for each until it is let in
python holders.py fork FOLDER              hold the folder, and leave a child that outlives its parent
python holders.py write FILE BYTE          when told to, replace a file many times by that byte, repeated
"""

import os
import sys
import time
from pathlib import Path

from rich.console import Console

from coulda.errors import CouldaError
from coulda.stages import RESULT, ResultMetadata, Stages
from coulda.storage import exclusive, replace_file, write_artifact

QUIET = Console(quiet=True)


def first(stages: Stages) -> None:
    stages.result("first", {}, {}, lambda: {"a": b"1"})


def stall(folder: Path) -> None:
    def parts():
        yield "a", b"1"
        say("writing")
        time.sleep(600)

    with Stages(folder, QUIET) as stages:
        first(stages)
        make = lambda path: write_artifact(path, RESULT, parts(), ResultMetadata({}))
        stages.make("second", {}, {}, make)


def finish(folder: Path) -> None:
    with Stages(folder, QUIET) as stages:
        first(stages)
        stages.result("second", {}, {}, lambda: {"a": b"1", "b": b"2"})


def take_turns(folder: Path, name: str) -> None:
    wait_for_the_others()
    refused = 0
    for i in range(10):
        while True:
            try:
                with Stages(folder, QUIET) as stages:
                    stages.result(f"{name}-{i}", {}, {}, slowly)
                break
            except CouldaError:
                refused += 1
                time.sleep(0.001)
    say(str(refused))


def slowly() -> dict[str, bytes]:
    time.sleep(0.05)
    return {"a": b"1"}


def fork(folder: Path) -> None:
    with exclusive(folder):
        child = os.fork()
        if child:
            say(str(child))
        time.sleep(600)


def write(file: Path, byte: str) -> None:
    wait_for_the_others()
    for _ in range(50):
        replace_file(file, byte.encode() * 100_000)


def wait_for_the_others() -> None:
    say("ready")
    sys.stdin.readline()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    command, path, *rest = sys.argv[1:]
    {"stall": stall, "finish": finish, "take_turns": take_turns, "fork": fork, "write": write}[command](
        Path(path), *rest
    )
