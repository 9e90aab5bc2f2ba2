"""`coulda evaluate LOG --model … --policy …`: one table of what policies would have been worth, and what to believe."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import jax
import tyro
from rich.console import Console
from rich.table import Column, Table

from coulda.cli.episodes import told as understood
from coulda.cli.executors import ExecutorName, open_executor
from coulda.cli.showing import Screen, plain
from coulda.episodes import Columns
from coulda.errors import CouldaError
from coulda.evaluation import Comparison, Precision, Returns
from coulda.evaluation.drawing import draw_errors
from coulda.executors import Executor
from coulda.hindsight import Prior
from coulda.keys import folded
from coulda.policies.logged import COLUMN
from coulda.progress import bar
from coulda.recipes.evaluation import EvaluationRecipe
from coulda.storage import replace_json

# What few tables need, fits and reports, is imported where it is used: a first table is waited for.
if TYPE_CHECKING:
    from coulda.fitting import Fitted
    from coulda.report import Explorer

STYLES = {"trust": "green", "caution": "yellow", "do not trust": "red"}


@dataclass(frozen=True)
class Evaluate:
    """Evaluate policies on a log: model-free, model-based and counterfactual.

    Models, policies and sources are named `module:name` or `file.py:name`: an object, or a function that makes it. A
    model may be a Gymnasium environment, as it is: its class, or a function that makes one.
    """

    log: Annotated[Path, tyro.conf.Positional]
    """The log, in any format; see `coulda episodes`."""
    policy: Annotated[list[str], tyro.conf.UseAppendAction]
    """A policy to evaluate; may be given several times. One of scikit-learn, PyTorch or stable-baselines3, or any
    function of a batch of observations, is wrapped; file.onnx is run by onnxruntime; column:x is one whose
    probabilities are in the log's own table, of the actions taken (x), or of every action (x_0, x_1, …), which DR, WDR
    and FQE need."""
    model: str | None = None
    """The model, for MB-PE and CF-PE: an object, or the folder of one that `coulda fit` made, whose verdict every row
    that rests on it carries. Without one a model is fitted to the log."""
    fit: bool = True
    """Whether a model is fitted to the log where none is named; without it the table is model-free."""
    scenarios: str = "auto"
    """Where scenarios come from: exact, observed, particles, tempered, inverted, nuts, prior; the folder of a trained
    source (`coulda train-hindsight`), or corrected:FOLDER; or a function of the model that returns a source,
    file.py:name. By default the first that can infer them is chosen, and the table says why."""
    rival: str | None = None
    """Another model of the same world: it is told which of the two explains the log better."""
    steps: tuple[int, ...] = ()
    """The values of t for CF-PE(t); the whole episode by default."""
    num_scenarios: int = 1
    """The number of scenarios per episode."""
    environment: str | None = None
    """Where policies may be run, for the truth."""
    discount: float = 1.0
    """The discount γ of the return Σ γ^t r_t, in (0, 1]; 1 is none."""
    quantiles: tuple[float, ...] = ()
    """Quantiles of the return, such as .05 .5, by every method that knows returns of single episodes: WIS, CIS, MB-PE,
    CF-PE and on-policy."""
    cvar: tuple[float, ...] = ()
    """The mean of the worst returns, such as .1 for the worst tenth, by the same methods."""
    level: float = 0.95
    """The level of the intervals."""
    seed: int = 0
    """The seed of everything that is drawn: the same seed gives the same table."""
    out: Path | None = None
    """A folder for the table as JSON, for figures, and for the report that `coulda report` makes a page of."""
    explored: int = 60
    """The number of episodes in the report's explorer."""
    threshold: float | None = None
    """The return from which the explorer calls an episode won; the mean of those explored by default."""
    executor: ExecutorName = "in-process"
    """Who works on MB-PE and CF-PE; the table is the same."""
    workers: int = 2
    """The number of workers, elsewhere than in this process."""
    address: str | None = None
    """The address of a Ray cluster; by default one is started here. Its nodes must see the log and the named files."""
    columns: Columns = field(default_factory=Columns)
    """The columns of a log that is a table."""

    def run(self) -> None:
        """Print the table; write it where asked."""
        if not self.policy:
            raise CouldaError(
                "there is no policy to evaluate; add --policy file.py:name, or column:x of the log's table"
            )
        if self.out is not None:
            from coulda.report.page import check_place

            self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
            check_place(self.out)
        recipe, key, console = self.recipe(), jax.random.key(self.seed), Screen()
        # Episodes are counted where scenarios are drawn for them, which takes long; model-free methods do not.
        told: tuple[str, ...] = (understood(self.log, recipe.episodes),)
        console.print(*told, highlight=False, soft_wrap=True, markup=False)
        _ = recipe.named_policies  # before a model is fitted: a wrong name should cost nothing
        if self._elsewhere:
            _ = recipe.spec
        recipe, about_fit = self._fitted(recipe, console)
        told = (*told, *about_fit)
        total = None if recipe.on_scenarios is None else len(recipe.episodes)
        if recipe.on_scenarios is not None and recipe.fitted is None:  # a fit brings its own, and has said so
            with bar("choosing where scenarios come from", None):
                told = (*told, f"Scenarios: {recipe.on_scenarios.choice.why}.")
                _ = recipe.against  # before the work: a wrong name should cost nothing
            console.print(told[-1], highlight=False, soft_wrap=True, markup=False)
        with self._open(recipe) as executor, bar(f"evaluating on {len(recipe.episodes):,} episodes", total) as advance:
            comparison = recipe.compare(key, executor, advance)
        console.print(table(comparison))
        if comparison.asked.beyond_the_mean:
            console.print(distributions(comparison))
        for difference in comparison.differences(self.level):
            console.print(str(difference), highlight=False, soft_wrap=True, markup=False)
        for doubt in comparison.doubts():
            style = STYLES[doubt.verdict]
            console.print(f"[{style}]{plain(doubt.about)}: {doubt.verdict}.[/] {plain(doubt.sentence)}")
        if (rivals := recipe.rivals(folded(key, 2))) is not None:
            console.print(rivals.sentence, highlight=False, soft_wrap=True, markup=False)
            told = (*told, rivals.sentence)
        if self.out is not None:
            self._write(self.out, comparison, self._explorer(recipe), told, recipe.fitted)
            console.print(f"`coulda report {self.out}` makes a page of it.", highlight=False, soft_wrap=True)

    def _fitted(self, recipe: EvaluationRecipe, console: Console) -> tuple[EvaluationRecipe, tuple[str, ...]]:
        """Fit a model where none is named, and say so; or what keeps one from being fitted."""
        if self.model is not None:
            return recipe, ()
        if not self.fit:
            said = f"No model is named, and none is fitted: {WITHOUT_MODEL}"
        elif any(name.startswith(COLUMN) for name in self.policy):
            said = f"A policy that is a column of the log cannot be run in a model: {WITHOUT_MODEL}"
            recipe = replace(recipe, fit=False)
        else:
            recipe, said = _fit(recipe)
        console.print(said, highlight=False, soft_wrap=True, markup=False)
        return recipe, (said,)

    def recipe(self) -> EvaluationRecipe:
        """What is asked."""
        return EvaluationRecipe(
            str(self.log),
            tuple(self.policy),
            self.model,
            self.scenarios,
            self.rival,
            self.steps,
            self.environment,
            Precision(self.level, scenarios=self.num_scenarios),
            Returns(self.discount, self.quantiles, self.cvar),
            self.columns,
            self.fit,
            self.seed,
        )

    @property
    def _elsewhere(self) -> bool:
        return self.executor != "in-process" or self.address is not None

    def _open(self, recipe: EvaluationRecipe) -> AbstractContextManager[Executor | None]:
        """Who works elsewhere; None where this process does."""
        if not self._elsewhere:
            return nullcontext()
        return open_executor(self.executor, recipe.spec, self.workers, self.address)

    def _explorer(self, recipe: EvaluationRecipe) -> "Explorer | None":
        from coulda.report import explore

        found = recipe.on_scenarios
        if found is None or isinstance(found.choice.source, Prior):
            return None
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        first = next(iter(recipe.episodes.batches(self.explored)))
        source, policies = found.choice.source, recipe.named_policies
        return explore(key, found.model, first, policies, source, threshold=self.threshold, returns=recipe.returns)

    def _write(
        self,
        out: Path,
        comparison: Comparison,
        explorer: "Explorer | None",
        told: tuple[str, ...],
        fitted: "Fitted | None",
    ) -> None:
        from coulda.report import Report, describe, provenance, save_report, summarize, tabulate

        replace_json(out / "table.json", comparison.plain())
        comparison.plot().save(out / "estimates.png")
        if comparison.truth and fitted is None and self.model is not None:
            draw_errors(comparison).save(out / "errors.png")
        found = tabulate(comparison)
        # By the last part of their paths, which differ between machines.
        names = {"log": self.log, "model": self.model, "scenarios": self.scenarios, "environment": self.environment}
        config = {key: Path(value).name for key, value in names.items() if value is not None}
        config |= {"steps": list(self.steps), "num_scenarios": self.num_scenarios, **asdict(comparison.asked)}
        title = f"What {' and '.join(comparison.estimates)} would have been worth"
        facts = provenance({"evaluate": self.seed}, config)
        model = None if fitted is None else describe(fitted)
        sentences = (*summarize(found), *told)
        save_report(out, Report(title, sentences, found, explorer, provenance=facts, model=model))


