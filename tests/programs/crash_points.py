"""A stage that trains, killed at every one of its file operations, and run again. Prints one line of JSON.

After each kill, what is committed must be whole, and a second run must leave what one undisturbed run leaves: the same
bytes, and no litter.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

from coulda.errors import CouldaError  # noqa: E402
from coulda.stages import Stages, work_folder  # noqa: E402
from coulda.storage import LOCK, LOG, Kind, replace_file, save_network, verify_artifact, write_artifact  # noqa: E402

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


class Nothing(msgspec.Struct):
    """Metadata."""


KIND = Kind("crash", 1, Nothing)


def work(folder: Path) -> None:
    """Train with a checkpoint and a log, and commit the network; then a second stage."""

    def train(path: Path) -> None:
        kept = work_folder(path)
        kept.mkdir(exist_ok=True)
        if not (kept / "step-1").exists():
            write_artifact(kept / "step-1", KIND, [("state", b"1" * 100)], Nothing())
        replace_file(kept / LOG, b'{"step":1}\n')
        save_network(path, KIND, {"weights": np.ones(3, np.float32)}, Nothing(), (kept / LOG).read_bytes())

    with Stages(folder, Console(quiet=True)) as stages:
        policy = stages.make("policy", {"n": 1}, {}, train)
        stages.result("table", {}, {"policy": policy}, lambda: {"numbers.json": b"[1]"})


def killed_at(folder: Path, point: int) -> bool:
    """Run it in a fork that ends, without a word to anybody, at its n-th file operation; whether it came so far."""
    child = os.fork()
    if not child:
        count = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal count
            if event in EVENTS and str(folder) in str(arguments):
                count += 1
                if count == point:
                    os._exit(9)

        sys.addaudithook(watch)
        work(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that say when; of folders, their names."""
    times = (LOCK, "seconds.json")
    return {
        str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name not in times
    }


def outcome(folder: Path, expected: dict[str, bytes]) -> str:
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".work"):
            try:
                verify_artifact(path)
            except CouldaError:
                return "half an artifact was committed"
            if path.name.startswith("policy") and not (path / LOG).exists():
                return "a policy without its log"
    try:
        work(folder)
    except Exception as error:
        return f"not run again: {type(error).__name__}"
    found = contents(folder)
    if found.keys() != expected.keys():
        return f"litter: {sorted(found.keys() ^ expected.keys())}"
    return "as if nothing had happened" if found == expected else "other bytes"


def main() -> dict:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        work(place / "whole")
        expected = contents(place / "whole")
        outcomes, point = Counter(), 1
        while killed_at(folder := place / f"killed-{point}", point):
            folder.mkdir(exist_ok=True)
            outcomes[outcome(folder, expected)] += 1
            point += 1
    return {"kills": point - 1, "outcomes": dict(outcomes)}


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
