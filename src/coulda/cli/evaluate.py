"""`coulda evaluate LOG --model … --policy …`: one table of what policies would have been worth, and what to believe."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from coulda.cli.executors import ExecutorName, open_executor
from coulda.episodes import Columns, read_any
from coulda.errors import CouldaError
from coulda.evaluation import Comparison, Estimate, compare
from coulda.evaluation.comparison import model_sources
from coulda.evaluation.drawing import draw_errors, draw_estimates
from coulda.evaluation.on_scenarios import chunk_work
from coulda.executors import Executor, Work, WorkSpec
from coulda.hindsight import Exact, ScenarioSource
from coulda.naming import anywhere, load, named
from coulda.pomdp import POMDP, FinitePOMDP, LinearGaussianPOMDP, Policy
from coulda.progress import bar
from coulda.report import Explorer, Report, explore, provenance, save_report, summarize, tabulate
from coulda.report.page import check_place
from coulda.storage import replace_file

STYLES = {"trust": "green", "caution": "yellow", "do not trust": "red"}


@dataclass(frozen=True)
class Evaluate:
    """Evaluate policies on a log: model-free, model-based and counterfactual.

    Models, policies and sources are named `module:name` or `file.py:name`: an object, or a function that makes it.
    """

    log: Annotated[Path, tyro.conf.Positional]
    """The log, in any format; see `coulda episodes`."""
    policy: Annotated[list[str], tyro.conf.UseAppendAction]
    """A policy to evaluate; may be given several times."""
    model: str | None = None
    """The model, for MB-PE and CF-PE; without it the table is model-free."""
    scenarios: str | None = None
    """A source of scenarios, a function of the model; by default the exact posterior, where one is known."""
    steps: tuple[int, ...] = ()
    """Values of t for CF-PE(t); the whole episode by default."""
    num_scenarios: int = 1
    """Scenarios an episode."""
    environment: str | None = None
    """Where policies may be run, for the truth."""
    level: float = 0.95
    """Of the intervals."""
    seed: int = 0
    """The same seed gives the same table."""
    out: Path | None = None
    """A folder for the table as JSON, for figures, and for the report that `coulda report` makes a page of."""
    explored: int = 60
    """How many episodes the report's explorer has."""
    threshold: float | None = None
    """The return from which the explorer calls an episode won; the mean of those explored by default."""
    executor: ExecutorName = "in-process"
    """Who works on MB-PE and CF-PE; the table is the same."""
    workers: int = 2
    """How many there are, elsewhere than in this process."""
    address: str | None = None
    """Of a Ray cluster; by default one is started here. Its nodes must see the log and the files that are named."""
    columns: Columns = field(default_factory=Columns)
    """Of a log that is a table."""

    def run(self) -> None:
        """Print the table; write it where asked."""
        console = Console()
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
            check_place(self.out)
        log = read_any(self.log, self.columns)
        model = None if self.model is None else load(self.model, POMDP)
        environment = None if self.environment is None else load(self.environment, POMDP)
        policies, source = load_policies(self.policy), _source(self.scenarios, model)
        # Episodes are counted where scenarios are drawn for them, which takes long; model-free estimators do not.
        total = None if model is None else len(log)
        with self._open() as executor, bar(f"evaluating on {len(log):,} episodes", total) as advance:
            comparison = compare(
                jax.random.key(self.seed),
                model,
                policies,
                log,
                source,
                steps=self.steps,
                environment=environment,
                level=self.level,
                num_scenarios=self.num_scenarios,
                executor=executor,
                advance=advance,
            )
        console.print(table(comparison))
        for name, estimate in comparison.rows():
            if estimate.verdict != "trust":
                style = STYLES[estimate.verdict]
                console.print(f"[{style}]{name}, {estimate.method}: {estimate.verdict}.[/] {estimate.reasons}")
        if self.out is not None:
            self._write(comparison)
            explorer = None
            if model is not None and source is not None:
                key = jax.random.fold_in(jax.random.key(self.seed), 1)
                first = next(iter(log.batches(self.explored)))
                explorer = explore(key, model, first, source, policies, threshold=self.threshold)
            save_report(self.out, self._report(comparison, explorer))
            console.print(f"`coulda report {self.out}` makes a page of it.", highlight=False, soft_wrap=True)

    def _report(self, comparison: Comparison, explorer: Explorer | None) -> Report:
        found = tabulate(comparison)
        # By the last part of their paths, which differ between machines.
        names = {"log": self.log, "model": self.model, "scenarios": self.scenarios, "environment": self.environment}
        config = {key: Path(value).name for key, value in names.items() if value is not None}
        config |= {"steps": list(self.steps), "num_scenarios": self.num_scenarios}
        title = f"What {' and '.join(comparison.estimates)} would have been worth"
        facts = provenance({"evaluate": self.seed}, config)
        return Report(title, summarize(found), found, explorer, provenance=facts)

    def _open(self) -> AbstractContextManager[Executor | None]:
        """Who works elsewhere; None where this process does."""
        if self.executor == "in-process" and self.address is None:
            return nullcontext()
        if self.model is None:
            raise CouldaError(f"--executor {self.executor} works on what rests on a model; add --model.")
        settings = {
            "log": str(self.log.resolve()),
            "columns": asdict(self.columns),
            "policies": [anywhere(name) for name in self.policy],
            "model": anywhere(self.model),
            "scenarios": None if self.scenarios is None else anywhere(self.scenarios),
            "steps": self.steps,
            "num_scenarios": self.num_scenarios,
        }
        return open_executor(
            self.executor, WorkSpec("coulda.cli.evaluate:pieces", settings), self.workers, self.address
        )

    def _write(self, comparison: Comparison) -> None:
        assert self.out is not None
        replace_file(self.out / "table.json", (json.dumps(as_json(comparison), indent=1) + "\n").encode())
        draw_estimates(comparison, self.out / "estimates.png")
        if comparison.truth and self.model is not None:
            draw_errors(comparison, self.out / "errors.png")


