"""Writes benchmarks/README.md from the committed results: `python -m benchmarks.readme`."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.__main__ import BENCHMARKS, summary
from benchmarks.harness import ROOT

README = Path(__file__).parent / "README.md"


class Row(NamedTuple):
    """One ratio."""

    what: str
    peer: str
    file: str
    """Under results/."""
    path: tuple[str, ...]
    """Of the ratio in it."""
    wanted: float | None
    limit: str
    """What no implementation could exceed, or what is known of it."""
    command: str


ROWS = [
    Row(
        "linear counterfactuals, 10⁵ rows",
        "DoWhy",
        "benchmarks/counterfactual.json",
        ("dowhy", "linear", "ratio"),
        None,
        "1.6 MB in and out: 0.2 ms at 10 GB/s; ours takes 0.8",
        "counterfactual",
    ),
    Row(
        "the same with curved mechanisms",
        "DoWhy",
        "benchmarks/counterfactual.json",
        ("dowhy", "nonlinear", "ratio"),
        None,
        "10⁵ sines and tangents, some 10 ns each: 2 ms; ours takes 1.9, on two cores",
        "counterfactual",
    ),
    Row(
        "a discrete query, exactly",
        "ChiRho's 10⁵ draws",
        "benchmarks/counterfactual.json",
        ("chirho", "ratio"),
        None,
        "one dispatch of a compiled program, some 0.1 ms",
        "counterfactual",
    ),
    Row(
        "the same query, draw for draw, 10⁵ draws",
        "ChiRho",
        "benchmarks/counterfactual.json",
        ("chirho", "draw_for_draw", "ratio"),
        1.5,
        "7·10⁵ counted random numbers, about 3 ns each: 2 ms",
        "counterfactual",
    ),
    Row(
        "all tabular estimators, 10⁵ episodes from the disk",
        "plain NumPy in memory",
        "benchmarks/evaluation.json",
        ("ratio to numpy",),
        4.0,
        "three passes over 9·10⁵ steps, 30 MB each: 10 ms; ours takes 304",
        "evaluation",
    ),
    Row(
        "importance sampling, 10⁵ episodes from the disk",
        "scope-rl in memory",
        "benchmarks/evaluation.json",
        ("ratio to scope-rl",),
        4.0,
        "the digests of the log's files, at 1–2 GB/s",
        "evaluation",
    ),
    Row(
        "the paper's policy, forward",
        "PyTorch",
        "benchmarks/networks.json",
        ("times_torch", "forward"),
        1.0,
        "1.3 of the matmul peak for a direct convolution; Winograd's method allows 2.25",
        "networks",
    ),
    Row(
        "the same with its gradient",
        "PyTorch",
        "benchmarks/networks.json",
        ("times_torch", "backward"),
        1.0,
        "0.9 of the matmul peak",
        "networks",
    ),
    Row(
        "ELBO with gradient, 4 pairs",
        "PyTorch",
        "benchmarks/elbo.json",
        ("times_torch", "4"),
        1.1,
        "1.7·10⁹ operations a pair, 4/9 of them by Winograd's method: 600 a second at 4.6·10¹¹; ours makes 200",
        "elbo",
    ),
    Row(
        "ELBO with gradient, 32 pairs",
        "PyTorch",
        "benchmarks/elbo.json",
        ("times_torch", "32"),
        1.1,
        "the same; ours makes 253",
        "elbo",
    ),
    Row(
        "one update of IMPALA's learner",
        "PyTorch",
        "benchmarks/learner.json",
        ("learner", "times_torch"),
        1.1,
        "the network's gradient, above",
        "learner",
    ),
    Row(
        "a particle filter, 256 episodes × 20 steps × 1,000",
        "cuthbert",
        "benchmarks/particles.json",
        ("times faster",),
        5.0,
        "5·10⁶ normal numbers, some 15 ns each: 77 ms; ours takes 107",
        "particles",
    ),
    Row(
        "PO-Sokoban, states alone",
        "jumanji",
        "benchmarks/sokoban.json",
        ("speed", "ratios", "state_only_to_jumanji"),
        None,
        "200·10⁶ steps a second were seen on two idle cores; ours makes 194·10⁶",
        "sokoban",
    ),
    Row(
        "with observations and resets",
        "jumanji",
        "benchmarks/sokoban.json",
        ("speed", "ratios", "observation_and_auto_reset_to_jumanji"),
        None,
        "100 random numbers a step, 16·10⁶ steps a second by a counter hash the day before; ours makes 26.5·10⁶",
        "sokoban",
    ),
    Row(
        "counterfactual sepsis, 1,000 episodes × 5, processor time",
        "the published repository's own code",
        "benchmarks/sepsis.json",
        ("published", "their own code", "ratio_of_cpu_seconds"),
        None,
        "1,800 Gumbels an episode, about 10 ns each",
        "sepsis",
    ),
    Row(
        "the same",
        "its arithmetic, repeated in NumPy",
        "benchmarks/sepsis.json",
        ("published", "repeated", "ratio_of_cpu_seconds"),
        None,
        "the same",
        "sepsis",
    ),
    Row(
        "explanations, 500 episodes, every k ≤ 10",
        "the published algorithm, repeated",
        "explanations/benchmark.json",
        ("explanations", "times faster"),
        None,
        "one sort for each row of a table",
        "explanations",
    ),
]


def made() -> str:
    """The whole page."""
    table = ["| what | against | times as fast | wanted | of | physical limit, estimated | again |", "|" + "---|" * 7]
    for row in ROWS:
        found = json.loads((ROOT / "results" / row.file).read_text())
        ratio = float(_at(found, row.path))
        wanted = "" if row.wanted is None else f"{row.wanted:g}"
        behind = ", **behind the peer**" if ratio < 1 else ", missed" if row.wanted and ratio < row.wanted else ""
        date = found["measured"].get("dates", {}).get(row.path[0], found["measured"]["date"])
        cells = row.what, row.peer, f"{_rounded(ratio)}{behind}", wanted, date, row.limit, f"`{row.command}`"
        table.append(f"| {' | '.join(cells)} |")
    every = [f"| `{name}` | {summary(name).replace('|', '/')} |" for name in BENCHMARKS]
    return TEXT.format(table="\n".join(table), benchmarks="\n".join(every))


def _at(found: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        found = found[name]
    return found


def _rounded(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}"


TEXT = """# Benchmarks

