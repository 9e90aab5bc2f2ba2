"""`coulda search`: find a policy on counterfactual trajectories."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import optax
from jax import Array
from rich.console import Console
from rich.table import Table

from coulda.cli.executors import ExecutorName, open_executor
from coulda.errors import CouldaError
from coulda.evaluation import on_policy
from coulda.executors import Executor, Work, WorkSpec
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import ExpertSchedule
from coulda.pomdp import Policy
from coulda.recipes.worlds import World, find_world
from coulda.search import PolicySearch, ReturnWeightedRegression, SearchState
from coulda.search.policy_search import collection_work
from coulda.trainer import TrainerConfig, train

RUNNING = ("updates", "folder", "resume", "tensorboard", "progress", "executor", "workers", "address")
"""Options that may change when a run is resumed."""


@dataclass(frozen=True)
class Search:
    """Search for a policy. The scenarios make the method: prior is MB-PS, hindsight is CF-GPS."""

    world: str = "hidden-bit"
    """bandit, hidden-bit, tiger, sepsis, linear, or your own: package.module:function, which returns a World."""
    scenarios: Literal["prior", "first-observation", "hindsight"] = "hindsight"
    """Where scenarios come from."""
    updates: int = 200
    """Policy updates in all, those before a resume included."""
    episodes: int = 16
    """Logged an update; one scenario is inferred from each."""
    rollouts: int = 10
    """Counterfactual trajectories a scenario."""
    refresh: int = 1
    """The behavior policy becomes a copy of the policy every so many updates."""
    planner: Literal["policy", "expert", "mcts"] = "policy"
    """Who plans: the policy itself, or its mixture with the world's expert or with tree search on the model."""
    beta: float = 0.5
    """The expert's share at first."""
    time_constant: float = 1e5
    """Of the exponential decay of beta, in episodes."""
    temperature: float = 1.0
    """Of the return in the weights."""
    normalization: Literal["scenario", "batch"] = "scenario"
    """Of the weights: over a scenario's trajectories, or over the batch, which is equation 1 as written."""
    ratio: bool = True
    """Whether the weights have the importance ratio of policy and planner."""
    resampled: int | None = None
    """Take gradients on this many trajectories, drawn by weight; on all by default."""
    learning_rate: float = 0.03
    """Of Adam."""
    seed: int = 0
    """Of everything that is drawn."""
    evaluate_every: int = 50
    """Updates between evaluations in the environment, and checkpoints."""
    evaluation_episodes: int = 1000
    """Of an evaluation."""
    folder: Path | None = None
    """Where checkpoints and log.jsonl go; nothing is kept by default."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder, bit for bit."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show progress."""
    executor: ExecutorName = "in-process"
    """Who collects episodes; what is found is the same."""
    workers: int = 2
    """How many there are, elsewhere than in this process; each collects its share."""
    address: str | None = None
    """Of a Ray cluster; by default one is started here."""

    def run(self) -> None:
        """Search, and print what was found."""
        with self._open() as executor:
            self._run(executor)

    def _run(self, executor: Executor | None) -> None:
        world, key = find_world(self.world), jax.random.key(self.seed)
        search = replace(self.search(world), executor=executor)
        config = TrainerConfig(self.updates, checkpoint_every=self.evaluate_every, best="true_return", maximize=True)

        def evaluate(key: Array, state: SearchState) -> dict[str, float]:
            return self.evaluate(key, world, state.policy)

        first = search.init(world.policy(jax.random.fold_in(key, 1)))
        trained = train(
            key,
            search.step,
            first,
            config,
            folder=self.folder,
            settings=self.settings(),
            evaluate=evaluate,
            resume=self.resume,
            tensorboard=self.tensorboard,
            progress=self.progress,
        )
        table = Table("policy", "true return", "95% interval", title=f"{self.world}, scenarios from {self.scenarios}")
        for name, policy in {"before": first.policy, f"after {trained.step} updates": trained.state.policy}.items():
            found = self.evaluate(key, world, policy)
            table.add_row(name, f"{found['true_return']:.4g}", f"{found['low']:.4g} … {found['high']:.4g}")
        Console().print(table)

    def search(self, world: World) -> PolicySearch:
        """The search that these options describe."""
        objective = ReturnWeightedRegression(
            self.rollouts, self.temperature, self.normalization, self.ratio, self.resampled
        )  # pyright: ignore[reportArgumentType]
        return PolicySearch(
            world.environment,
            world.model,
            world.source(self.scenarios),
            optax.adam(self.learning_rate),
            self._planner(world),
            objective,
            self.episodes,
            self.refresh,
        )

    def evaluate(self, key: Array, world: World, policy: Policy) -> dict[str, float]:
        """The policy's mean return in the environment itself, and its 95% interval."""
        found = on_policy(key, world.environment, policy, self.evaluation_episodes)
        assert found.value is not None
        assert found.interval is not None
        return {"true_return": found.value, "low": found.interval.low, "high": found.interval.high}

    def _open(self) -> AbstractContextManager[Executor | None]:
        """Who collects elsewhere; None where this process does."""
        if self.executor == "in-process" and self.address is None:
            return nullcontext()
        settings = {"world": self.world, "episodes": self.episodes, "pieces": self.workers}
        return open_executor(
            self.executor, WorkSpec("coulda.cli.search:collection", settings), self.workers, self.address
        )

    def settings(self) -> dict[str, Any]:
        """What a resumed run must share with the one before it."""
        return {name: value for name, value in asdict(self).items() if name not in RUNNING}

    def _planner(self, world: World) -> Any:
        if self.planner == "policy":
            return None
        expert = MCTS(world.model) if self.planner == "mcts" else world.expert
        if expert is None:
            raise CouldaError(f"world '{self.world}' has no expert; use --planner policy or --planner mcts.")
        if not hasattr(world.model.action_space, "n"):
            return expert  # continuous actions are not mixed: the expert plans alone
        return ExpertSchedule(expert, self.beta, self.time_constant)


def collection(world: str, episodes: int, pieces: int) -> Work:
    """The recipe for workers: a share of the episodes of a step."""
    made = find_world(world)
    return collection_work(made.environment, made.policy(jax.random.key(0)), episodes, pieces)


COMMANDS = Search
