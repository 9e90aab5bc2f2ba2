"""What every benchmark shares: peers in environments of their own, warm timings, and JSON."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"


def peer_python(name: str) -> Path:
    """The Python of a peer's environment, made from `peers/NAME.txt` on first use."""
    folder = ROOT / ".cache" / "peers" / name
    python, done = folder / "bin" / "python", folder / ".ok"
    if not done.exists():
        print(f"installing the peer {name} into {folder.relative_to(ROOT)} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = str(PEERS / f"{name}.txt")
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--requirement", requirements], check=True)
        done.touch()
    return python


def run_peer(name: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run `peers/SCRIPT` in the peer's environment; the last line that it prints is JSON."""
    command = [str(peer_python(name)), str(PEERS / script), *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.strip().splitlines()[-1])


def seconds(function: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Seconds of the first call (with compilation) and the median of `repeats` warm ones."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return {"first_call": times[0], "warm": statistics.median(times[1:])}
