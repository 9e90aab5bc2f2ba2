"""`coulda train`: a policy from scratch by IMPALA, without a model."""

from dataclasses import dataclass, field

import jax
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from coulda.cli.executors import Who
from coulda.cli.presets import PresetName
from coulda.cli.showing import Screen, plain
from coulda.recipes.impala import ImpalaRecipe, impala_recipe, learn
from coulda.recipes.running import Running
from coulda.trainer import Trained


@dataclass(frozen=True)
class Train:
    """Train a policy by IMPALA: actors with slightly outdated copies of it, one learner.

    What is not given is what the preset has. `--folder` keeps the best and the last checkpoints and a log.jsonl.
    """

    preset: PresetName = "desktop"
    """How large: smoke means nothing, quick takes minutes, desktop an hour, paper has its network and 10^6 updates."""
    recipe: OmitArgPrefixes[ImpalaRecipe] = field(default_factory=ImpalaRecipe)
    """What is learned, where, and how."""
    running: OmitArgPrefixes[Running] = field(default_factory=Running)
    """Where the run is kept, and what is shown."""
    who: OmitArgPrefixes[Who] = field(default_factory=Who)
    """Who acts."""

    @classmethod
    def of(cls, world: str = "7x7", preset: PresetName = "desktop") -> "Train":
        """The command of a preset in a world."""
        return cls(preset, impala_recipe(world, preset), Running.of(preset, evaluate_every=200))

    def run(self) -> None:
        """Train, and print what the policy is worth before and after."""
        self.recipe.first_policy()  # before the work: a world that it cannot learn in should cost nothing
        with self.who.open(self.recipe.spec) as executor:
            trained = learn(self.recipe, executor, self.running)
        trained.check_finished()
        Screen().print(self.before_and_after(trained))

    def before_and_after(self, trained: Trained) -> Table:
        """What the policy is worth."""
        measure = self.recipe.make_evaluation(self.running.evaluation_episodes)
        policies = {"before": self.recipe.first_policy(), f"after {trained.step} updates": trained.state.policy}
        found = {name: measure(jax.random.key(self.recipe.seed), policy) for name, policy in policies.items()}
        names = [name.removeprefix("held_out/") for name in found["before"]]
        title = f"{plain(self.recipe.world)}, {self.running.evaluation_episodes} held-out episodes"
        table = Table("policy", *names, title=title)
        for name, values in found.items():
            table.add_row(name, *(f"{float(value):.4g}" for value in values.values()))
        return table


COMMANDS = Train
