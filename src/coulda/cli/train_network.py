"""What `coulda train-policy` and `coulda train-scenarios` share: levels of a pool, training, measuring, a file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tyro.conf import OmitArgPrefixes

from coulda.cli.presets import PresetName
from coulda.cli.showing import Screen
from coulda.errors import CouldaError
from coulda.recipes.held_out import HeldOut
from coulda.recipes.running import Running
from coulda.recipes.sokoban import SokobanWorld, draw_levels, find_sokoban, level_key
from coulda.storage import exclusive
from coulda.trainer import Trained


@dataclass(frozen=True)
class TrainNetwork:
    """The options of both commands."""

    preset: PresetName = "desktop"
    """How large: smoke means nothing, quick and desktop take minutes at 7x7, paper has its network and 10^6 updates."""
    world: str = "7x7"
    """Where: 7x7 with one box, 8x8 with two, or 10x10 with three, the paper's."""
    seed: int = 0
    """The seed of everything that is drawn."""
    running: OmitArgPrefixes[Running] = field(default_factory=Running)
    """Where the run is kept, and what is shown."""

    def make(
        self,
        name: str,
        pool: str,
        recipe: Any,
        train: Callable[[int, SokobanWorld, np.ndarray, Any, Running], Trained],
        measure: Callable[[Any, HeldOut], Any],
        save: Callable[[Path, Any], None],
    ) -> None:
        """Train a network on levels of a pool, print how good it is, and save it as FOLDER/name.

        Args:
            name: the name of the file.
            pool: whose levels it learns from.
            recipe: what is trained, and how.
            train: (seed, world, levels, recipe, running) -> the trained network.
            measure: (state of the training, held-out levels) -> what to print.
            save: (path, state of the training) -> None.
        """
        console, world = Screen(), find_sokoban(self.world)
        if self.running.folder is None:
            raise CouldaError(f"a {name} is kept in a folder, and none is named; add --folder.")
        path = self.running.folder / name
        with exclusive(self.running.folder):
            if path.exists():
                raise FileExistsError(f"{path} exists; name another --folder, or remove it")
            with console.status("generating levels …"):
                levels = draw_levels(level_key(self.seed), world, pool, recipe.levels)
            trained = train(self.seed, world, levels, recipe, self.running)
            trained.check_finished()
            held_out = HeldOut.drawn(self.seed + 2, world, self.running.evaluation_episodes)
            console.print(measure(trained.state, held_out))
            save(path, trained.state)
        console.print(f"written: {path}")
