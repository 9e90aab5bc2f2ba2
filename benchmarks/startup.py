"""What users wait for first: `coulda --help`, `import coulda`, and the first table of `coulda evaluate`, cold and warm.

Seconds of the processor, all threads together, the least of several runs; Python's bytecode is there. Cold, nothing is
compiled yet; warm, all that was compiled is in the cache folder. The log has 1,000 episodes of the tiger problem.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import sized

EPISODES, REPEATS = sized((1000, 3), (20, 1))
WORLD = f"""
import jax
from coulda.environments import tiger
from coulda.episodes import collect, write_log
from coulda.policies import TabularPolicy, UniformPolicy

model = tiger(horizon=3, reparameterization="gumbel_max")
bold = TabularPolicy([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]])
if __name__ == "__main__":
    write_log("log", collect(jax.random.key(1), model, UniformPolicy(3), {EPISODES}))
"""
EVALUATE = ("-m", "coulda", "evaluate", "log", "--model", "world.py:model", "--policy", "world.py:bold")


def main() -> dict[str, Any]:
    """Processor seconds of each, ratios, and how many programs a second table compiled."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "world.py").write_text(WORLD)
        seconds(folder, "world.py")
        seconds(folder, *EVALUATE)  # for the bytecode
        programs = {
            "python": ("-c", "pass"),
            "coulda --help": ("-m", "coulda", "--help"),
            "coulda --version": ("-m", "coulda", "--version"),
            "import jax": ("-c", "import jax"),
            "import coulda": ("-c", "import coulda"),
            "all that coulda offers at its top": ("-c", "from coulda import *"),
        }
        found = {name: min(seconds(folder, *program) for _ in range(REPEATS)) for name, program in programs.items()}
        cold = seconds(folder, *EVALUATE, cache="fresh")
        kept = len(list((folder / "fresh").glob("*-cache")))
        warm = min(seconds(folder, *EVALUATE, cache="fresh") for _ in range(REPEATS))
        compiled = len(list((folder / "fresh").glob("*-cache"))) - kept
    return {
        "processor seconds": found | {"first table, cold": cold, "first table, warm": warm},
        "import coulda / import jax": found["import coulda"] / found["import jax"],
        "programs": {"compiled by the first table": kept, "compiled by the second": compiled},
    }


def seconds(folder: Path, *arguments: str, cache: str = "other") -> float:
    """Processor seconds of a Python of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "COULDA_CACHE": str(folder / cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
