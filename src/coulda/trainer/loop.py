"""`train`: run a pure step many times, and lose nothing when it is stopped; `descend`, which most steps end with."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.storage import exclusive
from coulda.trainer.checkpoints import (
    best_checkpoint,
    checkpoint_path,
    checkpoint_steps,
    load_checkpoint,
    plain,
    prune,
    remove_after,
    save_checkpoint,
)
from coulda.trainer.logs import Log, open_logs

if TYPE_CHECKING:  # whoever trains imports it: a first table is waited for
    import optax

Step = Callable[[Array, Any], tuple[Any, Any]]
"""(key, state) -> the next state, and what a person wants to know of the step."""
Evaluate = Callable[[Array, Any], Mapping[str, Any]]
"""(key, state) -> numbers by name, measured on what was held out."""

Module = TypeVar("Module")


class NonFiniteError(CouldaError):
    """Training met a NaN or an infinity; the message names the step and the last good checkpoint."""


@dataclass(frozen=True)
class TrainerConfig:
    """How long to train, and how often to tell and to keep what was reached."""

    steps: int
    """Steps in all, those before a resume included."""
    log_every: int = 10
    """Steps per line of the log, which tells means over them."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; one more is kept at the end."""
    keep_last: int = 3
    """How many of the newest checkpoints to keep."""
    best: str | None = None
    """Also keep the checkpoint that is best by this metric, of `evaluate` or of the step's info."""
    maximize: bool = False
    """Whether more of the metric is better."""
    patience: int | None = None
    """Stop early, after so many checkpoints that are not better by `best` than one before them."""

    def __post_init__(self) -> None:
        """All counts are positive."""
        for name in ("steps", "log_every", "checkpoint_every", "keep_last"):
            if (value := getattr(self, name)) < 1:
                raise CouldaError(f"{name} is {value}; it must be at least 1")
        if self.patience is not None and (self.best is None or self.patience < 1):
            raise CouldaError(f"patience is {self.patience}; it is at least 1, and needs `best` to wait for")


class Stopped(KeyboardInterrupt):
    """A training that was stopped before its end, by the signal of this number."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped after {step} updates")
        self.number = number


@dataclass(frozen=True)
class Trained:
    """Where training ended: after `step` steps, all that there was patience for, or fewer where a signal stopped it."""

    state: Any
    step: int
    stopped_by: int | None = None
    """The number of the signal, Ctrl-C's or SIGTERM's."""
    best: Any = None
    """The state of the best checkpoint by `TrainerConfig.best`, where that was asked for."""

    def check_finished(self) -> None:
        """Raise `Stopped` where it did not come to its end: what it has is not what was asked for."""
        if self.stopped_by is not None:
            raise Stopped(self.step, self.stopped_by)


def train(
    key: Array,
    step: Step,
    state: Any,
    config: TrainerConfig,
    *,
    folder: Path | None = None,
    settings: Any = None,
    evaluate: Evaluate | None = None,
    resume: bool = False,
    from_step: int | None = None,
    tensorboard: bool = False,
    progress: bool = True,
) -> Trained:
    """Run `state, info = step(key, state)` until `config.steps`, from `state` or from a checkpoint.

    The n-th step is given `fold_in(key, n)` and the state is all that passes from one to the next, so a run that
    is stopped and resumed ends bit for bit where it would have. Ctrl-C and SIGTERM finish the step, save and
    return; a second Ctrl-C gives up at once. A NaN or an infinity in the info, or a new one in the state, raises
    `NonFiniteError`, and what it touched is never saved.

    Args:
        key: the PRNG key of the whole run. Consumed.
        step: pure; jit it, and donate the state if memory is short (`eqx.filter_jit(step, donate="all-except-first")`).
            `state` is what the next step needs, a pytree of arrays; `info` a pytree of finite scalars for people.
            Where it has `frames`, the log also tells frames per second.
        state: the state before the first step, which is also the template of those in checkpoints.
        config: how long, and how often.
        folder: where checkpoints and `log.jsonl` go, held against other processes meanwhile; None keeps nothing.
        settings: whatever made `step` and `state`; stored, and on resuming it must be the same.
        evaluate: `(key, state) -> metrics`, run before each checkpoint.
        resume: go on from the newest checkpoint in `folder`, if there is any.
        from_step: go on from the checkpoint of this step; later ones are removed.
        tensorboard: also write TensorBoard events (extra `tensorboard`).
        progress: show progress on the screen.
    """
    start = 0
    with ExitStack() as stack:
        if folder is not None:
            folder = Path(folder)
            stack.enter_context(exclusive(folder))
            if resume or from_step is not None:
                start, state = _resume(folder, key, state, settings, from_step)
            elif steps := checkpoint_steps(folder):
                raise FileExistsError(
                    f"{folder} holds a run of {steps[-1]} steps; "
                    "pass resume=True to go on with it (--resume), or name another folder"
                )
        run = _Run(key, step, state, config, folder, settings, evaluate, start)
        run.remember_best()
        log = stack.enter_context(open_logs(folder, start, config.steps, tensorboard, progress))
        signals = stack.enter_context(_interruptions())
        while not run.done and not signals:
            run.advance(log)
        run.finish(log)
    return Trained(run.state, run.step, None if run.done else signals[0], run.best_state)


class _Run:
    """The loop's own state: the user's, the count, and the infos that were not looked at yet."""

    def __init__(self, key, step, state, config, folder, settings, evaluate, start):
        self.key, self.state, self.step = key, state, start
        self.config, self.folder, self.settings = config, folder, settings
        self.step_key, self.evaluation_key = jax.random.split(key)
        self._step, self._evaluate = step, evaluate
        self._infos: list[Any] = []
        self._since_checkpoint: list[dict[str, float]] = []
        self._saved = start
        self.best_state: Any = None
        self._best: tuple[float, int] = (np.inf, start)
        self._odd_at_start = int(_count_non_finite(state))
        self._clock = time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether all steps were taken, or waiting for a better checkpoint took too long."""
        patience = self.config.patience
        waited = 0 if patience is None else self.step - self._best[1] - patience * self.config.checkpoint_every
        return self.step >= self.config.steps or (patience is not None and waited >= 0)

    def remember_best(self) -> None:
        """Of the run that is resumed."""
        found = None if self.folder is None else best_checkpoint(self.folder, self.config.best, self.config.maximize)
        if found is not None:
            score, step = found
            assert self.folder is not None
            self._best = score, step
            self.best_state = load_checkpoint(self.folder, self.state, step).state

    def advance(self, log: Log) -> None:
        """One step; and a line of the log, or a checkpoint, where one is due."""
        self.state, info = self._step(jax.random.fold_in(self.step_key, self.step), self.state)
        self._infos.append(info)
        self.step += 1
        due = self.step % self.config.checkpoint_every == 0
        # Infos are fetched only here, so that between two lines of the log the device need not wait for Python.
        if due or self.step % self.config.log_every == 0:
            self._tell(log)
        if due:
            self._save(log)

    def finish(self, log: Log) -> None:
        """Tell and save what is left."""
        if self._infos:
            self._tell(log)
        if self.step > self._saved:
            self._save(log)

    def _tell(self, log: Log) -> None:
        rows = [_named_scalars(info) for info in jax.device_get(self._infos)]
        first = self.step - len(rows) + 1
        for number, row in enumerate(rows, first):
            for name, value in row.items():
                if not np.isfinite(value):
                    raise NonFiniteError(f"step {number}: {name} is {value}; {self._last_good()}")
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        now = time.perf_counter()
        means["steps_per_second"] = len(rows) / (now - self._clock)
        if "frames" in means:
            means["frames_per_second"] = means["frames"] * means["steps_per_second"]
        log(self.step, means)
        self._infos, self._clock = [], now
        self._since_checkpoint += rows

    def _save(self, log: Log) -> None:
        if int(_count_non_finite(self.state)) > self._odd_at_start:
            raise NonFiniteError(f"step {self.step}: the state holds a NaN or an infinity; {self._last_good()}")
        rows, self._since_checkpoint = self._since_checkpoint, []
        metrics = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if self._evaluate is not None:
            found = self._evaluate(jax.random.fold_in(self.evaluation_key, self.step), self.state)
            metrics |= (evaluated := _named_scalars(jax.device_get(dict(found))))
            log(self.step, evaluated)
        best = self.config.best
        if best is not None and best not in metrics:
            raise CouldaError(f"best='{best}' is not among the metrics {sorted(metrics)}; name one of them")
        if best is not None and (score := -metrics[best] if self.config.maximize else metrics[best]) < self._best[0]:
            self._best, self.best_state = (score, self.step), self.state
        if self.folder is not None:
            save_checkpoint(self.folder, self.step, self.key, self.state, metrics, self.settings)
            prune(self.folder, self.config.keep_last, best, self.config.maximize)
        self._saved, self._clock = self.step, time.perf_counter()

    def _last_good(self) -> str:
        steps = checkpoint_steps(self.folder) if self.folder is not None else []
        if self.folder is None or not steps:
            return "no checkpoint was saved before it"
        return f"the last good checkpoint is {checkpoint_path(self.folder, steps[-1])}"


