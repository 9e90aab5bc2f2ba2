"""Writes docs/results.md: `results.md.jinja` with every number from results/*.json.

    python docs/make_results.py     # or `make results`

The template holds the words. Tables, and the numbers in sentences, are asked for there by the names of the functions
below, so that neither can say anything else than the files do.
"""

import json
from collections.abc import Iterable
from decimal import Decimal
from math import hypot
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from coulda.storage import replace_file

ROOT = Path(__file__).parents[1]
TEMPLATE, PAGE = ROOT / "docs" / "results.md.jinja", ROOT / "docs" / "results.md"


def page(results: Path = ROOT / "results") -> str:
    """The whole page, from the files under `results`."""
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
    environment.globals |= Tables(results).functions
    environment.filters |= {"two": two, "fixed": fixed, "percent": percent}
    return environment.from_string(TEMPLATE.read_text()).render()


class Tables:
    """What the template may ask for; files are named below `results`."""

    def __init__(self, results: Path):
        self.results = results
        asked = ("read", "file", "errors", "error", "worse", "finals", "final", "mismatch", "models", "sepsis", "speed")
        self.functions = {name: getattr(self, name) for name in asked}

    def read(self, name: str) -> Any:
        """A file's numbers."""
        return json.loads((self.results / name).read_text())

    def file(self, name: str) -> str:
        """A link to it."""
        return f"[{name}](../results/{name})"

    def errors(self, name: str) -> str:
        """Relative errors: a row a policy, a column a t, then importance sampling; last what the diagnostics say."""
        found = self.read(name)
        steps = _steps(found)
        names = {0: "t = 0 (MB-PE)", steps[-1]: f"{steps[-1]} (CF-PE)"}
        head = ["policy", "truth", *(names.get(t, str(t)) for t in steps), "IS", "its effective episodes"]
        rows = []
        for truth in found["truth"]:
            mine = _rows(found, truth["policy"])
            *some, last = (two(mine[t]["relative error"]) for t in steps)
            last = f"**{last}** {between(map(two, mine[steps[-1]]['error interval']))}"
            size = fixed(mine["IS"]["effective sample size"], 0)
            error = f"{two(mine['IS']['relative error'])} {between(map(two, mine['IS']['error interval']))}"
            rows.append([truth["policy"], fixed(truth["value"], 2), *some, last, error, size])
        said = lambda t: " / ".join(dict.fromkeys(_rows(found, p)[t]["verdict"] for p in _policies(found)))
        return block([name], table(head, [*rows, ["verdict", "", *(said(t) for t in (*steps, "IS")), ""]]))

    def error(self, name: str, t: int | str) -> str:
        """The smallest and the largest relative error of the policies at t (-1: the last), or of "IS"."""
        found = self.read(name)
        t = _steps(found)[-1] if t == -1 else t
        return span(two(x) for x in sorted(_rows(found, p)[t]["relative error"] for p in _policies(found)))

    def worse(self, name: str) -> str:
        """How many times larger the error is without hindsight than with all of it, over policies."""
        found = self.read(name)
        first, last = (_steps(found)[i] for i in (0, -1))
        error = lambda policy, t: _rows(found, policy)[t]["relative error"]
        times = sorted(error(p, first) / error(p, last) for p in _policies(found))
        return span((fixed(x, 0) for x in times), " to ")

    def finals(self, name: str, measure: str, names: dict[str, str] | None = None) -> str:
        """A row a setting of a search: the mean of a measure over seeds with its interval, and every seed's."""
        found = self.read(name)["final"]
        head = ["setting", MEASURES[measure], "each seed"]
        rows = [[(names or {}).get(key, key), _mean(row[measure]), _each(row[measure])] for key, row in found.items()]
        return block([name], table(head, rows))

    def final(self, name: str, setting: str, measure: str = "solved") -> str:
        """The mean of one setting with its interval."""
        return _mean(self.read(name)["final"][setting][measure])

    def mismatch(self, *names: str) -> str:
        """KL(averaged prior ‖ averaged posterior) in nats, a row a world."""
        rows = []
        for name in names:
            found = self.read(name)
            nats = [row["divergence"] for row in found["t"].values()]
            world = found["preset"]["ingredients"]["world"].replace("x", "×")
            rows.append([world, *(two(x) for x in nats), fixed(nats[0] / nats[-1], 0)])
        return block(names, table(["world", "t = 0", "1", "T", "t = 0 over T"], rows))

    def models(self, *names: str) -> str:
        """What scenario models draw from nothing, one observation and whole episodes: three rows a world."""
        measures = ("tiles wrong", "exact", "well-formed", "solvable")
        rows = []
        for name in names:
            found = self.read(name)
            world = found["preset"]["ingredients"]["world"].replace("x", "×")
            every = found["scenario model"]
            for row in (every[0], every[1], every[-1]):
                numbers = (two(row["elbo"]), *(fixed(row[measure], 2) for measure in measures))
                rows.append([world, str(row["t"]), *numbers])
        return block(names, table(["world", "t", "ELBO, nats", *measures], rows))

    def sepsis(self, name: str) -> str:
        """Published means and ranges beside ours."""
        found = self.read(name)
        rows = []
        for key, (mean, low, high) in found["published"].items():
            ours, least, largest, error = found["ours"][key]
            # The standard error of their mean over 100 data sets is known from their range only.
            z = (ours - mean) / hypot(error, (high - low) / 3.92 / 10)
            cells = (
                f"{fixed(m, 2)} {between((fixed(a, 2), fixed(b, 2)))}"
                for m, a, b in ((mean, low, high), (ours, least, largest))
            )
            rows.append([key, *cells, fixed(z, 1)])
        return block([name], table(["", "published", "here", "z"], rows))

    def speed(self) -> str:
        """Our speed over a peer's, a row a job."""
        names = [f"benchmarks/{name}.json" for name in ("evaluation", "networks", "elbo", "learner")]
        evaluation, networks, elbo, learner = (self.read(name) for name in names)
        torch = lambda measured, part: (measured["times_torch"][part], "PyTorch")
        rows = {
            "all tabular estimators, 100,000 episodes from the disk": (evaluation["ratio to numpy"], "NumPy"),
            "importance sampling from the disk, four estimators": (evaluation["ratio to scope-rl"], "scope-rl"),
            "the paper's policy, forward": torch(networks, "forward"),
            "the same with its gradient": torch(networks, "backward"),
            "the paper's scenario model, ELBO and gradient, 4 pairs a batch": torch(elbo, "4"),
            "the same, 32 pairs a batch": torch(elbo, "32"),
            "one update of IMPALA's learner": (learner["learner"]["times_torch"], "PyTorch"),
        }
        head = ["job", "times as fast", "as"]
        return block(names, table(head, [[job, fixed(ratio, 2), peer] for job, (ratio, peer) in rows.items()]))