COMMANDS = Evaluate

WITHOUT_MODEL = "there is no MB-PE and no CF-PE in the table."


def _fit(recipe: EvaluationRecipe) -> tuple[EvaluationRecipe, str]:
    """With a fitted model where one can be, and what is to be said of it."""
    from coulda.fitting import recipe_for

    try:
        _, why = recipe_for(recipe.episodes)
        recipe.check_policies()
        with bar("fitting a model to the log", None):
            assert recipe.fitted is not None
        return recipe, f"No model is named, so one was fitted to the log: {why}. The fit: {recipe.fitted.trusted}."
    except CouldaError as error:
        said = f"No model is named, and none could be fitted to the log, so that {WITHOUT_MODEL} {error}"
        return replace(recipe, fit=False), said


def table(comparison: Comparison) -> Table:
    """The comparison for the terminal."""
    shown = Table(
        Column("policy", overflow="fold"),
        "method",
        Column("value", no_wrap=True),
        "interval",
        "effective episodes",
        "verdict",
        title=f"expected {comparison.asked}",
    )
    for name, estimate in comparison.rows():
        value = estimate.status if estimate.value is None else f"{estimate.value:.4f}"
        limits = estimate.interval
        interval = "" if limits is None else f"[{limits.low:.4f}, {limits.high:.4f}] {limits.kind}"
        verdict = f"[{STYLES[estimate.verdict]}]{estimate.verdict}[/]"
        interval = interval.replace("[", r"\[", 1)
        shown.add_row(plain(name), estimate.method, value, interval, f"{estimate.effective_sample_size:,.1f}", verdict)
    return shown


def distributions(comparison: Comparison) -> Table:
    """Quantiles and CVaRs for the terminal; methods that cannot tell are left out."""
    shown = Table("policy", "method", "of the return", "value", "interval", "verdict", title=f"the {comparison.asked}")
    for name, estimate in comparison.rows():
        for quantity, one in estimate.distribution.items():
            assert one.interval is not None
            interval = rf"\[{one.interval.low:.4f}, {one.interval.high:.4f}]"
            verdict = f"[{STYLES[one.verdict]}]{one.verdict}[/]"
            shown.add_row(plain(name), estimate.method, quantity, f"{one.value:.4f}", interval, verdict)
    return shown
