"""`coulda train-policy`: the quick way to a policy for PO-Sokoban, from the exact solver."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from tyro.conf import OmitArgPrefixes

from coulda.cli.presets import PresetName
from coulda.cli.train_network import TrainNetwork
from coulda.policies.grids import save_policy
from coulda.recipes.held_out import HeldOut
from coulda.recipes.imitation import PolicyRecipe, policy_recipe, train_policy
from coulda.recipes.running import Running


@dataclass(frozen=True)
class TrainPolicy(TrainNetwork):
    """Train a policy by DAgger: it acts, and an expert that sees the level says what it would have done.

    The policy is written to FOLDER/policy, where `coulda.policies.load_policy` reads it. What is not given is
    what the preset has. Ctrl-C saves, and the same command goes on.
    """

    recipe: OmitArgPrefixes[PolicyRecipe] = field(default_factory=PolicyRecipe)
    """The network and its training."""
    expert: Annotated[Literal["solver"], tyro.conf.arg(name="from")] = "solver"
    """Whom to learn from: the exact solver."""

    @classmethod
    def of(cls, world: str = "7x7", preset: PresetName = "desktop") -> "TrainPolicy":
        """The command of a preset in a world."""
        options = Running.of(preset, folder=Path("runs/policy"), resume=True)
        return cls(preset, world, running=options, recipe=policy_recipe(world, preset))

    def run(self) -> None:
        """Train, measure, save."""
        save = lambda path, state: save_policy(path, state.policy)
        self.make("policy", "policy", self.recipe, train_policy, self.measure, save)

    def measure(self, state: Any, held_out: HeldOut) -> str:
        """The share of held-out levels that it solves."""
        found = held_out.solve_rate(jax.random.key(1), state.policy)
        return f"solves {float(found['held_out/solved']):.1%} of {held_out.episodes:,} held-out levels"


COMMANDS = TrainPolicy
