"""What a run needs beside its recipe: where it is kept, what is shown, and the optimizer that recipes share."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import optax
from jax import Array

from coulda.trainer import Trained, TrainerConfig, train
from coulda.trainer.loop import Evaluate


@dataclass(frozen=True)
class Running:
    """The settings of a run, not of what it makes: all of it may change when the run is resumed."""

    folder: Path | None = None
    """The folder where checkpoints and log.jsonl go; without one nothing is kept."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder, bit for bit."""
    from_step: int | None = None
    """Go on from the checkpoint after so many updates, where the newest is damaged; later ones are removed."""
    evaluate_every: int = 400
    """Updates between evaluations, and checkpoints."""
    evaluation_episodes: int = 1000
    """Episodes per evaluation, in PO-Sokoban on levels that are held out."""
    tensorboard: bool = False
    """Also write TensorBoard events into the folder."""
    progress: bool = True
    """Show progress on the screen."""

    @classmethod
    def of(cls, preset: str, **options: Any) -> "Running":
        """The options of a preset: its evaluations are small where it is."""
        return cls(evaluation_episodes=64 if preset == "smoke" else 1000, **options)

    def train(
        self,
        key: Array,
        training: Any,
        first: Any,
        updates: int,
        settings: Any,
        evaluate: Evaluate | None,
        best: str | None = None,
    ) -> Trained:
        """`coulda.trainer.train` with these options.

        Args:
            key: the key of the whole run. Consumed.
            training: has `init` and `step`.
            first: what is trained, before it learns.
            updates: those before a resume included.
            settings: what a resumed run must share with the one before it.
            evaluate: measures the state at each checkpoint, or None.
            best: the metric of `evaluate` of which more is better, by which the best checkpoint is kept.
        """
        config = TrainerConfig(
            updates, log_every=20, checkpoint_every=self.evaluate_every, best=best if evaluate else None, maximize=True
        )
        return train(
            key,
            training.step,
            training.init(first),
            config,
            folder=self.folder,
            settings=settings,
            evaluate=evaluate,
            resume=self.resume,
            from_step=self.from_step,
            tensorboard=self.tensorboard,
            progress=self.progress,
        )


@cache
def falling(rate: float, updates: int, last: int) -> optax.GradientTransformation:
    """Adam with clipped gradients, its rate constant and then falling to 0 over the `last` updates.

    One object for the same numbers, so that seeds share their compiled programs.
    """
    schedule = optax.join_schedules(
        [optax.constant_schedule(rate), optax.cosine_decay_schedule(rate, max(last, 1))], [updates - last]
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
