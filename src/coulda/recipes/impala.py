"""IMPALA from scratch on PO-Sokoban: how far the model-free way gets in an hour of one core.

The policy learns on levels of the pool "policy" and is measured on levels that nothing was trained on.

    python -m coulda.recipes.impala   # writes results/impala
"""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import optax
from jax import Array

from coulda.drawing import as_svg, new_figure
from coulda.errors import CouldaError
from coulda.evaluation.on_scenarios import on_policy
from coulda.executors import Executor, InProcess, Work, WorkSpec
from coulda.learners import ActorCriticLoss, Impala, episodes_of
from coulda.policies import RecurrentPolicy
from coulda.policies.actor_critic import ActorCritic
from coulda.pomdp import POMDP
from coulda.recipes.networks import HeldOut, falling
from coulda.recipes.sokoban import draw_levels, find_size, sokoban, sokoban_policy
from coulda.recipes.worlds import find_world
from coulda.storage import replace_file, replace_json
from coulda.trainer import Trained, TrainerConfig, train
from coulda.trainer.logs import LOG, held_out_curve, read_log


@dataclass(frozen=True)
class ImpalaRecipe:
    """What is learned, where, and how: everything that a resumed run must share with the one before it."""

    environment: str = "sokoban"
    """sokoban, or a world: bandit, hidden-bit, tiger, sepsis, or package.module:function, which returns a World."""
    preset: str = "7x7"
    """Of sokoban: 7x7, 8x8 or 10x10, the paper's."""
    layers: int = 1
    """Of sokoban's network, as are the next four (paper: 3, 32, 2)."""
    channels: int = 16
    ticks: int = 1
    units: int = 128
    focus: bool = True
    """Whether its heads look at the agent's cell and at the mean of all, in the place of every cell (paper: no)."""
    width: int = 32
    """Units of the recurrent policy in other worlds."""
    updates: int = 20_000
    """In all, those before a resume included."""
    batch: int = 32
    """Episodes an update."""
    learning_rate: float = 4e-3
    """Of Adam, constant for the first half and then falling to 0 along a cosine."""
    entropy_weight: float = 0.02
    discount: float = 0.9
    """γ: credit for a push goes to the moves just before it. After 300 updates at 8x8, one seed each, the return in
    training was 1.1 with γ = λ = .9, and .66 with .97 and .95."""
    decay: float = 0.9
    """λ of the traces."""
    max_staleness: int = 0
    """How many updates the actors are behind."""
    levels: int = 100_000
    """Different levels to learn from, at most."""
    seed: int = 0
    """Of everything that is drawn."""

    @property
    def network(self) -> dict[str, Any]:
        """Options of sokoban's network."""
        return {name: getattr(self, name) for name in ("focus", "layers", "channels", "ticks", "units")}

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, its gradients clipped."""
        return falling(self.learning_rate, self.updates, self.updates - self.updates // 2)

    @property
    def loss(self) -> ActorCriticLoss:
        """Policy, value and entropy."""
        return ActorCriticLoss(self.discount, self.decay, entropy_weight=self.entropy_weight)

    @property
    def spec(self) -> WorkSpec:
        """The recipe of the actors' work, for workers anywhere."""
        return WorkSpec("coulda.recipes.impala:actors", {"recipe": asdict(self)})

    def training(self, executor: Executor) -> Impala:
        """The learner, of what the executor's actors do."""
        return Impala(executor, self.optimizer, self.loss, self.max_staleness)

    def work(self, environment: POMDP) -> Work:
        """Episodes of the actors there."""
        return episodes_of(environment, self.first_policy(), batch=self.batch, seed=self.seed)

    def make_environment(self) -> POMDP:
        """Where to learn."""
        if self.environment != "sokoban":
            return find_world(self.environment).environment
        size = find_size(self.preset)
        return sokoban(draw_levels(jax.random.key(self.seed), size, "policy", self.levels), size)

    def first_policy(self) -> ActorCritic:
        """π^0: a conv-LSTM for sokoban, a small recurrent network for all else."""
        key, _ = jax.random.split(jax.random.key(self.seed))
        if self.environment == "sokoban":
            return sokoban_policy(key, find_size(self.preset), **self.network)
        environment = find_world(self.environment).environment
        spaces: Any = environment.observation_space, environment.action_space
        if not hasattr(environment.action_space, "n"):
            raise CouldaError(f"IMPALA learns discrete actions here; '{self.environment}' has {spaces[1]}.")
        return RecurrentPolicy(key, *spaces, width=self.width)

    def make_evaluation(self, episodes: int) -> Callable[[Array, ActorCritic], dict[str, Any]]:
        """(key, policy) -> its mean return, in sokoban on levels that are held out, and the share that it solves."""
        if self.environment == "sokoban":
            return HeldOut.drawn(self.seed + 1, find_size(self.preset), episodes).solve_rate
        environment = find_world(self.environment).environment
        return lambda key, policy: {"held_out/return": on_policy(key, environment, policy, episodes).value}


