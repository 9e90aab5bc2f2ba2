"""Checkpoints of a run: folders `step-…` under one roof, each an artifact that was committed whole."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.storage import ArtifactError, Kind, load_tree, read_artifact, save_tree, write_artifact

_STATE = "state.safetensors"


class CheckpointMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint says about itself, beside its arrays."""

    step: int
    key: list[int]
    generator: str
    """Data of the run's PRNG key, and the name of its generator."""
    metrics: dict[str, float | None]
    """None where an evaluation was not finite, for which JSON has no number."""
    settings: Any
    versions: dict[str, str]


CHECKPOINT = Kind("checkpoint", 1, CheckpointMetadata)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    step: int
    key: Array
    state: Any
    metrics: dict[str, float]
    settings: Any


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lives."""
    return Path(folder) / f"step-{step:010d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in `folder`, good or not, in order."""
    names = (re.fullmatch(r"step-(\d{10})", path.name) for path in Path(folder).glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def save_checkpoint(folder: Path, step: int, key: Array, state: Any, metrics: dict[str, float], settings: Any) -> None:
    """Commit a checkpoint; `settings` is anything that msgspec can write as JSON."""
    metadata = CheckpointMetadata(
        step=step,
        key=np.asarray(jax.random.key_data(key)).tolist(),
        generator=str(jax.random.key_impl(key)),
        metrics={name: value if np.isfinite(value) else None for name, value in metrics.items()},
        settings=plain(settings),
        versions={"jax": jax.__version__, "numpy": np.__version__},
    )
    write_artifact(checkpoint_path(folder, step), CHECKPOINT, [(_STATE, save_tree(state))], metadata)


def load_checkpoint(folder: Path, template: Any, step: int | None = None) -> Checkpoint:
    """The newest checkpoint in `folder`, or the one of `step`, in the structure of `template`.

    A damaged or foreign one raises `ArtifactError`, which also names the newest good one.
    """
    steps = checkpoint_steps(folder)
    if not steps or step not in (None, *steps):
        wanted = "a checkpoint" if step is None else f"the checkpoint of step {step}"
        raise ArtifactError(f"{folder}: expected {wanted}, found those of steps {steps}; give the folder of a run")
    step = steps[-1] if step is None else step
    try:
        return _load(checkpoint_path(folder, step), step, template)
    except ArtifactError as error:
        good = next((other for other in reversed(steps) if other != step and _is_good(folder, other)), None)
        found = f"the newest good checkpoint is step={good}; --from-step {good} goes on with it"
        offer = "no other checkpoint is good" if good is None else found
        raise ArtifactError(f"{error}; {offer}") from error


def prune(folder: Path, keep_last: int, best: str | None, maximize: bool) -> None:
    """Remove all checkpoints but the last few and the best by its metric."""
    steps = checkpoint_steps(folder)
    keep: set[int | None] = set(steps[-keep_last:])
    if best is not None:
        found = best_checkpoint(folder, best, maximize)
        keep.add(None if found is None else found[1])
    for step in steps:
        if step not in keep:
            _remove(folder, step)


def best_checkpoint(folder: Path, metric: str | None, maximize: bool) -> tuple[float, int] | None:
    """Score and step of the checkpoint with the least `metric`, or the greatest, which scores by its negative.

    The earlier of equals; None where there is none, or no metric.
    """
    if metric is None:
        return None
    scores = {}
    for step in checkpoint_steps(folder):
        try:
            metrics = read_artifact(checkpoint_path(folder, step), CHECKPOINT).metadata.metrics
        except ArtifactError:
            continue
        if (value := metrics.get(metric)) is not None:
            scores[step] = -value if maximize else value
    return min(((score, step) for step, score in scores.items()), default=None)


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints after `step`: the run goes on from there."""
    for later in checkpoint_steps(folder):
        if later > step:
            _remove(folder, later)


def plain(settings: Any) -> Any:
    """Settings as they come back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(settings))


def _load(path: Path, step: int, template: Any) -> Checkpoint:
    artifact = read_artifact(path, CHECKPOINT)
    found = artifact.metadata
    if found.step != step:
        raise ArtifactError(f"{path}: expected the checkpoint of step {step}, found that of {found.step}; rename it")
    try:
        state = load_tree(artifact.only(_STATE), template)
    except ArtifactError as error:
        raise ArtifactError(f"{path / _STATE}: {error}") from error
    try:
        key = jax.random.wrap_key_data(jnp.asarray(found.key, jnp.uint32), impl=found.generator)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArtifactError(f"{path}: its key cannot be built: {error}") from error
    metrics = {name: np.nan if value is None else value for name, value in found.metrics.items()}
    return Checkpoint(step, key, state, metrics, found.settings)


def _is_good(folder: Path, step: int) -> bool:
    try:
        read_artifact(checkpoint_path(folder, step), CHECKPOINT).verify()
    except ArtifactError:
        return False
    return True


def _remove(folder: Path, step: int) -> None:
    """Rename first: killed half way, what is left is not mistaken for a damaged checkpoint."""
    path = checkpoint_path(folder, step)
    doomed = path.with_name(f".{path.name}.removed.partial")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed)
