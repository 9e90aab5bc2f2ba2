"""How often is "trust" right? Every estimator is asked about random worlds whose answer is known.

`python -m coulda.studies.trust --generator B --worlds 300` writes a line for each world to `results/trust/B.jsonl`, and
then the summary `B.json`, the table `B.md` and the figure `B.svg`. Worlds that have a line are not run again, so that
it can be stopped at any time; delete the file after a change of an estimator. Thresholds may be tuned on the worlds of
A; the numbers that are published are B's with seed 3, since the tests look at seed 0, and seeds 1 and 2 led to changes.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import msgspec
import tyro
from scipy import stats

from coulda.drawing import as_svg, new_figure
from coulda.episodes import EpisodeLog
from coulda.errors import CouldaError
from coulda.evaluation import FittedQ, Method, OnScenarios, compare, model_free
from coulda.evaluation.drawing import COLORS
from coulda.evaluation.estimate import VERDICTS, finite
from coulda.hindsight import Prior
from coulda.progress import bar
from coulda.storage import replace_file, replace_json
from coulda.studies import trust_held_out, trust_tuning
from coulda.studies.trust_worlds import Case, make_log, truth_of

GENERATORS: dict[str, Callable[[int, int], Case]] = {"A": trust_tuning.case, "B": trust_held_out.case}
COVERAGE, FAR_OFF, USEFUL = 0.92, 0.01, 0.5
"""The bar: at least this share of trusted 95 % intervals hold the truth, at most this share of trusted answers is off
by more than two half-widths, and at least this share of the right answers is trusted."""
ORDER = ("IS", "WIS", "PDIS", "WPDIS", "CIS", "DR", "WDR", "FQE", "CF-PE", "MB-PE")
EVERY = "all"
MANY_MAPS = 30_000
"""Of memory, one or more a compiled program; the kernel allows 65,530 a process."""


class Answer(msgspec.Struct, frozen=True):
    """What one estimator said of one world."""

    method: str
    value: float | None
    low: float | None
    high: float | None
    status: str
    verdict: str
    warned: tuple[str, ...]
    """The diagnostics that did not say "trust"."""


class World(msgspec.Struct, frozen=True):
    """A line of the file: a case, its truth, and all answers."""

    generator: str
    seed: int
    index: int
    kind: dict[str, Any]
    truth: float
    truth_error: float
    answers: tuple[Answer, ...]
    refused: str
    """Why `compare` refused the whole question, or nothing."""
    seconds: float


@dataclass(frozen=True)
class Trust:
    """How often the verdicts are right."""

    generator: Literal["A", "B"] = "A"
    """A is for tuning; B is held out."""
    worlds: int = 300
    """How many."""
    seed: int = 0
    """Of the worlds, their logs and the answers."""
    out: Path = Path("results/trust")
    """Where the lines, the summary and the figure go."""

    def run(self) -> dict[str, Any]:
        """Ask, write and return the summary; what was asked before is not asked again."""
        self.out.mkdir(parents=True, exist_ok=True)
        lines = self.out / f"{self.generator}.jsonl"
        worlds = {world.index: world for world in read_worlds(lines) if world.seed == self.seed}
        missing = sorted(set(range(self.worlds)) - set(worlds), key=self.shape)
        with bar(f"worlds of generator {self.generator}", len(missing)) as advance:
            for index in missing:
                worlds[index] = ask(self.generator, self.seed, index)
                write_worlds(lines, [worlds[number] for number in sorted(worlds)])
                advance(1)
        return self.summarize([worlds[index] for index in range(self.worlds)])

    def shape(self, index: int) -> str:
        """Worlds of the same one share compiled programs, and are asked one after the other."""
        case = GENERATORS[self.generator](self.seed, index)
        space = case.environment.action_space
        return f"{type(case.environment).__name__} {case.horizon} {case.episodes} {space} {case.hindsight}"

    def summarize(self, worlds: Sequence[World]) -> dict[str, Any]:
        """The tables and the figure of these worlds."""
        found = {"generator": self.generator, "seed": self.seed} | summary(worlds)
        replace_json(self.out / f"{self.generator}.json", found)
        replace_file(self.out / f"{self.generator}.md", table(found).encode())
        replace_file(self.out / f"{self.generator}.svg", draw(found).encode())
        return found


def ask(generator: str, seed: int, index: int) -> World:
    """Make one world and its log, and ask every estimator that applies."""
    _keep_few_programs()
    start, case = time.perf_counter(), GENERATORS[generator](seed, index)
    key = jax.random.fold_in(jax.random.key(seed), 2 * index + (generator == "B"))
    key_log, key_truth, key_table = jax.random.split(key, 3)
    truth, error = truth_of(key_truth, case)
    log, answers, refused = make_log(key_log, case), (), ""
    try:
        answers = answers_to(key_table, log, case)
    except CouldaError as refusal:
        refused = str(refusal)
    seconds = round(time.perf_counter() - start, 2)
    return World(generator, seed, index, case.kind, truth, error, answers, refused, seconds)


def answers_to(key: jax.Array, log: EpisodeLog, case: Case) -> tuple[Answer, ...]:
    """One table of all methods."""
    methods: list[Method] = [
        replace(method, resamples=100) if isinstance(method, FittedQ) else method for method in model_free(log)
    ]
    if case.model is not None:
        methods.append(OnScenarios(case.model, Prior(case.model) if case.source is None else case.source))
    rows = compare(key, log, {"target": case.target}, methods).estimates["target"].values()
    return tuple(
        Answer(
            row.method.split("(")[0],
            row.value,
            None if row.interval is None else finite(row.interval.low),
            None if row.interval is None else finite(row.interval.high),
            row.status,
            row.verdict,
            tuple(d.name for d in row.diagnostics if d.verdict != "trust"),
        )
        for row in rows
    )


def _keep_few_programs() -> None:
    """Forget compiled programs before the kernel's limit of memory maps is reached, where XLA crashes."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


