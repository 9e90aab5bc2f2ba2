"""`coulda train`: a policy from scratch by IMPALA, without a model."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from coulda.cli.executors import ExecutorName, open_executor
from coulda.errors import CouldaError
from coulda.recipes.impala import RECIPES, ImpalaRecipe, learn
from coulda.trainer import use_all_cores


@dataclass(frozen=True)
class Train:
    """Train a policy by IMPALA: actors with slightly outdated copies of it, one learner.

    What is not given is what the preset has. `--folder` keeps the best and the last checkpoints and a log.jsonl.
    """

    environment: str = "sokoban"
    """sokoban, or a world: bandit, hidden-bit, tiger, sepsis, or package.module:function, which returns a World."""
    preset: str = "7x7"
    """Of sokoban: 7x7, 8x8 or 10x10, the paper's."""
    updates: int | None = None
    """In all, those before a resume included; the learning rate falls to 0 over the second half of them."""
    batch: int | None = None
    """Episodes an update."""
    learning_rate: float | None = None
    """Of Adam."""
    entropy_weight: float | None = None
    """Of the policy's entropy in the loss."""
    discount: float | None = None
    """γ."""
    max_staleness: int = 0
    """How many updates the actors are behind: with 0 they wait for the learner, with 1 they act while it learns."""
    executor: ExecutorName = "in-process"
    """Who acts. All give the same run, bit for bit."""
    workers: int = 2
    """How many act, elsewhere than in this process."""
    address: str | None = None
    """Of a Ray cluster that runs already; by default one is started on this machine."""
    all_cores: bool = True
    """Split batches over all cores of this machine; they must be multiples of their number."""
    seed: int = 0
    """Of everything that is drawn."""
    evaluate_every: int = 200
    """Updates between evaluations, and checkpoints."""
    evaluation_episodes: int = 1000
    """Of an evaluation; in sokoban on levels that are held out."""
    folder: Path | None = None
    """Where checkpoints and log.jsonl go; nothing is kept by default."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder, bit for bit."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show progress."""

    def run(self) -> None:
        """Train, and print what the policy is worth before and after."""
        if self.all_cores:
            use_all_cores()
        recipe = self.recipe()
        measure = recipe.make_evaluation(self.evaluation_episodes)
        with open_executor(self.executor, recipe.spec, self.workers, self.address) as executor:
            trained = learn(
                recipe,
                executor,
                self.evaluation_episodes,
                self.evaluate_every,
                folder=self.folder,
                resume=self.resume,
                tensorboard=self.tensorboard,
                progress=self.progress,
            )
        found = {
            "before": measure(jax.random.key(self.seed), recipe.first_policy()),
            f"after {trained.step} updates": measure(jax.random.key(self.seed), trained.state.policy),
        }
        names = [name.removeprefix("held_out/") for name in found["before"]]
        table = Table("policy", *names, title=f"{self.environment}, {self.evaluation_episodes} held-out episodes")
        for name, values in found.items():
            table.add_row(name, *(f"{float(value):.4g}" for value in values.values()))
        Console().print(table)

    def recipe(self) -> ImpalaRecipe:
        """The preset, with what was given in its place."""
        if self.preset not in RECIPES:
            raise CouldaError(f"there is no preset '{self.preset}'; the presets are {', '.join(RECIPES)}.")
        names = {field.name for field in fields(ImpalaRecipe)} & {field.name for field in fields(Train)}
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(RECIPES[self.preset], **given)


COMMANDS = Train
