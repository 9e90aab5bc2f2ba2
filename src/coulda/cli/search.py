"""`coulda search`: find a policy on counterfactual trajectories."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import jax
from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from coulda.cli.executors import Who
from coulda.cli.presets import PresetName
from coulda.executors import Executor
from coulda.recipes.running import Running
from coulda.recipes.search import SEARCH_RECIPES, SearchRecipe, search_policy, true_return
from coulda.recipes.worlds import World, find_world
from coulda.trainer import Trained


@dataclass(frozen=True)
class Search:
    """Search for a policy. The scenarios make the method: prior is MB-PS, hindsight is CF-GPS.

    What is not given is what the preset has. `--folder` keeps the best and the last checkpoints and a log.jsonl.
    """

    preset: PresetName = "desktop"
    """How large: 2 updates for smoke, which mean nothing, 50 for quick, 200 for desktop, and 20000 for paper."""
    recipe: OmitArgPrefixes[SearchRecipe] = field(default_factory=SearchRecipe)
    """What is searched, where, and how."""
    running: OmitArgPrefixes[Running] = field(default_factory=Running)
    """Where the run is kept, and what is shown."""
    who: OmitArgPrefixes[Who] = field(default_factory=Who)
    """Who collects episodes."""

    @classmethod
    def of(cls, world: str = "hidden-bit", preset: PresetName = "desktop") -> "Search":
        """The command of a preset in a world."""
        every = 1000 if preset == "paper" else 50
        return cls(preset, replace(SEARCH_RECIPES[preset], world=world), Running.of(preset, evaluate_every=every))

    def run(self) -> None:
        """Search, and print what was found."""
        world = find_world(self.recipe.world)
        with self._open() as executor:
            trained = search_policy(self.recipe, world, self.running, executor)
        if self.running.evaluation_episodes:
            Console().print(self.before_and_after(world, trained))

    def before_and_after(self, world: World, trained: Trained) -> Table:
        """What the policy is worth in the environment itself."""
        measure = true_return(world, self.running.evaluation_episodes)
        title = f"{self.recipe.world}, scenarios from {self.recipe.scenarios}"
        table = Table("policy", "true return", "95% interval", title=title)
        policies = {"before": self.recipe.first_policy(world), f"after {trained.step} updates": trained.state.policy}
        for name, policy in policies.items():
            found = measure(jax.random.key(self.recipe.seed), policy)
            table.add_row(name, f"{found['true_return']:.4g}", f"{found['low']:.4g} … {found['high']:.4g}")
        return table

    def _open(self) -> AbstractContextManager[Executor | None]:
        """Who collects elsewhere; None where this process does."""
        if self.who == Who():
            return nullcontext()
        return self.who.open(self.recipe.collection(self.who.workers))


COMMANDS = Search