MEASURES = {"solved": "levels solved, mean and 95% interval", "return": "return, mean and 95% interval"}


def block(names: Iterable[str], text: str) -> str:
    """A table, and where it comes from, for who reads the source."""
    sources = ", ".join(f"results/{name}" for name in names)
    return f"<!-- made from {sources} -->\n\n{text}\n\n<!-- end -->"


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def two(x: float) -> str:
    """Two significant digits."""
    return f"{Decimal(f'{x:.1e}'):f}".replace("-", "−")


def fixed(x: float, digits: int) -> str:
    """So many digits after the point."""
    return f"{x:,.{digits}f}".replace("-", "−")


def percent(x: float) -> str:
    """A share."""
    return f"{x:.0%}"


def between(limits: Iterable[str]) -> str:
    """An interval."""
    return f"[{', '.join(limits)}]"


def span(texts: Iterable[str], dash: str = "–") -> str:
    """The first and the last."""
    first, *_, last = texts
    return first if first == last else f"{first}{dash}{last}"


def _steps(found: dict[str, Any]) -> list[int]:
    return sorted({row["t"] for row in found["over seeds"] if row["t"] is not None})


def _policies(found: dict[str, Any]) -> list[str]:
    return [row["policy"] for row in found["truth"]]


def _rows(found: dict[str, Any], policy: str) -> dict[int | str, dict[str, Any]]:
    """The policy's estimates by t, and by method where there is none."""
    mine = (row for row in found["over seeds"] if row["policy"] == policy)
    return {row["method"] if row["t"] is None else row["t"]: row for row in mine}


def _mean(row: dict[str, Any]) -> str:
    interval = f" {between(fixed(row[end], 3) for end in ('low', 'high'))}" if "low" in row else ""
    return fixed(row["mean"], 3) + interval


def _each(row: dict[str, Any]) -> str:
    return ", ".join(fixed(x, 3) for x in row["seeds"])


if __name__ == "__main__":
    replace_file(PAGE, page().encode())