RECIPES = {
    "7x7": ImpalaRecipe(),
    "8x8": ImpalaRecipe(preset="8x8", updates=28_000),
    "10x10": ImpalaRecipe(preset="10x10", layers=3, channels=32, ticks=2, units=256, focus=False, updates=1_000_000),
}
"""Of sokoban, by preset."""


def actors(recipe: dict[str, Any]) -> Work:
    """What the actors do, from a recipe as JSON has it."""
    made = ImpalaRecipe(**recipe)
    return made.work(made.make_environment())


def learn(
    recipe: ImpalaRecipe,
    executor: Executor,
    evaluation_episodes: int = 1000,
    checkpoint_every: int = 200,
    **running: Any,
) -> Trained:
    """Train by IMPALA; `running` are options of `coulda.trainer.train`, which keeps the best and the last.

    With no `evaluation_episodes` nothing is measured, and which is the best is not known.
    """
    impala = recipe.training(executor)
    _, key = jax.random.split(jax.random.key(recipe.seed))
    config, evaluate = TrainerConfig(recipe.updates, log_every=20, checkpoint_every=checkpoint_every), None
    if evaluation_episodes:
        measure = recipe.make_evaluation(evaluation_episodes)
        evaluate = lambda key, state: measure(key, state.policy)
        config = replace(config, best="held_out/return", maximize=True)
    return train(
        key,
        impala.step,
        impala.init(recipe.first_policy()),
        config,
        settings=asdict(recipe),
        evaluate=evaluate,
        **running,
    )


def reproduce(folder: Path, run: Path, recipe: ImpalaRecipe, seconds: float) -> None:
    """Learn for so many seconds of processor time, or until the last update; write `curve.json` and `curve.svg`.

    Checkpoints and the log are kept in `run`, and a run that is found there is gone on with: the seconds are those
    of all its parts.
    """
    start, before = time.perf_counter(), {"processor seconds": 0.0, "wall-clock seconds": 0.0}
    if (run / LOG).exists() and (folder / "curve.json").exists():
        before = json.loads((folder / "curve.json").read_bytes())
    # A busy machine shall not shorten the run. `train` finishes its step on SIGTERM, and saves.
    signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_PROF, max(seconds - before["processor seconds"], 1.0))
    trained = learn(recipe, InProcess(recipe.spec), folder=run, resume=True, progress=False)
    signal.setitimer(signal.ITIMER_PROF, 0)
    record = {
        "recipe": asdict(recipe),
        "status": trained.status,
        "devices": jax.local_device_count(),
        "processor seconds": before["processor seconds"] + time.process_time(),
        "wall-clock seconds": before["wall-clock seconds"] + time.perf_counter() - start,
        "load average": os.getloadavg()[2],
        "curve": held_out_curve(read_log(run / LOG)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "curve.json", record)
    replace_file(folder / "curve.svg", draw(record).encode())


def draw(record: dict[str, Any]) -> str:
    """Levels solved against frames."""
    rows, minutes = record["curve"], record["processor seconds"] / 60
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    axes.plot([row["frames"] / 1e6 for row in rows], [row["solved"] for row in rows])
    axes.set(xlabel="million frames", ylabel="held-out levels solved", ylim=(0, 1))
    axes.set_title(f"IMPALA from scratch, PO-Sokoban {record['recipe']['preset']}, {minutes:.0f} min of a core")
    return as_svg(figure)


if __name__ == "__main__":
    reproduce(Path("results/impala"), Path("runs/impala"), RECIPES["8x8"], seconds=3600)
