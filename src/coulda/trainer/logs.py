"""What a run tells while it trains: a line on the screen, JSON lines on the disk, TensorBoard if wanted."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coulda.errors import CouldaError
from coulda.extras import require
from coulda.notebooks import in_notebook
from coulda.progress import notebook_bar
from coulda.storage import LOG, replace_file

HELD_OUT = "held_out/"
"""How the metrics begin that are measured on data which nothing was trained on."""


class Log(Protocol):
    """Takes the metrics of a step."""

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Tell `metrics`, reached after `step` steps."""
        ...


@contextmanager
def open_logs(folder: Path | None, start: int, steps: int, tensorboard: bool, progress: bool) -> Iterator[Log]:
    """A log to all that was asked for; what earlier runs told of steps after `start` is forgotten."""
    with ExitStack() as stack:
        logs: list[Log] = []
        if progress:
            logs.append(stack.enter_context(_screen(start, steps)))
        if folder is not None:
            logs.append(stack.enter_context(_json_lines(folder / LOG, start)))
        if tensorboard:
            if folder is None:
                raise CouldaError("tensorboard=True needs a folder to write to; give folder=")
            logs.append(stack.enter_context(_tensorboard(folder / "tensorboard", start)))

        def tell(step: int, metrics: dict[str, float]) -> None:
            for log in logs:
                log(step, metrics)

        yield tell


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; the last may have been cut by a kill, and is then left out."""
    data = path.read_bytes() if path.exists() else b""
    lines = data.splitlines()
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(_decoded(line))
        except (msgspec.DecodeError, KeyError) as error:
            if number == len(lines) and not data.endswith(b"\n"):
                continue
            raise CouldaError(f"{path}, line {number}: is no line of a log ({error}); remove it to go on") from error
    return decoded


def _decoded(line: bytes) -> dict[str, Any]:
    """Numbers by name, those of a step; None where an evaluation was not finite."""
    found = msgspec.json.decode(line, type=dict[str, int | float | None])
    found["step"]
    return found


def held_out_curve(log: list[dict[str, Any]]) -> list[dict[str, float]]:
    """A row an evaluation: updates, frames and seconds of training until then, and what was found on held-out data."""
    rows, step, frames, seconds = [], 0, 0.0, 0.0
    for line in log:
        if "steps_per_second" in line:
            taken = line["step"] - step
            step, frames = line["step"], frames + taken * line.get("frames", 0.0)
            seconds += taken / line["steps_per_second"]
        found = {name.removeprefix(HELD_OUT): value for name, value in line.items() if name.startswith(HELD_OUT)}
        if found:
            rows.append({"updates": step, "frames": round(frames), "seconds": round(seconds, 1), **found})
    return rows


@contextmanager
def _json_lines(path: Path, start: int) -> Iterator[Log]:
    kept = [line for line in read_log(path) if line.get("step", 0) <= start]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
    with path.open("ab", buffering=0) as file:

        def tell(step: int, metrics: dict[str, float]) -> None:
            file.write(msgspec.json.encode({"step": step, **metrics}) + b"\n")

        yield tell


@contextmanager
def _tensorboard(folder: Path, start: int) -> Iterator[Log]:
    writer = require("tensorboardX", extra="tensorboard").SummaryWriter(str(folder), purge_step=start + 1)

    def tell(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    try:
        yield tell
    finally:
        writer.close()


@contextmanager
def _screen(start: int, steps: int) -> Iterator[Log]:
    told_in_words = lambda metrics: "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    if in_notebook():
        with notebook_bar("training", steps) as show:
            yield lambda step, metrics: show(step, told_in_words(metrics))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=steps, completed=start, told="compiling")

        def tell(step: int, metrics: dict[str, float]) -> None:
            progress.update(task, completed=step, told=told_in_words(metrics))

        yield tell