<!-- Written by `python -m benchmarks.readme` from results/*.json; a test holds it against them. -->

Ratios against peers, each in an environment of its own, on one machine in one run, compile time apart. Above 1 we are
faster. What is wanted and missed is called so.

{table}

Two cores, no accelerator; some were measured while others worked on the machine too, so that ratios are to be read and
not seconds. Processors differ from day to day: on that of 2026-11-18 PyTorch is 2.5 times as fast as on that of
2026-11-16, and our gradients were 1.4 times. Both sides have large pages of memory since 2026-11-19. Start-up has no
peer: `startup` has its seconds, and `results/benchmarks/startup.json` what they were.

## To run them again

    python -m benchmarks --list            # what there is
    python -m benchmarks                   # all but `amortized` (hours); peers are installed when first needed
    python -m benchmarks networks elbo     # some
    python -m benchmarks --write networks  # also into results/benchmarks/networks.json, with the date
    python -m benchmarks --tiny            # show in seconds that they run; the numbers mean nothing
    python -m benchmarks.readme            # this page

| benchmark | |
|---|---|
{benchmarks}

By their own names: `benchmarks.faults` (`make faults`), `benchmarks.scaling`, `benchmarks.sepsis_agreement` and
`benchmarks.sokoban_levels`.
"""

if __name__ == "__main__":
    README.write_text(made())
