"""`coulda train-policy`: the quick way to a policy for PO-Sokoban, from the exact solver."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro
from rich.console import Console

from coulda.policies.conv_lstm import save_policy
from coulda.recipes.networks import HeldOut, PolicyRecipe, Running, level_key, train_policy
from coulda.recipes.sokoban import SIZES, draw_levels
from coulda.storage import exclusive
from coulda.trainer import use_all_cores


@dataclass(frozen=True)
class TrainPolicy:
    """Train a conv-LSTM policy by DAgger: it acts, and an expert that sees the level says what it would have done.

    The policy is written to FOLDER/policy, where `coulda.policies.conv_lstm.load_policy` reads it. Ctrl-C saves, and
    the same command goes on.
    """

    expert: Annotated[Literal["solver"], tyro.conf.arg(name="from")] = "solver"
    """Whom to learn from: the exact solver."""
    world: Literal["7x7", "8x8", "10x10"] = "7x7"
    """7×7 with one box, 8×8 with two, or the paper's 10×10 with three."""
    recipe: Annotated[PolicyRecipe, tyro.conf.arg(name="")] = field(default_factory=PolicyRecipe)
    """The network and its training."""
    folder: Path = Path("runs/policy")
    """Where checkpoints, log.jsonl and the policy go."""
    seed: int = 0
    """Of everything that is drawn."""
    evaluation_levels: int = 1000
    """Held-out levels that measure the policy at every checkpoint."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        """Train, measure, save."""
        with exclusive(self.folder):
            self._run()

    def _run(self) -> None:
        console, size, path = Console(), SIZES[self.world], self.folder / "policy"
        if path.exists():
            raise FileExistsError(f"{path} exists; name another --folder, or remove it")
        use_all_cores()
        with console.status("generating levels …"):
            levels = draw_levels(level_key(self.seed), size, "policy", self.recipe.levels)
        options = asdict(self)
        running = Running(
            **{name: options[name] for name in ("folder", "tensorboard", "progress", "evaluation_levels")}
        )
        policy, trained = train_policy(self.seed, size, levels, self.recipe, running)
        if trained.status == "interrupted":
            console.print(f"stopped after {trained.step} updates; the same command goes on from there")
            return
        found = HeldOut.drawn(self.seed + 2, size, self.evaluation_levels).solve_rate(jax.random.key(1), policy)
        save_policy(path, policy)
        console.print(
            f"solves {float(found['held_out/solved']):.1%} of {self.evaluation_levels:,} held-out levels: {path}"
        )


COMMANDS = TrainPolicy
