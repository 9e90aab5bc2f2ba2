"""PO-Sokoban against two independent engines, jumanji's and gym-sokoban's: do they agree, and who is faster.

The engines run in an environment of their own. `play` logs random play of ours, and the engines replay its actions.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import ROOT, run_peer, sized
from coulda.environments.sokoban import Sokoban, SokobanBatch, UniformLevels, generate, read_levels, solve, tiles
from coulda.pomdp import GumbelMaxChoice

BATCH, STEPS = sized((8192, 100), (8, 2))
EPISODES, HORIZON = sized((24_000, 50), (40, 10))
LEVELS = sized(20_000, 20)
BOXOBAN = ROOT / "tests" / "fixtures" / "boxoban_unfiltered_test.txt"
"""Real levels, 1,000 of them."""


def agreement() -> dict[str, Any]:
    """Every state and reward of a million random transitions, four boxes, real levels first."""
    real = read_levels(BOXOBAN, num_boxes=4)
    levels = np.concatenate([real, generate(jax.random.key(0), LEVELS // 20, num_boxes=4)])
    played = play(np.resize(levels, (EPISODES, *levels.shape[1:])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "play.npz"
        np.savez(path, allow_pickle=False, levels=len(levels), **played)
        report = run_peer("sokoban", "sokoban_engines.py", "agree", str(path))
    return report | {
        "real_levels": len(real),
        "boxes_pushed_on_or_off_targets": int((played["rewards"] != 0).sum()),
        "levels_solved": int((played["rewards"] > 5).sum()),
        "explained": "both engines charge 0.1 a step, which is taken out; jumanji lacks NOOP, so it is held there",
    }


def play(levels: np.ndarray) -> dict[str, np.ndarray]:
    """States `[T + 1, n, ...]`, actions, rewards and live flags `[T, n]`: half at random, half led by the solver.

    Random play seldom moves a box on to a target and never solves; following shortest solutions does both.
    """
    model = Sokoban(levels=UniformLevels(levels[:1]), action_mechanism=GumbelMaxChoice(5), num_boxes=4)
    random = np.random.default_rng(0)
    actions = random.integers(0, 5, (HORIZON, len(levels))).astype(np.uint8)
    unique, which = np.unique(levels, axis=0, return_inverse=True)
    led = solve(unique, 4).actions[which][:, :HORIZON].T
    led = np.pad(led, ((0, HORIZON - len(led)), (0, 0)), constant_values=tiles.NOOP)
    follow = (random.random(actions.shape) < 0.97) & (np.arange(len(levels)) % 2 == 0)
    actions = np.where(follow, led, actions)

    def step(state, action):
        following = model.transition(state, action, ())
        return following, (following, model.reward(state, action, following), ~model.terminal(state))

    run = jax.jit(lambda s, a: jax.lax.scan(jax.vmap(step), s, a))
    _, (states, rewards, live) = run(jnp.asarray(levels), jnp.asarray(actions))
    return {
        "states": np.concatenate([levels[None], states]),
        "actions": actions,
        "rewards": np.asarray(rewards),
        "live": np.asarray(live),
    }


def speed() -> dict[str, Any]:
    """Steps and levels a second, ours and theirs, and the ratios."""
    before = our_speed()
    theirs = run_peer("sokoban", "sokoban_engines.py", "speed")
    # Before and after the peer, so that a busy moment does not decide.
    ours = {name: max(value, again) for (name, value), again in zip(before.items(), our_speed().values(), strict=True)}
    return {
        "batch": BATCH,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[1],
        "coulda": ours,
        "peers": theirs,
        "ratios": {
            "state_only_to_jumanji": ours["state_only"] / theirs["jumanji_state_only"],
            "observation_and_auto_reset_to_jumanji": ours["observation_and_auto_reset"] / theirs["jumanji_auto_reset"],
            "levels_to_gym_sokoban": ours["levels"] / theirs["gym_sokoban_levels"],
        },
    }


def our_speed() -> dict[str, float]:
    """Best of several runs, warm, each a scan of `STEPS` steps over `BATCH` episodes."""
    levels = generate(jax.random.key(0), LEVELS // 2)
    model = Sokoban(levels=UniformLevels(levels), action_mechanism=GumbelMaxChoice(5))
    batch = SokobanBatch.of(model)
    actions = jax.random.randint(jax.random.key(1), (STEPS, BATCH), 0, 5).astype(jnp.uint8)
    seeds = jax.random.bits(jax.random.key(2), (BATCH, 2), jnp.uint32)
    state, timestep = jax.jit(jax.vmap(batch.reset))(seeds)
    game = jax.jit(lambda boards: jax.lax.scan(jax.vmap(batch.game.step), boards, actions))

    @jax.jit
    def episodes(state, timestep):
        body = lambda carry, action: ((out := jax.vmap(batch.step)(carry[0], action)), out[1].reward)
        return jax.lax.scan(body, (state, timestep), actions)

    @jax.jit
    def pomdp(states):
        def step(s, a):
            following = model.transition(s, a, ())
            return following, model.reward(s, a, following)

        return jax.lax.scan(jax.vmap(step), states, actions)

    starts = jnp.asarray(levels[:BATCH])
    return {
        "state_only": STEPS * BATCH / best(lambda: game(state.boards)),
        "observation_and_auto_reset": STEPS * BATCH / best(lambda: episodes(state, timestep)),
        "pomdp_transition_and_reward": STEPS * BATCH / best(lambda: pomdp(starts)),
        "levels": LEVELS / best(lambda: generate(jax.random.key(3), LEVELS), repeats=3),
        "levels_solved": LEVELS // 10 / best(lambda: solve(levels[: LEVELS // 10], 3), repeats=2),
    }


def best(function: Callable[[], Any], repeats: int = 7) -> float:
    """Seconds of the fastest warm call."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> dict[str, Any]:
    """All of it."""
    return {"speed": speed(), "agreement": agreement()}


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
