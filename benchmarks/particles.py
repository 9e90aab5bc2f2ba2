"""`Particles` against cuthbert's bootstrap filter: 256 episodes of 20 steps with 1,000 particles, on one model.

Ours also draws a path of each episode's genealogy and counts the first noises that survive; theirs is the filter alone.
With the 20 moves of whole paths that `Particles` makes by default the time is given apart.
"""

import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import run_peer, seconds, sized
from coulda.hindsight import Particles
from coulda.noise import Normal
from coulda.pomdp import POMDP, ActionMechanism, Episode, GumbelMaxChoice

EPISODES, STEPS, PARTICLES = sized((256, 20, 1000), (4, 3, 10))


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
    """Seconds of both, and how many times faster ours is."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=EPISODES)
    seen = [np.full(EPISODES, np.nan)]  # as in cuthbert, the first state is not seen
    for _ in range(STEPS):
        state = 0.9 * state + np.sin(state) + 0.5 * rng.normal(size=EPISODES)
        seen.append(state + 0.3 * rng.normal(size=EPISODES))
    observations = np.stack(seen, 1).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "observations.npz"
        np.savez(path, observations=observations[:, 1:])
        theirs = run_peer("cuthbert", "cuthbert_filter.py", str(path), str(PARTICLES))
    ours, moved = (_ours(observations, moves) for moves in (0, 20))
    return {
        "episodes": EPISODES,
        "steps": STEPS,
        "particles": PARTICLES,
        "cuthbert": theirs,
        "ours": ours,
        "ours with 20 moves of paths": moved,
        "times faster": theirs["warm"] / ours["warm"],
    }


def _ours(observations: np.ndarray, moves: int) -> dict[str, float]:
    source = Particles(Wave(), particles=PARTICLES, moves=moves)
    count = (len(observations), STEPS)
    nothing = jnp.zeros(count)
    episodes = Episode(jnp.asarray(observations), jnp.zeros(count, jnp.int32), nothing, jnp.ones(count, bool), nothing)
    keys = jax.random.split(jax.random.key(0), len(observations))
    # The same plain vmap as theirs.
    run = jax.jit(jax.vmap(lambda key, episode: source.infer_many(key, episode, 1)))
    evidence = float(run(keys, episodes)[1].log_evidence.mean())
    return seconds(lambda: jax.block_until_ready(run(keys, episodes))) | {"evidence": evidence}
