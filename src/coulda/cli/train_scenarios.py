"""`coulda train-scenarios`: a scenario model p(U | h_t) of PO-Sokoban, and how good it is."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from coulda.cli.presets import PresetName
from coulda.cli.train_network import TrainNetwork
from coulda.hindsight.conv_draw import save_scenario_model
from coulda.recipes.held_out import HeldOut
from coulda.recipes.running import Running
from coulda.recipes.scenario_model import SCENARIO_RECIPES, ScenarioRecipe, quality, train_scenarios
from coulda.storage import replace_json


@dataclass(frozen=True)
class TrainScenarios(TrainNetwork):
    """Train a conv-DRAW of levels given histories, on privileged pairs (u, h_t), and measure it on held-out levels.

    The network is written to FOLDER/scenario-model, where `coulda.hindsight.conv_draw.load_scenario_model` reads it,
    and its quality to FOLDER/quality.json. What is not given is what the preset has. Ctrl-C saves, and the same command
    goes on.
    """

    recipe: OmitArgPrefixes[ScenarioRecipe] = field(default_factory=ScenarioRecipe)
    """The network and its training."""

    @classmethod
    def of(cls, world: str = "7x7", preset: PresetName = "desktop") -> "TrainScenarios":
        """The command of a preset in a world."""
        options = Running.of(preset, folder=Path("runs/scenarios"), resume=True)
        return cls(preset, world, running=options, recipe=SCENARIO_RECIPES[preset])

    def run(self) -> None:
        """Train, measure, save."""
        save = lambda path, state: save_scenario_model(path, state.network)
        self.make("scenario-model", "scenarios", self.recipe, train_scenarios, self.measure, save)

    def measure(self, state: Any, held_out: HeldOut) -> Table:
        """What it draws for several t, or for its own; also written down."""
        horizon, own = held_out.environment.horizon, self.recipe.steps
        steps = (0, 1, *(part * horizon // 5 for part in range(1, 6))) if own is None else (own,)
        rows = quality(jax.random.key(1), state.network, held_out, steps)
        assert self.running.folder is not None
        replace_json(self.running.folder / "quality.json", rows)
        columns = ("t", "elbo", "reconstruction", "divergence", "tiles wrong", "exact", "well-formed", "solvable")
        table = Table(*columns, title=f"{held_out.episodes:,} held-out levels")
        for row in rows:
            table.add_row(str(row["t"]), *(f"{row[name]:.3f}" for name in columns[1:]))
        return table


COMMANDS = TrainScenarios
