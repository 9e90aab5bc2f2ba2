"""What every experiment on PO-Sokoban begins with, as stages: levels, a policy, a scenario model, a log."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import jax
import numpy as np
from jax import Array

from coulda.environments.sokoban import Sokoban
from coulda.environments.sokoban.generator import GENERATION
from coulda.environments.sokoban.pool import read_pool, write_pool
from coulda.episodes import EpisodeLog, StoredLog, collect_batches, open_log, write_log
from coulda.executors import InProcess
from coulda.hindsight.conv_draw import ConvDRAW, load_scenario_model, save_scenario_model
from coulda.policies import UniformPolicy
from coulda.policies.grids import GridPolicy, load_policy, save_policy
from coulda.progress import Advance, bar
from coulda.recipes.imitation import PolicyRecipe, train_policy
from coulda.recipes.impala import ImpalaRecipe, learn
from coulda.recipes.running import Running
from coulda.recipes.scenario_model import ScenarioRecipe, train_scenarios, train_scenarios_on
from coulda.recipes.sokoban import (
    POOLS,
    SokobanWorld,
    check_disjoint,
    draw_levels,
    find_sokoban,
    level_key,
    make_sokoban,
)
from coulda.stages import Stages, work_folder
from coulda.trainer import Trained
from coulda.trainer.logs import LOG


@dataclass(frozen=True)
class Ingredients:
    """Sizes of the stages that experiments share."""

    world: str = "7x7"
    """The name of a world of PO-Sokoban."""
    policy: PolicyRecipe | ImpalaRecipe = field(default_factory=PolicyRecipe)
    """From the solver, which is quick in small worlds; or by IMPALA, as in the paper, with world and seed from here."""
    scenarios: ScenarioRecipe = field(default_factory=ScenarioRecipe)
    logged: int = 10_000
    """Episodes of the uniform policy, and levels that they are drawn from."""
    truth: int = 20_000
    """Episodes that measure the truth, and levels that they are drawn from."""
    evaluation_levels: int = 1000
    """Held-out levels that measure networks while they are trained; 0 measures nothing, and compiles less."""
    seed: int = 0
    """The seed of everything that is drawn."""

    @property
    def sokoban(self) -> SokobanWorld:
        """The world of that name."""
        return find_sokoban(self.world)


class Pipeline:
    """The stages of one world, made when they are first asked for.

    Args:
        stages: where they are kept.
        sizes: the sizes of everything.
        progress: whether training shows its own.
    """

    def __init__(self, stages: Stages, sizes: Ingredients, progress: bool = True):
        self.stages, self.sizes, self.progress = stages, sizes, progress

    def levels(self, pool: str) -> Path:
        """The levels of one pool."""
        sizes = self.sizes
        count = {
            "policy": sizes.policy.levels,
            "scenarios": sizes.scenarios.levels,
            "log": sizes.logged,
            "truth": sizes.truth,
        }[pool]
        settings = {"seed": sizes.seed, "world": asdict(sizes.sokoban), "pool": pool, "share": POOLS, "levels": count}
        settings["generator"] = GENERATION

        def make(path: Path) -> None:
            with self.bar("levels", count) as advance:
                levels = draw_levels(level_key(sizes.seed), sizes.sokoban, pool, count, advance)
            write_pool(path, levels)

        return self.stages.make(f"levels-{pool}", settings, {}, make)

    def environment(self, pool: str) -> Sokoban:
        """The world with the levels of one pool."""
        return make_sokoban(read_pool(self.levels(pool)), self.sizes.sokoban)

    def check_levels(self, others: Mapping[str, Path] = MappingProxyType({})) -> None:
        """Refuse to go on if two pools share a level; `others` are used in the place of its own."""
        check_disjoint({pool: read_pool(others[pool] if pool in others else self.levels(pool)) for pool in POOLS})

    def policy(self) -> tuple[Path, GridPolicy]:
        """The policy that is evaluated, and that planners may have for an expert."""
        sizes, levels = self.sizes, self.levels("policy")
        settings = {"seed": sizes.seed, "world": asdict(sizes.sokoban), "recipe": asdict(sizes.policy)}

        def make(path: Path) -> None:
            if isinstance(sizes.policy, ImpalaRecipe):
                recipe = replace(sizes.policy, world=sizes.world, seed=sizes.seed)
                trained = learn(recipe, InProcess(recipe.work(self.environment("policy"))), self._running(path))
            else:
                trained = train_policy(sizes.seed, sizes.sokoban, read_pool(levels), sizes.policy, self._running(path))
            self._check_finished(path, trained)
            save_policy(path, trained.state.policy, (work_folder(path) / LOG).read_bytes())

        path = self.stages.make("policy", settings, {"levels": levels}, make)
        return path, load_policy(path)

    def scenario_model(self, recipe: ScenarioRecipe | None = None) -> tuple[Path, ConvDRAW]:
        """p(U | h_t), trained on privileged pairs."""
        levels, recipe = self.levels("scenarios"), recipe or self.sizes.scenarios
        train = lambda running: train_scenarios(self.sizes.seed, self.sizes.sokoban, read_pool(levels), recipe, running)
        return self._scenario_model("scenario-model", recipe, {"levels": levels}, train)

    def scenario_model_from_log(self, recipe: ScenarioRecipe | None = None) -> tuple[Path, ConvDRAW]:
        """p(U | h_t), trained on a log of the uniform policy in the levels of its own pool, which nobody looks at."""
        recipe = replace(recipe or self.sizes.scenarios, expert=False)
        path, log = self._log("scenarios", recipe.levels, "log-scenarios")
        train = lambda running: train_scenarios_on(self.sizes.seed, self.sizes.sokoban, log.read(), recipe, running)
        return self._scenario_model("scenario-model-from-log", recipe, {"log": path}, train)

    def _scenario_model(
        self, name: str, recipe: ScenarioRecipe, inputs: dict[str, Path], train: Callable[[Running], Trained]
    ) -> tuple[Path, ConvDRAW]:
        settings = {"seed": self.sizes.seed, "world": asdict(self.sizes.sokoban), "recipe": asdict(recipe)}

        def make(path: Path) -> None:
            trained = train(self._running(path))
            self._check_finished(path, trained)
            save_scenario_model(path, trained.state.network, (work_folder(path) / LOG).read_bytes())

        path = self.stages.make(name, settings, inputs, make)
        return path, load_scenario_model(path)

    def log(self) -> tuple[Path, StoredLog]:
        """Episodes of the uniform policy."""
        return self._log("log", self.sizes.logged, "log")

    def _log(self, pool: str, episodes: int, name: str) -> tuple[Path, StoredLog]:
        """Episodes of the uniform policy in the levels of one pool."""
        levels = self.levels(pool)
        settings = {"seed": self.sizes.seed, "world": asdict(self.sizes.sokoban), "episodes": episodes}

        def make(path: Path) -> None:
            environment = self.environment(pool)
            with self.bar("episodes", episodes) as advance:
                batches = collect_batches(self.key(name), environment, UniformPolicy(5), episodes, 2048)
                write_log(path, counted(batches, advance))

        path = self.stages.make(name, settings, {"levels": levels}, make)
        return path, open_log(path)

    def bar(self, what: str, total: int) -> AbstractContextManager[Advance]:
        """A bar on the screen, if progress is shown."""
        return bar(what, total, self.progress)

    def key(self, use: str) -> Array:
        """A key for one use."""
        return jax.random.fold_in(jax.random.key(self.sizes.seed), np.uint32(sum(map(ord, use)) + 1000))

    def _running(self, path: Path) -> Running:
        episodes = self.sizes.evaluation_levels
        return Running(work_folder(path), resume=True, evaluation_episodes=episodes, progress=self.progress)

    def _check_finished(self, path: Path, trained: Trained) -> None:
        if trained.stopped_by is not None:
            self.stages.console.print(f"saved in {work_folder(path)}; the same command goes on from there")
        trained.check_finished()


def training_log(path: Path) -> Path:
    """The log of the training of a network that a stage made, which is a part of it."""
    return path / LOG


def counted(batches: Iterable[EpisodeLog], advance: Advance) -> Iterator[EpisodeLog]:
    """The same batches; `advance` is told of each."""
    for batch in batches:
        yield batch
        advance(len(batch))