def read_worlds(path: Path) -> list[World]:
    """The lines of a file; none where there is no file."""
    return [msgspec.json.decode(line, type=World) for line in path.read_bytes().splitlines()] if path.exists() else []


def write_worlds(path: Path, worlds: Sequence[World]) -> None:
    """A line a world; the file is whole at any time."""
    replace_file(path, b"".join(msgspec.json.encode(world) + b"\n" for world in worlds))


@dataclass(frozen=True)
class Judged:
    """An answer held against the truth."""

    world: World
    answer: Answer

    @property
    def trusted(self) -> bool:
        """What the user is told."""
        return self.answer.verdict == "trust"

    @property
    def made(self) -> bool:
        """Whether there is an answer with an interval to judge."""
        return None not in (self.answer.value, self.answer.low, self.answer.high)

    @property
    def error(self) -> float:
        """|value - truth|; what float32 cannot tell apart is no error."""
        assert self.answer.value is not None
        error = abs(self.answer.value - self.world.truth)
        return error if error > 1e-5 * (1 + abs(self.world.truth)) else 0.0

    @property
    def half_width(self) -> float:
        """Of the interval."""
        assert self.answer.low is not None
        assert self.answer.high is not None
        return (self.answer.high - self.answer.low) / 2

    @property
    def right(self) -> bool:
        """Whether the interval holds the truth."""
        assert self.answer.low is not None
        assert self.answer.high is not None
        return self.error == 0 or self.answer.low <= self.world.truth <= self.answer.high

    @property
    def off(self) -> float:
        """The error in half-widths: more than 1 is outside of a symmetric interval, 1.53 are three standard errors."""
        return self.error / self.half_width if self.half_width > 0 else (float("inf") if self.error > 0 else 0.0)


THREE_ERRORS = 3 / float(stats.norm.ppf(0.975))


def summary(worlds: Sequence[World]) -> dict[str, Any]:
    """For each estimator: verdicts, coverage given each, and how often trust was misplaced; and the bar."""
    judged = [Judged(world, answer) for world in worlds for answer in world.answers]
    names = [name for name in ORDER if any(one.answer.method == name for one in judged)]
    rows = {name: summary_of([one for one in judged if one.answer.method == name]) for name in names}
    rows[EVERY] = summary_of(judged)
    coverage = {name: row["coverage"]["trust"]["share"] for name, row in rows.items()}
    return {
        "worlds": len(worlds),
        "refused": sum(bool(world.refused) for world in worlds),
        "seconds a world": round(sum(world.seconds for world in worlds) / max(len(worlds), 1), 2),
        "estimators": rows,
        "bar": {
            "coverage given trust": {name: share is None or share >= COVERAGE for name, share in coverage.items()},
            "far off and trusted": (rows[EVERY]["trusted and off by two half-widths"]["share"] or 0.0) <= FAR_OFF,
            "right and trusted": (rows[EVERY]["right that are trusted"]["share"] or 0.0) >= USEFUL,
        },
        "wrong and trusted": wrong_and_trusted(judged),
    }


