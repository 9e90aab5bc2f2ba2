"""`make bench`: the benchmarks in turn, or those that are named; results as JSON on standard output.

One that fails does not lose what the others found: it is named at the end, and the command fails.

Peers are installed into `.cache/peers` when they are first needed, each into an environment of its own.
"""

import argparse
import ast
import datetime
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, TINY

BENCHMARKS = [
    "counterfactual",
    "sepsis",
    "sokoban",
    "evaluation",
    "networks",
    "elbo",
    "learner",
    "search",
    "explanations",
    "particles",
    "amortized",
    "policies",
    "gym",
    "hidden_fits",
    "fitting",
    "scope_rl",
    "accelerators",
    "startup",
]
HOURS = ["amortized"]
"""Those that take hours, and are run when they are named."""
RESULTS = ROOT / "results" / "benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"benchmarks to run; all but {', '.join(HOURS)}, which takes hours, by default",
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    parser.add_argument("--tiny", action="store_true", help="show in seconds that they run; the numbers mean nothing")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.relative_to(ROOT)}/NAME.json")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown}; there are {BENCHMARKS}")
    if asked.write and TINY:
        parser.error("--tiny shows that benchmarks run, and its numbers are not to be kept: leave out --write")
    if asked.list:
        print("\n".join(f"{name:16}{summary(name)}" for name in BENCHMARKS))
        return
    found, failed = each(
        asked.names or [name for name in BENCHMARKS if name not in HOURS], partial(run, write=asked.write)
    )
    print(json.dumps(found, indent=2))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def each(names: list[str], run: Callable[[str], Any]) -> tuple[dict[str, Any], list[str]]:
    """What each of them found, and the names of those that failed; on the way it says where it is, and why they did."""
    found, failed = {}, []
    for number, name in enumerate(names, 1):
        start = time.perf_counter()
        print(f"{number} of {len(names)}: {name} …", file=sys.stderr, flush=True)
        try:
            found[name] = run(name)
        except Exception:  # a peer's installation, a peer, or ours: the others go on
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return found, failed


def summary(name: str) -> str:
    """The first line of a benchmark's docstring, read without importing it."""
    text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text())) or ""
    return text.splitlines()[0]


def run(name: str, write: bool) -> dict[str, Any]:
    """What a benchmark found, and under what circumstances."""
    when = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "load before": os.getloadavg()[0]}
    found = importlib.import_module(f"benchmarks.{name}").main()
    found = {"measured": {**when, "cores": os.cpu_count(), "command": f"python -m benchmarks {name}"}, **found}
    if write:
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
