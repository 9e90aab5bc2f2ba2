"""`Amortized` against the package sbi: C2ST on ten observations of two tasks, with 10⁴ and 10⁵ simulations, and time.

Other tasks of the benchmark whose data are there (`benchmarks.sbibm`) are tried with 10⁴, against what is published.

Every piece is kept in `.cache/amortized`, so that the benchmark can be stopped and begun again. Both learn from the
same pairs; time is of the processor, since other work may go on beside it, with compilation and our simulation, and
without theirs.

    python -m benchmarks amortized                      # two tasks, both sizes: hours
    python -m benchmarks.amortized two_moons 10000      # one of them
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.c2st import scores
from benchmarks.harness import ROOT, TINY, run_peer, sized
from benchmarks.sbibm import PUBLISHED, TASKS, has_data, observed, reference
from coulda.hindsight import train_hindsight
from coulda.hindsight.pairs import load_pairs
from coulda.hindsight.training import PAIRS
from coulda.policies import AnyAction
from coulda.pomdp import Episode
from coulda.storage import replace_json

BESIDE = ("two_moons", "gaussian_linear")
"""Tasks on which sbi runs, too."""
SIMULATIONS = sized((10_000, 100_000), (256,))
DRAWS = sized(10_000, 16)
ESTIMATOR = "nsf"
"""Of sbi: the neural spline flow of the benchmark."""
LIMIT = "360"
"""Seconds of the processor after which sbi's training is stopped, with the best that it has."""
SEED = 1


def main() -> dict[str, Any]:
    """All of it."""
    found = {f"{task}, {count:,}": measure(task, count) for task in BESIDE for count in SIMULATIONS}
    others = [task for task in TASKS if task not in BESIDE and has_data(task)]
    return found | {f"{task}, {SIMULATIONS[0]:,}": measure(task, SIMULATIONS[0]) for task in others}


def measure(task: str, count: int) -> dict[str, Any]:
    """One task with so many simulations: C2ST and seconds of each, and what is published."""
    folder = ROOT / ".cache" / "amortized" / f"{task}-{count}{'-tiny' * TINY}"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "observations.npz", x=observed(task))
    np.savez(folder / "reference.npz", draws=reference(task))
    found = {"ours": _kept(folder / "ours.json", lambda: _ours(task, count, folder))}
    if task in BESIDE:
        peer = lambda: run_peer("sbi", "sbi_npe.py", task, str(folder), ESTIMATOR, str(DRAWS), LIMIT)
        found[f"sbi-{ESTIMATOR}"] = _kept(folder / "sbi.json", peer)
    accuracies = {name: scores(*(folder / one for one in _compared(name))) for name in found}
    return {
        "C2ST": {name: round(float(np.mean(values)), 4) for name, values in accuracies.items()},
        "C2ST of each observation": accuracies,
        "published C2ST of NPE": PUBLISHED[task].get(count),
        **found,
    }


def _compared(name: str) -> tuple[str, str, str]:
    """The reference, whose draws they are compared with, and where the scores are kept."""
    return "reference.npz", f"{name}.npz", f"{name}-c2st.txt"


def _kept(path: Path, make: Any) -> Any:
    """What a file has, or what is made and then kept there."""
    if not path.exists():
        replace_json(path, make())
    return json.loads(path.read_text())


def _ours(task: str, count: int, folder: Path) -> dict[str, Any]:
    """Train, draw, and write the pairs for the peer."""
    model = TASKS[task]()
    start, begun = time.perf_counter(), time.process_time()
    made = train_hindsight(
        jax.random.key(SEED), model, simulations=count, steps=1, folder=folder / "net", progress=False
    )
    trained, worked = time.perf_counter() - start, time.process_time() - begun
    pairs, _ = load_pairs(folder / "net" / PAIRS, model, AnyAction.of(model))
    np.savez(folder / "pairs.npz", theta=pairs.state[:, 0], x=pairs.episode.observation[:, 0])
    draw = eqx.filter_jit(
        lambda source, key, episode: jax.vmap(model.initial)(source.infer_many(key, episode, DRAWS)[0].initial)
    )
    found, times = [], []
    for number, x in enumerate(observed(task)):
        seen = jnp.asarray(np.stack([x, x]), jnp.float32)  # the second is past h_1
        episode = Episode(seen, jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.ones(1, bool), jnp.zeros(1))
        start = time.process_time()
        found.append(np.asarray(draw(made.source, jax.random.key(number), episode)))
        times.append(time.process_time() - start)
    np.savez(folder / "ours.npz", draws=np.stack(found))
    return {
        "seconds of training": trained,
        "processor seconds of training": worked,
        "draws a processor second": DRAWS / float(np.median(times[1:])),
        "passes": made.metadata.passes,
        "held-out loss": made.metadata.held_out,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2])), indent=1))
