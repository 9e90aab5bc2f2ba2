"""IMPALA from scratch on PO-Sokoban: how far the model-free way gets in an hour of one core.

python -m coulda.studies.impala   # writes results/impala
"""

import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from coulda.drawing import as_svg, new_figure
from coulda.executors import InProcess
from coulda.recipes.impala import ImpalaRecipe, impala_recipe, learn
from coulda.recipes.running import Running
from coulda.storage import replace_file, replace_json
from coulda.trainer.logs import LOG, held_out_curve, read_log


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
    running = Running(folder=run, resume=True, evaluate_every=200, progress=False)
    trained = learn(recipe, InProcess(recipe.spec), running)
    signal.setitimer(signal.ITIMER_PROF, 0)
    record = {
        "recipe": asdict(recipe),
        "status": "done" if trained.stopped_by is None else "interrupted",
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
    """Held-out levels solved against frames, as SVG."""
    rows, minutes = record["curve"], record["processor seconds"] / 60
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    axes.plot([row["frames"] / 1e6 for row in rows], [row["solved"] for row in rows])
    axes.set(xlabel="million frames", ylabel="held-out levels solved", ylim=(0, 1))
    axes.set_title(f"IMPALA from scratch, PO-Sokoban {record['recipe']['world']}, {minutes:.0f} min of a core")
    return as_svg(figure)


if __name__ == "__main__":
    reproduce(Path("results/impala"), Path("runs/impala"), impala_recipe("8x8", "desktop"), seconds=3600)
