"""`Particles` against cuthbert's bootstrap filter: 256 episodes of 20 steps with 1,000 particles, on one model.

Ours also draws a path of each episode's genealogy and counts the first noises that survive; theirs is the filter alone.
With the 20 moves of whole paths that `Particles` makes by default the time is given apart. Compilation is XLA's; what
Python does before it, tracing, is given beside it.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import run_peer, sized
from coulda.hindsight import Particles
from coulda.noise import Normal
from coulda.pomdp import POMDP, ActionMechanism, Episode, GumbelMaxChoice

EPISODES, STEPS, PARTICLES = sized((256, 20, 1000), (4, 3, 10))
ROUNDS, REPEATS = sized((2, 5), (1, 1))


class Wave(POMDP):
    """s' = 0.9 s + sin s + 0.5 u, seen through noise of 0.3."""

    horizon: int = eqx.field(static=True, default=STEPS)
    action_mechanism: ActionMechanism = GumbelMaxChoice(1)

    @property
    def observation_space(self) -> gymnasium.Space:
        """A number."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """There is nothing to do."""
        return gymnasium.spaces.Discrete(1)

    @property
    def initial_noise(self) -> Normal:
        """Standard normal."""
        return Normal()

    @property
    def transition_noise(self) -> Normal:
        """Standard normal."""
        return Normal()

    @property
    def observation_noise(self) -> Normal:
        """0.3 u."""
        return Normal(0.0, 0.3)

    def initial(self, u: Any) -> Any:
        """The noise."""
        return u

    def transition(self, state: Any, action: Any, u: Any) -> Any:  # noqa: ARG002
        """0.9 s + sin s + 0.5 u."""
        return 0.9 * state + jnp.sin(state) + 0.5 * u

    def observe(self, state: Any, u: Any) -> Any:
        """The state and noise."""
        return state + u

    def reward(self, state: Any, action: Any, next_state: Any) -> Any:  # noqa: ARG002
        """Nothing."""
        return jnp.zeros(())


def main() -> dict[str, Any]:
    """Processor seconds of both, the best of all rounds, and how many times less ours are.

    The two take turns on one core, since a busy machine is not equally busy all the time, and compile anew.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    jax.config.update("jax_enable_compilation_cache", False)
    rng = np.random.default_rng(0)
    state = rng.normal(size=EPISODES)
    seen = [np.full(EPISODES, np.nan)]  # as in cuthbert, the first state is not seen
    for _ in range(STEPS):
        state = 0.9 * state + np.sin(state) + 0.5 * rng.normal(size=EPISODES)
        seen.append(state + 0.3 * rng.normal(size=EPISODES))
    observations = np.stack(seen, 1).astype(np.float32)
    plain, moved = (_ours(observations, moves) for moves in (0, 20))
    theirs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "observations.npz"
        np.savez(path, observations=observations[:, 1:])
        for _ in range(ROUNDS):
            theirs.append(run_peer("cuthbert", "cuthbert_filter.py", str(path), str(PARTICLES)))
            plain.again()
            moved.again()
    best = min(theirs, key=lambda one: one["warm"])
    return {
        "episodes": EPISODES,
        "steps": STEPS,
        "particles": PARTICLES,
        "clock": "processor seconds",
        "cuthbert": best,
        "ours": plain.found,
        "ours with 20 moves of paths": moved.found,
        "times faster": best["warm"] / plain.found["warm"],
    }


class _Ours:
    """A compiled program, and its best time so far."""

    def __init__(self, program: Any, *arguments: Any):
        start = time.process_time()
        lowered = program.lower(*arguments)
        traced = time.process_time()
        compiled = lowered.compile()
        done = time.process_time()
        self.run = lambda: compiled(*arguments)
        evidence = float(self.run()[1].log_evidence.mean())
        self.found = {"trace": traced - start, "compile": done - traced, "evidence": evidence, "warm": np.inf}

    def again(self) -> None:
        """Another few runs."""
        for _ in range(REPEATS):
            start = time.process_time()
            jax.block_until_ready(self.run())
            self.found["warm"] = min(self.found["warm"], time.process_time() - start)


def _ours(observations: np.ndarray, moves: int) -> _Ours:
    source = Particles(Wave(), particles=PARTICLES, moves=moves)
    count = (len(observations), STEPS)
    nothing = jnp.zeros(count)
    episodes = Episode(jnp.asarray(observations), jnp.zeros(count, jnp.int32), nothing, jnp.ones(count, bool), nothing)
    keys = jax.random.split(jax.random.key(0), len(observations))
    # The same plain vmap as theirs.
    return _Ours(jax.jit(jax.vmap(lambda key, episode: source.infer_many(key, episode, 1))), keys, episodes)
