"""`coulda reproduce`: every figure of the paper, from scratch."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from coulda.cli.presets import PresetName
from coulda.cli.showing import Screen
from coulda.errors import CouldaError
from coulda.experiments.cost import expected_cost
from coulda.experiments.reproduction import FIGURES, OWN_WORLDS, ingredients
from coulda.storage import exclusive
from coulda.studies import sepsis

SEARCHES = ("search", "planners")
Figure = Literal["models", "evaluation", "search", "planners", "mismatch", "sepsis", "all"]


@dataclass(frozen=True)
class Reproduce:
    """Regenerate the paper's figures, stage by stage: levels, log, policy, scenario model, evaluation, figure.

    Finished stages are kept in FOLDER/stages and reused while nothing that they were made from changes. A run that was
    stopped goes on where it was with the same command, and ends in the same numbers.

    models: the policy and the scenario model themselves, on levels that neither has seen.
    evaluation: Figure 2, left: the error of CF-PE(t), MB-PE and importance sampling.
    search: Figure 2, right: CF-GPS, GPS-like search, MB-PS and IMPALA. The curves of each whole seed are written to
      FOLDER/…/search-seed-K.json; where such a file is there already, by the same recipe, that seed is not run again.
      At 10x10 a seed takes between half an hour and an hour of a core.
    planners: CF-GPS with the exact solver, a trained policy and tree search as its expert.
    mismatch: Figure 4: the scenario model's prior against its posterior, in latent space.
    sepsis: the experiment of Oberst & Sontag (2019), in which counterfactuals mislead.
    """

    figure: Annotated[Figure, tyro.conf.Positional]
    """Which figure; all of them one after the other."""
    preset: PresetName = "quick"
    """How large: smoke means nothing, quick takes minutes, desktop an hour per figure, paper needs GPUs."""
    world: str | None = None
    """Where: 7x7, 8x8 or 10x10; by default 7x7 for smoke and quick, 8x8 for desktop, 10x10 for paper."""
    seed: int = 0
    """The seed of everything that is drawn; an evaluation over several seeds goes on from it."""
    privileged: Literal["yes", "no"] = "yes"
    """Whether evaluation's scenario models see true levels in training, as in the paper; no: they have logs alone."""
    seeds: int | None = None
    """How many scenario models and logs an evaluation has, or runs a setting of a search; by default the preset's."""
    folder: Path = Path("runs")
    """The folder where everything goes: FOLDER/PRESET, and FOLDER/PRESET-WORLD in a world not its own."""
    progress: bool = True
    """Show how much of each stage is done, and how long the rest will take."""

    def run(self) -> None:
        """Make what is missing, and print the numbers."""
        if self.figure == "sepsis" and self.world is not None:
            raise CouldaError(f"sepsis is a world of its own, and not {self.world}; leave out --world.")
        if self.figure != "evaluation" and self.privileged == "no":
            raise CouldaError(f"--privileged no is for evaluation, and not for {self.figure}.")
        if self.figure not in ("evaluation", *SEARCHES) and self.seeds is not None:
            raise CouldaError(f"--seeds is for evaluation and searches, and not for {self.figure}.")
        if self.seeds is not None and self.seeds < 1:
            raise CouldaError(f"--seeds is {self.seeds}; it must be at least 1.")
        console, sizes = Screen(), ingredients(self.preset, self.world, self.seed)
        own = sizes.world == OWN_WORLDS[self.preset]
        folder = self.folder / (self.preset if own else f"{self.preset}-{sizes.world}")
        if self.preset == "paper" and self.figure != "sepsis":
            console.print(expected_cost(sizes))
        with exclusive(folder):
            for name in [*FIGURES, "sepsis"] if self.figure == "all" else [self.figure]:
                if name == "sepsis":
                    _sepsis(folder, self.preset)
                else:
                    figure = FIGURES[name]
                    preset = self._asked(figure.preset(sizes, self.preset))
                    found = figure.reproduce(folder, preset, self.progress)
                    console.print(TABLES[name](found))
                    name = getattr(preset, "name", name)
                console.print(f"written: {folder}/{name}.json")

    def _asked(self, preset: Any) -> Any:
        """The preset with what was asked for of an evaluation or a search."""
        if self.figure == "evaluation":
            preset = replace(preset, privileged=self.privileged == "yes")
        return preset if self.seeds is None else replace(preset, seeds=self.seeds)


def _sepsis(folder: Path, preset: str) -> None:
    sizes = {"smoke": 2, "quick": 10}
    sepsis.SepsisReproduction(data_sets=sizes.get(preset, 100), tables=1, out=folder / "sepsis.json").run()


def _models_table(found: dict[str, Any]) -> Table:
    solved = f"the policy solves {found['policy']['solved']:.1%}; the scenario model draws"
    table = Table("t", "ELBO, nats", "tiles wrong", "exact", "well-formed", "solvable", title=solved)
    for row in found["scenario model"]:
        shares = (f"{row[name]:.3f}" for name in ("exact", "well-formed", "solvable"))
        table.add_row(str(row["t"]), f"{row['elbo']:.2f}", f"{row['tiles wrong']:.2f}", *shares)
    return table


def _evaluation_table(found: dict[str, Any]) -> Table:
    seeds = max(row["seeds"] for row in found["over seeds"])
    title = f"means over {seeds} seeds" if seeds > 1 else None
    table = Table("policy", "method", "estimate", "truth", "relative error", "95% interval", "verdict", title=title)
    for row in found["over seeds"]:
        limits = row["error interval"]
        table.add_row(
            row["policy"],
            row["method"],
            "" if row["value"] is None else f"{row['value']:.3f}",
            f"{row['truth']:.3f}",
            "" if row["relative error"] is None else f"{row['relative error']:.3f}",
            "" if limits is None else f"{limits[0]:.3f} … {limits[1]:.3f}",
            row["verdict"],
        )
    return table


def _search_table(found: dict[str, Any]) -> Table:
    table = Table("setting", "seeds", "levels solved", "95% interval", "return", "95% interval")
    for name, row in found["final"].items():
        cells = [cell for measure in ("solved", "return") for cell in _mean_and_interval(row[measure])]
        table.add_row(name, str(row["seeds"]), *cells)
    return table


def _mean_and_interval(found: dict[str, Any]) -> tuple[str, str]:
    return f"{found['mean']:.3f}", f"{found['low']:.3f} … {found['high']:.3f}" if "low" in found else ""


def _mismatch_table(found: dict[str, Any]) -> Table:
    table = Table("t", "KL(averaged prior ‖ averaged posterior), nats", "of the two largest dimensions")
    for t, row in found["t"].items():
        table.add_row(t, f"{row['divergence']:.4g}", ", ".join(f"{x:.3g}" for x in row["largest divergence"]))
    return table


TABLES = {
    "models": _models_table,
    "evaluation": _evaluation_table,
    "search": _search_table,
    "planners": _search_table,
    "mismatch": _mismatch_table,
}

COMMANDS = Reproduce
