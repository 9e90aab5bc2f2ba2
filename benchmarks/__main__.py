"""`make bench`: every benchmark in turn, or those that are named; results as JSON on standard output."""

import importlib
import json
import sys

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
    "basic_gym",
]


def main() -> None:
    names = sys.argv[1:] or BENCHMARKS
    if unknown := [name for name in names if name not in BENCHMARKS]:
        sys.exit(f"there is no benchmark {unknown}; there are {BENCHMARKS}")
    print(json.dumps({name: importlib.import_module(f"benchmarks.{name}").main() for name in names}, indent=2))


if __name__ == "__main__":
    main()