def summary_of(judged: Sequence[Judged]) -> dict[str, Any]:
    """Of one estimator."""
    made = [one for one in judged if one.made]
    trusted = [one for one in made if one.trusted]
    verdicts, statuses = (Counter(getattr(one.answer, name) for one in judged) for name in ("verdict", "status"))
    by_verdict = {verdict: [one.right for one in made if one.answer.verdict == verdict] for verdict in VERDICTS}
    return {
        "answers": len(judged),
        "verdicts": {verdict: verdicts[verdict] / max(len(judged), 1) for verdict in VERDICTS},
        "statuses": dict(sorted(statuses.items())),
        "coverage": {verdict: share(right) for verdict, right in by_verdict.items()},
        "off by three standard errors and trusted": share([one.trusted and one.off > THREE_ERRORS for one in made]),
        "trusted and off by three standard errors": share([one.off > THREE_ERRORS for one in trusted]),
        "trusted and off by two half-widths": share([one.off > 2 for one in trusted]),
        "right that are trusted": share([one.trusted for one in made if one.right]),
    }


def share(flags: Sequence[bool]) -> dict[str, Any]:
    """How many of how many, with a 95 % interval (Clopper and Pearson's); None where there are none."""
    if not flags:
        return {"share": None, "of": 0, "low": None, "high": None}
    found = stats.binomtest(sum(flags), len(flags)).proportion_ci(0.95)
    return {"share": sum(flags) / len(flags), "of": len(flags), "low": float(found.low), "high": float(found.high)}


def wrong_and_trusted(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Answers that are trusted and off by more than three standard errors, the worst first."""
    wrong = [one for one in judged if one.made and one.trusted and one.off > THREE_ERRORS]
    return [
        {
            "world": one.world.index,
            "method": one.answer.method,
            "value": one.answer.value,
            "interval": [one.answer.low, one.answer.high],
            "truth": one.world.truth,
            "half-widths": finite(one.off),
            "kind": one.world.kind,
        }
        for one in sorted(wrong, key=lambda one: -one.off)
    ]


def table(found: dict[str, Any]) -> str:
    """The summary as a table in Markdown, a row an estimator."""
    head = ["estimator", "answers", *VERDICTS, *(f"holds the truth, given {verdict}" for verdict in VERDICTS)]
    head += ["trusted, off by > 3 standard errors", "trusted, off by > 2 half-widths", "right ones that are trusted"]
    rows = [
        [
            name,
            str(row["answers"]),
            *(f"{row['verdicts'][verdict]:.0%}" for verdict in VERDICTS),
            *(_percent(row["coverage"][verdict]) for verdict in VERDICTS),
            _percent(row["trusted and off by three standard errors"]),
            _percent(row["trusted and off by two half-widths"]),
            _percent(row["right that are trusted"]),
        ]
        for name, row in found["estimators"].items()
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _percent(found: dict[str, Any]) -> str:
    """Such as "94.1 % of 170", or a dash where there are none."""
    return f"{100 * found['share']:.1f} % of {found['of']}" if found["of"] else "–"


def draw(found: dict[str, Any]) -> str:
    """The figure of a summary: shares of verdicts, and coverage given trust against the bar, as SVG."""
    rows = found["estimators"]
    figure = new_figure(9, 1.2 + 0.33 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows.values()):
        start = 0.0
        for verdict in VERDICTS:
            width = row["verdicts"][verdict]
            label = verdict if place == 0 else None
            left.barh(place, width, left=start, color=COLORS[verdict], height=0.7, label=label)
            start += width
        held = row["coverage"]["trust"]
        if held["of"]:
            right.plot([held["low"], held["high"]], [place, place], color=COLORS["trust"], linewidth=2)
            right.plot(held["share"], place, "o", color=COLORS["trust"])
    left.set(xlabel="share of the answers", xlim=(0, 1), yticks=range(len(rows)), yticklabels=list(rows))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    right.axvline(COVERAGE, color="black", linestyle=":", label=f"the bar, {COVERAGE:.0%}")
    right.set(xlabel="95 % intervals that hold the truth, given trust", xlim=(0.5, 1.01))
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    left.invert_yaxis()
    return as_svg(figure)


if __name__ == "__main__":
    print(json.dumps(tyro.cli(Trust).run(), indent=1))  # noqa: T201
