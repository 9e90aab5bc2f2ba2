"""`coulda fit LOG --recipe … --out MODEL`: a model, its hindsight and a verdict on both, from a log alone."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import jax
import numpy as np
import tyro
from rich.console import Console

from coulda.cli.evaluate import STYLES
from coulda.cli.showing import Screen, plain
from coulda.episodes import Columns, EpisodeLog, StoredLog, read_any
from coulda.errors import CouldaError
from coulda.fitting import Fitted, HiddenFit, NeuralFit, Recipe, TabularFit, fit, recipe_for, save_fitted
from coulda.fitting.folds import deal
from coulda.fitting.steps import steps_of
from coulda.fitting.tabular import count
from coulda.progress import bar


@dataclass(frozen=True)
class Fit:
    """Fit a model to a log: no simulator, no hidden states, no probabilities are needed.

    `coulda evaluate LOG --model MODEL --policy …` then has MB-PE and CF-PE rows that carry the verdict of the fit.
    """

    log: Annotated[Path, tyro.conf.Positional]
    """The log, in any format; see `coulda episodes`."""
    reparameterization: str
    """How noise enters, by name, since counterfactuals depend on it: gumbel_max or inverse_cdf of numbered states;
    additive, location_scale or triangular of vectors; location_scale of hidden vectors."""
    out: Path | None = None
    """Where the model goes, a folder that is not there yet."""
    recipe: Literal["auto", "tabular", "neural", "hidden"] = "auto"
    """What kind of model; by default a table for numbered observations and networks for vectors."""
    states: int | None = None
    """The number of hidden states, or of numbers in a hidden vector; for `hidden` only."""
    order: tuple[int, ...] | None = None
    """The order of the dimensions of a triangular fit; that of the columns by default."""
    folds: int = 5
    """Folds of episodes: each is judged by a fit that has not seen it."""
    seed: int = 0
    """The seed of everything that is drawn."""
    dry_run: bool = False
    """Say what would be fitted and why, and fit nothing."""
    resume: bool = False
    """Go on with a run that was interrupted."""
    columns: Columns = field(default_factory=Columns)
    """The columns of a log that is a table."""

    def run(self) -> None:
        """Fit, tell, and write."""
        console = Screen(highlight=False, soft_wrap=True)
        if not self.dry_run:
            self._check_place()
        found = read_any(self.log, self.columns)
        log = found.read() if isinstance(found, StoredLog) else found
        recipe, why = self.chosen(log)
        for sentence in plan(log, recipe, why):
            console.print(sentence, markup=False)
        if self.dry_run:
            return
        assert self.out is not None
        folder = self.out.with_name(f"{self.out.name}.training")
        neural = isinstance(recipe, NeuralFit)
        with bar("fitting", None, show=not neural):
            try:
                fitted = fit(
                    jax.random.key(self.seed),
                    log,
                    recipe,
                    folder=folder if neural else None,
                    resume=self.resume,
                    progress=neural,
                )
            except KeyboardInterrupt:
                if neural:
                    console.print(f"What was trained is in {folder}; --resume goes on with it.", markup=False)
                raise
        save_fitted(self.out, fitted)
        shutil.rmtree(folder, ignore_errors=True)
        tell(console, fitted)
        same = "" if self.columns == Columns() else ", with the same --columns,"
        console.print(f"`coulda evaluate {self.log} --model {self.out} --policy …`{same} rests on it.", markup=False)

    def chosen(self, log: EpisodeLog) -> tuple[Recipe, str]:
        """The recipe, and why it is that one."""
        name, why = self.recipe, "as asked"
        if name == "auto":
            found, why = recipe_for(log)
            name = "tabular" if isinstance(found, TabularFit) else "neural"
            why = why.partition(", ")[2]
            if found.reparameterization == "triangular" and self.reparameterization in ("additive", "location_scale"):
                why = f"as asked; triangular is suggested, {why}"
        if self.states is not None and name != "hidden":
            raise CouldaError(f"--states {self.states} is for --recipe hidden; this is {name}.")
        try:
            return self._named(name), why
        except CouldaError as error:
            raise CouldaError(f"--recipe {name}, {why}: {error}") from None

    def _named(self, name: str) -> Recipe:
        if name == "tabular":
            return TabularFit(self.reparameterization, folds=self.folds)
        if name == "neural":
            return NeuralFit(self.reparameterization, folds=self.folds, order=self.order)  # pyright: ignore
        if self.states is None:
            raise CouldaError("--states is missing, the number of hidden states.")
        return HiddenFit(self.states, self.reparameterization, folds=self.folds)

    def _check_place(self) -> None:
        if self.out is None:
            raise CouldaError("--out is missing: name a folder for the model, or ask for a --dry-run.")
        if self.out.exists():
            raise FileExistsError(f"{self.out} exists; remove it or name another")
        self.out.parent.mkdir(parents=True, exist_ok=True)


def plan(log: EpisodeLog, recipe: Recipe, why: str) -> tuple[str, ...]:
    """What would be fitted, and why; refuses what cannot be."""
    deal(log, recipe.folds)
    tried = count(log).tried if isinstance(recipe, TabularFit) else np.zeros(0)
    if isinstance(recipe, NeuralFit):
        steps_of(log)
    told = [
        f"{len(log):,} episodes, {log.num_steps:,} steps of at most {log.max_length}.",
        f"{log.schema.sentence[:1].upper()}{log.schema.sentence[1:]}.",
        f"A {type(recipe).__name__}, {recipe.reparameterization}, {recipe.folds} folds: {why}.",
    ]
    if isinstance(recipe, NeuralFit):
        told.append(f"{recipe.folds} networks in one program, {recipe.epochs(log.num_steps)} epochs at most.")
    if (once := int((tried == 1).sum())) > (tried > 0).sum() / 2:
        told.append(
            f"{once} of {(tried > 0).sum()} pairs of observation and action occur once: little can be known of them."
        )
    if isinstance(log.action, np.ndarray) and log.action.dtype.kind in "iu" and np.ptp(log.action) == 0:
        names, only = log.schema.action_names, int(log.action.flat[0])
        called = names[only] if names else only
        told.append(f"Action {called} is the only one in the log: nothing can be learned of any other.")
    if isinstance(log.observation, np.ndarray) and log.observation.ndim == 2:
        still = np.flatnonzero(np.ptp(log.observation, axis=0) == 0)
        names = log.schema.observation_names or tuple(f"dimension {j}" for j in range(log.observation.shape[1]))
        never = ", ".join(names[j] for j in still)
        told += [f"What never changes: {never}; nothing is known of other values."] if still.size else []
    if log.schema.last_observation == "repeated":
        told.append("The log lacks the observation after each last action: last steps tell of rewards and ends only.")
    if (cut := int((~log.terminated & (log.lengths < log.max_length)).sum())) > 0:
        told.append(f"{cut:,} episodes were cut off before the horizon; they do not tell of ends.")
    return tuple(told)


def tell(console: Console, fitted: Fitted) -> None:
    """The summary and the verdict, for the terminal."""
    for sentence in fitted.summary:
        console.print(sentence, markup=False)
    for found in fitted.verdict:
        style = STYLES[found.verdict]
        console.print(f"[{style}]{found.name}: {found.verdict}.[/] {plain(found.sentence)}")
    console.print(f"The fit: [{STYLES[fitted.trusted]}]{fitted.trusted}[/].")


COMMANDS = Fit