COMMANDS = Evaluate


def pieces(
    log: str,
    columns: dict[str, Any],
    policies: list[str],
    model: str,
    scenarios: str | None,
    steps: list[int],
    num_scenarios: int,
) -> Work:
    """The recipe for workers: what `Evaluate` does for one piece of the log."""
    built = load(model, POMDP)
    sources = model_sources(built, _source(scenarios, built), steps)
    episodes = read_any(Path(log), Columns(**columns))
    return chunk_work(built, load_policies(policies), episodes, sources, num_scenarios)


def table(comparison: Comparison) -> Table:
    """The comparison for the terminal."""
    shown = Table("policy", "method", "value", "interval", "effective episodes", "verdict", title="expected return")
    for name, estimate in comparison.rows():
        value = estimate.status if estimate.value is None else f"{estimate.value:.4f}"
        limits = estimate.interval
        interval = "" if limits is None else f"[{limits.low:.4f}, {limits.high:.4f}] {limits.kind}"
        verdict = f"[{STYLES[estimate.verdict]}]{estimate.verdict}[/]"
        interval = interval.replace("[", r"\[", 1)
        shown.add_row(name, estimate.method, value, interval, f"{estimate.effective_sample_size:,.1f}", verdict)
    return shown


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything but the terms, in plain types; numbers that are not finite as null."""
    policies = {
        name: {method: _estimate_json(estimate, comparison.error(name, method)) for method, estimate in methods.items()}
        for name, methods in comparison.estimates.items()
    }
    return {
        "policies": policies,
        "truth": comparison.truth,
        "logged": {"episodes": len(comparison.logged_returns), "mean": float(comparison.logged_returns.mean())},
    }


def _estimate_json(estimate: Estimate, error: float | None) -> dict[str, Any]:
    limits = estimate.interval
    return {
        "value": estimate.value,
        "interval": None if limits is None else [_finite(limits.low), _finite(limits.high)],
        "interval kind": None if limits is None else limits.kind,
        "effective sample size": estimate.effective_sample_size,
        "status": estimate.status,
        "explanation": estimate.explanation,
        "verdict": estimate.verdict,
        "relative error": error,
        "diagnostics": [
            {"name": d.name, "value": _finite(d.value), "verdict": d.verdict, "sentence": d.sentence}
            for d in estimate.diagnostics
        ],
        "details": estimate.details,
    }


def _finite(value: float) -> float | None:
    return float(value) if abs(value) < float("inf") else None


def load_policies(names: Sequence[str]) -> dict[str, Policy]:
    """Policies by the last part of their names."""
    return {name.rpartition(":")[2]: load(name, Policy) for name in names}


def _source(name: str | None, model: POMDP | None) -> ScenarioSource | None:
    if model is None:
        return None
    if name is not None:
        return named(name)(model)
    return Exact(model) if isinstance(model, FinitePOMDP | LinearGaussianPOMDP) else None
