"""The whole story on PO-Sokoban, in minutes: log, infer, evaluate, improve, look.

Episodes of a random policy are logged. A scenario model learns to infer the level that an episode was played in. Then:
how good would three other policies have been in those very episodes, by importance sampling, by the model alone, and
counterfactually? And which policy does search find on inferred scenarios, against imagined ones?
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table as ScreenTable

from coulda.episodes import EpisodeLog, StoredLog
from coulda.evaluation import Comparison, ImportanceSampling, OnPolicy, OnScenarios, compare
from coulda.experiments import policy_search
from coulda.experiments.pipeline import Ingredients, Pipeline
from coulda.experiments.policy_evaluation import FEWER_PARTS, draw_errors, noisy
from coulda.experiments.policy_search import SearchPreset, Setting
from coulda.hindsight.learned import Learned
from coulda.pomdp import Policy
from coulda.recipes import SMALLEST_POLICY, PolicyRecipe, ScenarioNetwork, ScenarioRecipe
from coulda.report import Figure, Report, explore, provenance, save_report, summarize, tabulate, write_report
from coulda.stages import Stages

SOLVED = 11.0
"""The return of a solved level with one box: +1 for the box, +10 for the level."""


@dataclass(frozen=True)
class StoryPreset:
    """Sizes of everything."""

    ingredients: Ingredients = field(
        default_factory=lambda: Ingredients(
            "7x7",
            PolicyRecipe(updates=800, levels=30_000),
            ScenarioRecipe(updates=500, levels=30_000),
            logged=1000,
            truth=4000,
            evaluation_levels=0,
        )
    )
    parts_of_t: tuple[float, ...] = FEWER_PARTS
    noise: tuple[float, ...] = (0.0, 0.5, 0.8)
    search_updates: int = 100
    shown: int = 40
    """Episodes in the explorer."""
    samples: int = 12
    """Posterior draws of each."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Values of t."""
        return tuple(round(part * self.ingredients.sokoban.horizon) for part in self.parts_of_t)

    @property
    def search(self) -> SearchPreset:
        """CF-GPS against MB-PS, one seed each."""
        return SearchPreset(
            self.ingredients,
            settings=(Setting("CF-GPS"), Setting("MB-PS")),
            seeds=1,
            updates=self.search_updates,
            evaluate_every=max(self.search_updates // 4, 1),
            evaluation_levels=min(500, self.ingredients.truth),
        )


def tell(folder: Path, preset: StoryPreset, console: Console, progress: bool = True) -> Path:
    """Run all of it, finished stages being reused; returns the path of the page."""
    with Stages(folder / "stages", console) as stages:
        return _tell(folder, preset, console, Pipeline(stages, preset.ingredients, progress))


def _tell(folder: Path, preset: StoryPreset, console: Console, pipeline: Pipeline) -> Path:
    console.rule("1  levels, and a log of a random policy")
    pipeline.check_levels()
    log = pipeline.log()[1]
    console.print(f"{len(log):,} episodes, of which {_share_solved(log):.1%} happened to solve their level")
    console.rule("2  a scenario model: which level was that?")
    network = pipeline.scenario_model()[1]
    console.rule("3  three policies to ask about")
    policies = noisy(pipeline.policy()[1], preset.noise)
    console.rule("4  how good would they have been?")
    comparison = make_table(pipeline, preset, policies, log, network)
    console.print(_table(comparison))
    console.rule("5  a better policy: on inferred scenarios (CF-GPS), and on imagined ones (MB-PS)")
    search = policy_search.reproduce(folder, preset.search, pipeline.progress, console)
    for name, row in search["final"].items():
        console.print(f"{name}: solves {row['solved']['mean']:.1%} of new levels after {preset.search_updates} updates")
    report = make_report(pipeline, preset, policies, log, network, comparison, search)
    path = folder / "index.html"
    save_report(folder, report)
    write_report(path, report)
    return path


def make_table(pipeline: Pipeline, preset: StoryPreset, policies: Any, log: StoredLog, network: Any) -> Comparison:
    """Importance sampling, MB-PE and CF-PE(t) beside the truth."""
    model, truth = pipeline.environment("scenarios"), pipeline.environment("truth")
    methods = [
        ImportanceSampling("ordinary"),
        ImportanceSampling("weighted"),
        OnScenarios(model, Learned(model, network), preset.steps),
        OnPolicy(truth, preset.ingredients.truth),
    ]
    with pipeline.bar("episodes", len(log)) as advance:
        return compare(pipeline.key("scenarios"), log, policies, methods, advance=advance)


def make_report(
    pipeline: Pipeline,
    preset: StoryPreset,
    policies: dict[str, Policy],
    log: StoredLog,
    network: Any,
    comparison: Comparison,
    search: dict[str, Any],
) -> Report:
    """The page."""
    table = tabulate(comparison)
    shown: EpisodeLog = next(iter(log.batches()))[: preset.shown]
    model = pipeline.environment("scenarios")
    source = Learned(model, network)
    explorer = explore(
        pipeline.key("explorer"), model, shown, policies, source, num_samples=preset.samples, threshold=SOLVED
    )
    curves = Figure(
        "Search on inferred and on imagined scenarios",
        "Levels that nobody has seen before, solved by the policy, against updates. CF-GPS infers the level of each "
        "logged episode from all of it; MB-PS imagines levels.",
        policy_search.draw(search["runs"]),
    )
    errors = Figure(
        "The more hindsight, the smaller the error",
        "Relative error of each policy's value against t, the steps of the log that the scenario model was given.",
        draw_errors(comparison),
    )
    return Report(
        "What would have happened, had we acted differently?",
        summarize(table),
        table,
        explorer,
        (errors, curves),
        provenance({"seed": preset.ingredients.seed}, msgspec.to_builtins(preset)),
    )


def _share_solved(log: StoredLog) -> float:
    return float(np.mean(np.concatenate([batch.terminated for batch in log.batches()])))


def _table(comparison: Comparison) -> ScreenTable:
    """One row per method, one column per policy."""
    policies = list(comparison.estimates)
    shown = ScreenTable("method", *policies, title="expected return, and whether to believe it")
    for method in next(iter(comparison.estimates.values())):
        found = [comparison.estimates[policy][method] for policy in policies]
        name = "truth" if method == "on-policy" else method
        shown.add_row(name, *("—" if e.value is None else f"{e.value:.2f}  {_MARKS[e.verdict]}" for e in found))
    return shown


_MARKS = {"trust": "[green]trust[/]", "caution": "[yellow]caution[/]", "do not trust": "[red]do not trust[/]"}

SMOKE = StoryPreset(
    Ingredients(
        "7x7",
        PolicyRecipe(SMALLEST_POLICY, updates=2, batch=4, levels=32),
        ScenarioRecipe(ScenarioNetwork(1, 4, 2), updates=2, batch=4, levels=32, expert=True),
        logged=16,
        truth=16,
        evaluation_levels=0,
    ),
    search_updates=1,
    shown=4,
    samples=2,
)
DEMO = StoryPreset()
