"""The classifier two-sample test of the benchmark in JAX: how well a two-layer MLP tells draws from reference draws.

The classifier and its training are scikit-learn's `MLPClassifier` as sbibm 1.1.0 sets it: two layers of ten times the
dimension, batches of 200, Adam, and no more than 1,000 passes or until ten in a row gained less than 10⁻⁴. It takes
some quarter of the processor's time of `peers/c2st.py`, which asks scikit-learn itself; only chance is another.

    python -m benchmarks.c2st FOLDER NAME 3     # scikit-learn's and three seeds of ours, on one observation
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.harness import run_peer

FOLDS, BATCH, MOST, PATIENCE = 5, 200, 1000, 10
RATE, DECAY, TOLERANCE, EPSILON = 1e-3, 1e-4, 1e-4, 1e-8
FIRST, SECOND = 0.9, 0.999
"""Of Adam's moments."""

Layers = list[tuple[Array, Array]]


def c2st(reference: np.ndarray, draws: np.ndarray, seed: int = 1) -> float:
    """Accuracy over five folds, of which 0.5 is the best; both are scaled by mean and deviation of the reference."""
    mean, scale = reference.mean(0), reference.std(0, ddof=1)
    points = ((np.concatenate([reference, draws]) - mean) / scale).astype(np.float32)
    drawn = np.repeat([0, 1], [len(reference), len(draws)]).astype(np.float32)
    folds = np.array_split(np.random.default_rng(seed).permutation(len(points)), FOLDS)
    return float(np.mean([_accuracy(points, drawn, fold, seed) for fold in folds]))


def scores(reference: Path, draws: Path, lines: Path) -> list[float]:
    """Of each observation; each is added to a file of lines, so that this can be stopped and begun again."""
    known = [float(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    for pair in list(zip(_draws(reference), _draws(draws), strict=True))[len(known) :]:
        known.append(c2st(*pair))
        with lines.open("a") as file:
            file.write(f"{known[-1]}\n")
    return known


def _draws(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as file:
        return file["draws"]


def _accuracy(points: np.ndarray, drawn: np.ndarray, fold: np.ndarray, seed: int) -> float:
    """On one fold, of a classifier that was trained on the others."""
    layers = _trained(jnp.asarray(np.delete(points, fold, 0)), jnp.asarray(np.delete(drawn, fold)), seed)
    return float(jnp.mean((_logit(layers, jnp.asarray(points[fold])) > 0) == drawn[fold]))


def _trained(points: Array, drawn: Array, seed: int) -> Layers:
    order, size = np.random.default_rng(seed), points.shape[1]
    layers = _begun(jax.random.key(seed), (size, 10 * size, 10 * size, 1))
    nothing = jax.tree.map(jnp.zeros_like, layers)
    state, best, stale = (layers, nothing, nothing, jnp.zeros(())), np.inf, 0
    for _ in range(MOST):
        state, loss = _pass(state, order.permutation(len(points)), points, drawn)
        stale = stale + 1 if loss > best - TOLERANCE else 0
        best = min(best, float(loss))
        if stale > PATIENCE:
            break
    return state[0]


def _begun(key: Array, sizes: tuple[int, ...]) -> Layers:
    """Weights and biases uniform after Glorot."""
    layers = []
    for one, (seen, made) in zip(jax.random.split(key, len(sizes) - 1), pairwise(sizes), strict=True):
        bound = (6 / (seen + made)) ** 0.5
        both = jax.random.uniform(one, (seen + 1, made), minval=-bound, maxval=bound)
        layers.append((both[:-1], both[-1]))
    return layers


def _logit(layers: Layers, points: Array) -> Array:
    for weights, bias in layers[:-1]:
        points = jax.nn.relu(points @ weights + bias)
    return (points @ layers[-1][0] + layers[-1][1])[:, 0]


def _loss(layers: Layers, points: Array, drawn: Array) -> Array:
    logit = _logit(layers, points)
    decay = DECAY / 2 * sum(jnp.sum(weights**2) for weights, _ in layers) / len(points)
    return jnp.mean(jnp.logaddexp(0, logit) - drawn * logit) + decay


@jax.jit
def _pass(state: Any, order: Array, points: Array, drawn: Array) -> tuple[Any, Array]:
    """One pass over all points, in an order that NumPy drew (XLA sorts slowly), and the mean of its losses."""

    def step(state: Any, rows: Array) -> tuple[Any, Array]:
        layers, first, second, count = state
        loss, slope = jax.value_and_grad(_loss)(layers, points[rows], drawn[rows])
        count = count + 1
        first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, first, slope)
        second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, second, slope)
        rate = RATE * jnp.sqrt(1 - SECOND**count) / (1 - FIRST**count)
        move = lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPSILON)
        return (jax.tree.map(move, layers, first, second), first, second, count), loss

    whole = len(points) // BATCH
    state, losses = jax.lax.scan(step, state, order[: whole * BATCH].reshape(whole, BATCH))
    return state, losses.mean()


def main() -> None:
    """Print what both say of the first observation."""
    folder, name, seeds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    reference, draws = (_draws(folder / f"{one}.npz")[0] for one in ("reference", name))
    ours = [c2st(reference, draws, seed) for seed in range(1, seeds + 1)]
    lines = folder / f"{name}-c2st-scikit-learn.txt"
    files = [str(path) for path in (folder / "reference.npz", folder / f"{name}.npz", lines)]
    print(json.dumps({"ours": ours, "scikit-learn": run_peer("sbi", "c2st.py", *files, "1")["c2st"]}))


if __name__ == "__main__":
    main()
