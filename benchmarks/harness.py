"""What every benchmark shares: peers in environments of their own, warm timings, and JSON."""

import json
import os
import site
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from coulda.cli import LARGE_PAGES

ROOT = Path(__file__).parents[1]
PEERS = Path(__file__).parent / "peers"
TINY = "--tiny" in sys.argv

Size = TypeVar("Size")


def sized(full: Size, tiny: Size) -> Size:
    """`tiny` under `--tiny`, which shows in seconds that a benchmark runs; its numbers mean nothing."""
    return tiny if TINY else full


def child(module: str, *arguments: str, alone: bool = False) -> dict[str, Any]:
    """What `python -m benchmarks.MODULE` says: JAX's devices are fixed when it is first used.

    Args:
        module: a benchmark's.
        arguments: of its command line.
        alone: whether it runs in a network of its own, so that nothing of Ray can be reached from outside.
    """
    command = ["-m", f"benchmarks.{module}", *arguments, *(["--tiny"] if TINY else [])]
    return _run(isolated(*command) if alone else [sys.executable, *command], cwd=ROOT)


def isolated(*arguments: Any) -> list[str]:
    """A command of Python in a network of its own, so that nothing of Ray can be reached from outside."""
    own_network = ["unshare", "-n" if os.geteuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    return [*own_network, sys.executable, *map(str, arguments)]


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
    return _run([str(peer_python(name)), str(PEERS / script), *arguments])


def run_beside(name: str, script: str, *arguments: str) -> dict[str, Any]:
    """The same where the peer works in one process with us: it finds coulda, and the packages that we run with."""
    return _run([str(peer_python(name)), str(PEERS / script), *arguments], env=beside())


def beside() -> dict[str, str]:
    """The environment of a peer's process that finds coulda; our packages come before the peer's own of that name."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *site.getsitepackages()])}


def _run(command: list[str], **settings: Any) -> dict[str, Any]:
    # Both sides have large pages of memory, as our own commands do.
    settings["env"] = LARGE_PAGES | settings.get("env", dict(os.environ))
    result = subprocess.run(command, check=False, capture_output=True, text=True, **settings)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def seconds(function: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Seconds of the first call (with compilation), the median of `repeats` warm ones, and the processor's least."""
    times, worked = [], []
    for _ in range(repeats + 1):
        start, begun = time.perf_counter(), time.process_time()
        function()
        times.append(time.perf_counter() - start)
        worked.append(time.process_time() - begun)
    return {"first_call": times[0], "warm": statistics.median(times[1:]), "processor": min(worked[1:])}
