"""`HiddenFit` against dynamax's expectation maximization: nats per observation on the same episodes, three seeds each.

As many rounds and starts on both sides, each with its own guesses; the best of the starts counts. dynamax's priors are
its defaults, which are weak.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import run_peer, sized
from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.fitting import HiddenFit, fit
from coulda.hindsight import Exact
from coulda.pomdp import batched

EPISODES, STEPS, ROUNDS, STARTS, SEEDS = sized((60, 20, 60, 2, 3), (8, 4, 2, 1, 1))


def chain(seed: int) -> EpisodeLog:
    """Three hidden states that last, and four things to see."""
    rng = np.random.default_rng(seed)
    moves = 0.85 * np.eye(3) + 0.15 * rng.dirichlet(np.ones(3), 3)
    shows = rng.dirichlet(np.full(4, 0.4), 3)
    state = rng.integers(0, 3, EPISODES)
    seen = []
    for _ in range(STEPS + 1):
        seen.append([rng.choice(4, p=shows[s]) for s in state])
        state = np.array([rng.choice(3, p=moves[s]) for s in state])
    return _log(np.array(seen).T, gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(1))


def system(seed: int) -> EpisodeLog:
    """Two hidden numbers that turn, seen as two through noise."""
    rng = np.random.default_rng(seed)
    turn = 0.95 * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    look = rng.normal(size=(2, 2))
    state, seen = rng.normal(size=(EPISODES, 2)), []
    for _ in range(STEPS + 1):
        seen.append(state @ look.T + 0.5 * rng.normal(size=(EPISODES, 2)) + 1.0)
        state = state @ turn.T + 0.3 * rng.normal(size=(EPISODES, 2))
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return _log(np.stack(seen, 1), box, gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32))


def _log(seen: np.ndarray, observations: gymnasium.Space, actions: gymnasium.Space) -> EpisodeLog:
    """There is nothing to do, and nothing is paid."""
    nothing = np.zeros(EPISODES * STEPS, np.float32)
    discrete = isinstance(actions, gymnasium.spaces.Discrete)
    action = np.zeros(EPISODES * STEPS, int) if discrete else nothing[:, None]
    flat = seen.reshape(-1, *seen.shape[2:])
    flat = flat if discrete else flat.astype(np.float32)
    lengths = np.full(EPISODES, STEPS)
    return checked_log(Schema(observations, actions), flat, action, nothing, lengths, np.ones(EPISODES, bool))


def main() -> dict[str, Any]:
    made = {f"finite-{seed}-3": chain(seed) for seed in range(SEEDS)}
    made |= {f"gaussian-{seed}-2": system(seed) for seed in range(SEEDS)}
    ours = {}
    for name, log in made.items():
        states, start = int(name.rpartition("-")[2]), time.time()
        kind = "gumbel_max" if name.startswith("finite") else "location_scale"
        fitted = fit(jax.random.key(0), log, HiddenFit(states, kind, rounds=ROUNDS, starts=STARTS, folds=2))
        source = fitted.source
        assert isinstance(source, Exact)
        evidence = jnp.sum(jax.jit(lambda each, source=source: batched(source.log_evidence, each))(log.padded()))
        ours[name] = {"nats": float(evidence) / (EPISODES * (STEPS + 1)), "seconds": time.time() - start}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.npz"
        arrays = {
            name: log.observation.reshape(EPISODES, STEPS + 1, *log.observation.shape[1:]) for name, log in made.items()
        }
        np.savez(path, allow_pickle=False, **arrays)
        theirs = run_peer("dynamax", "dynamax_em.py", str(path), str(ROUNDS), str(STARTS))
    apart = {name: ours[name]["nats"] - theirs[name]["nats"] for name in ours}
    return {"coulda": ours, "dynamax": theirs, "ours less theirs, nats": apart, "least": min(apart.values())}