def _resume(folder: Path, key: Array, state: Any, settings: Any, from_step: int | None) -> tuple[int, Any]:
    if from_step is None and not checkpoint_steps(folder):
        return 0, state
    found = load_checkpoint(folder, state, from_step)
    if not np.array_equal(jax.random.key_data(found.key), jax.random.key_data(key)):
        raise CouldaError(f"{folder} was trained from another key; resume with the key, or seed, that it began with")
    if found.settings != (given := plain(settings)):
        raise CouldaError(
            f"{folder} was trained with settings {found.settings}, but is resumed with {given}; "
            "resume with the same, or train in another folder"
        )
    remove_after(folder, found.step)
    return found.step, found.state


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """What Ctrl-C and SIGTERM put their numbers into; the second time they do what they always do."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, _: Any) -> None:
        signals.append(number)
        restore()

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield signals
    finally:
        restore()


def first_state(optimizer: "optax.GradientTransformation", module: Any) -> Any:
    """The optimizer's state before its first step on the floating-point arrays of `module`."""
    return optimizer.init(eqx.filter(module, eqx.is_inexact_array))


def descend(optimizer: "optax.GradientTransformation", gradient: Any, state: Any, module: Module) -> tuple[Module, Any]:
    """The module after one step against `gradient`, and the optimizer's state after it."""
    parameters = eqx.filter(module, eqx.is_inexact_array)
    # Optax counts in integers and promotes them, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(gradient, state, parameters)
    return eqx.apply_updates(module, updates), state


def _named_scalars(info: Any) -> dict[str, float]:
    leaves = jax.tree_util.tree_leaves_with_path(info)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): float(leaf) for path, leaf in leaves}


@jax.jit
def _count_non_finite_arrays(leaves: list[Array]) -> Array:
    return sum((jnp.sum(~jnp.isfinite(leaf)) for leaf in leaves), start=jnp.int32(0))


def _count_non_finite(tree: Any) -> Array:
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array | np.ndarray))
    return _count_non_finite_arrays([leaf for leaf in arrays if jnp.issubdtype(leaf.dtype, jnp.inexact)])
