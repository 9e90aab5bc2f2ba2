"""`coulda train-scenarios`: a scenario model p(U | h_t) of PO-Sokoban, and how good it is."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from coulda.hindsight.conv_draw import save_scenario_model
from coulda.recipes.networks import HeldOut, Running, ScenarioRecipe, level_key, quality, train_scenarios
from coulda.recipes.sokoban import SIZES, draw_levels
from coulda.storage import exclusive, replace_json
from coulda.trainer import use_all_cores


@dataclass(frozen=True)
class TrainScenarios:
    """Train a conv-DRAW of levels given histories, on privileged pairs (u, h_t), and measure it on held-out levels.

    The network is written to FOLDER/scenario-model, where `coulda.hindsight.conv_draw.load_scenario_model` reads it,
    and its quality to FOLDER/quality.json. Ctrl-C saves, and the same command goes on.
    """

    world: Literal["7x7", "8x8", "10x10"] = "7x7"
    """7×7 with one box, 8×8 with two, or the paper's 10×10 with three."""
    recipe: Annotated[ScenarioRecipe, tyro.conf.arg(name="")] = field(default_factory=ScenarioRecipe)
    """The network and its training."""
    folder: Path = Path("runs/scenarios")
    """Where checkpoints, log.jsonl and the network go."""
    seed: int = 0
    """Of everything that is drawn."""
    evaluation_levels: int = 1000
    """Held-out levels that measure the network."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        """Train, measure, save."""
        with exclusive(self.folder):
            self._run()

    def _run(self) -> None:
        console, size, path = Console(), SIZES[self.world], self.folder / "scenario-model"
        if path.exists():
            raise FileExistsError(f"{path} exists; name another --folder, or remove it")
        use_all_cores()
        with console.status("generating levels …"):
            levels = draw_levels(level_key(self.seed), size, "scenarios", self.recipe.levels)
        options = asdict(self)
        running = Running(
            **{name: options[name] for name in ("folder", "tensorboard", "progress", "evaluation_levels")}
        )
        network, trained = train_scenarios(self.seed, size, levels, self.recipe, running)
        if trained.status == "interrupted":
            console.print(f"stopped after {trained.step} updates; the same command goes on from there")
            return
        horizon = size.horizon
        steps = (0, 1, horizon // 5, 2 * horizon // 5, 3 * horizon // 5, 4 * horizon // 5, horizon)
        steps = steps if self.recipe.steps is None else (self.recipe.steps,)
        held_out = HeldOut.drawn(self.seed + 2, size, self.evaluation_levels)
        rows = quality(jax.random.key(1), network, held_out, steps)
        save_scenario_model(path, network)
        replace_json(self.folder / "quality.json", rows)
        columns = ("t", "elbo", "reconstruction", "divergence", "tiles wrong", "exact", "well-formed", "solvable")
        table = Table(*columns, title=f"{self.evaluation_levels:,} held-out levels")
        for row in rows:
            table.add_row(str(row["t"]), *(f"{row[name]:.3f}" for name in columns[1:]))
        console.print(table)
        console.print(f"written: {path}")


COMMANDS = TrainScenarios
