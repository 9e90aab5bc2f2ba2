"""Taped stepping against the plain environment, and rollouts against the number of workers.

Ratios are medians over rounds in which both take turns, so that whoever else works on the machine slows both. Workers
are timed with an environment whose steps wait, as one does that asks another program: how they share the work shows
then also where others have the cores.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import gymnasium
import jax
import numpy as np

from benchmarks.harness import sized
from coulda.environments import GymSimulator
from coulda.environments.taping import taped_reset, taped_step
from coulda.policies import AnyAction
from coulda.pomdp import rollout
from coulda.studies.gym import shop, worlds

STEPS, ROUNDS = sized((3000, 15), (50, 1))
EPISODES, WORKERS, WAIT = sized((64, (1, 2, 4), 0.01), (2, (1, 2), 0.001))
HORIZON = 10


def main() -> dict[str, Any]:
    stepped = {name: stepping(make) for name, make in worlds().items()}
    return {"stepping": stepped, "workers": workers()}


def stepping(make: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of the processor a step, resets included, of random actions."""
    # The shelf of the inventory is shuffled, one draw a piece: it may hold more than a dry run meets.
    model: Any = GymSimulator(make, horizon=200, workers=0, draws_per_step=150 if make is shop else None)
    plain, taped = make(), make()
    sizes = [noise.shape[0] for noise in (model.initial_noise, model.transition_noise)]
    rng = np.random.default_rng(0)
    actions = rng.integers(plain.action_space.n, size=STEPS).tolist()
    rows = [rng.random((STEPS, size), np.float32) for size in sizes]

    def run_plain() -> None:
        plain.reset()
        for action in actions:
            _, _, terminated, truncated, _ = plain.step(action)
            if terminated or truncated:
                plain.reset()

    def run_taped() -> None:
        taped_reset(taped, rows[0][0])
        for i, action in enumerate(actions):
            _, _, terminated, truncated, _ = taped_step(taped, action, rows[1][i])
            if terminated or truncated:
                taped_reset(taped, rows[0][i])

    times = [(_seconds(run_plain), _seconds(run_taped)) for _ in range(ROUNDS)]
    ratio = statistics.median(b / a for a, b in times)
    first, second = (1e6 * statistics.median(column) / STEPS for column in zip(*times, strict=True))
    return {"plain": first, "taped": second, "ratio": ratio}


class Waiting(gymnasium.Env):
    """A coin at each step, for which one has to wait."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        """The first coin."""
        super().reset(seed=seed, options=options)
        return int(self.np_random.integers(2)), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        """Another."""
        time.sleep(WAIT)
        return int(self.np_random.integers(2)), float(action), False, False, {}


def workers() -> dict[str, Any]:
    """Seconds on the clock of a batch of rollouts, warm, by the number of workers, in turns; how many times faster."""
    models = [GymSimulator(Waiting, horizon=HORIZON, workers=count) for count in WORKERS]
    keys, runs = jax.random.split(jax.random.key(0), EPISODES), []
    for model in models:
        policy = AnyAction.of(model)
        run = eqx.filter_jit(lambda keys, m=model, p=policy: jax.vmap(lambda k: _return(m, p, k))(keys))
        _wait(run, keys)
        runs.append(run)
    rounds = [[_seconds(partial(_wait, run, keys), time.perf_counter) for run in runs] for _ in range(3)]
    for model in models:
        model.close()
    times = [statistics.median(column) for column in zip(*rounds, strict=True)]
    return {
        "waiting alone, on one worker": EPISODES * HORIZON * WAIT,
        "seconds": dict(zip(map(str, WORKERS), times, strict=True)),
        "times faster": {str(count): times[0] / one for count, one in zip(WORKERS, times, strict=True)},
    }


def _return(model: Any, policy: Any, key: Any) -> Any:
    return rollout(model, policy, model.scenario_prior.sample(key)).episode_return


def _wait(run: Any, keys: Any) -> None:
    jax.block_until_ready(run(keys))


def _seconds(function: Any, clock: Any = time.process_time) -> float:
    """Of the processor, where one process works; by the clock on the wall otherwise."""
    start = clock()
    function()
    return clock() - start
