"""`make faults`: training, workers, nodes and a learner are killed, files are damaged or forged; what came of it.

Each fault is a program under `tests/programs`, of which the tests run a shorter version.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, isolated

PROGRAMS = ROOT / "tests" / "programs"
RESULTS = ROOT / "results" / "faults"


def program(name: str, *arguments: Any, timeout: float = 3600) -> str:
    """The last line that a program prints."""
    command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name} {arguments} failed:\n{done.stderr[-4000:]}")
    return done.stdout.strip().splitlines()[-1]


def on_ray(*arguments: Any, timeout: float = 3600) -> dict[str, Any]:
    """What a command of `cluster.py` found."""
    command = isolated(PROGRAMS / "cluster.py", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"cluster.py {arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def training(kills: int = 104) -> dict[str, Any]:
    """SIGKILLs at random moments, half of them inside a checkpoint's write, against a run that was left alone."""
    with tempfile.TemporaryDirectory() as temporary:
        killed, alone = Path(temporary) / "killed", Path(temporary) / "alone"
        done, inside = re.findall(r"\d+", program("training.py", "kill", killed, 1_000_000, kills, 0))
        steps = max(int(path.name[5:]) for path in killed.glob("step-*")) + 4
        for folder in (killed, alone):
            program("training.py", "run", folder, steps, 0)
        final = f"step-{steps:010d}/state.safetensors"
        same = (killed / final).read_bytes() == (alone / final).read_bytes()
    return {"kills": int(done), "inside writes": int(inside), "steps": steps, "bit-identical": same}


def learner(kills: int = 10) -> dict[str, Any]:
    """A learner on a Ray actor."""
    with tempfile.TemporaryDirectory() as temporary:
        return on_ray("learner", kills, 0, temporary)


FAULTS: dict[str, Callable[[], dict[str, Any]]] = {
    "corruption": lambda: json.loads(program("corruption.py", 5000, 0)),
    "fuzz": lambda: json.loads(program("fuzz.py", 6000, 0)),
    "crashes": lambda: json.loads(program("crash_points.py")),
    "training": training,
    "learner": learner,
    "actors": lambda: on_ray("actors", 100, 0),
    "nodes": lambda: on_ray("nodes", 10, 0),
}


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in FAULTS]:
        sys.exit(f"there is no fault {unknown}; there are {list(FAULTS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names or FAULTS:
        start = time.monotonic()
        told = {**FAULTS[name](), "seconds": round(time.monotonic() - start, 1)}
        print(name, json.dumps(told), flush=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
