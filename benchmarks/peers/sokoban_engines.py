"""Runs in an environment of its own, with jumanji and gym-sokoban.

agree PLAY.npz   replay logged actions through both engines and count every difference
speed            steps and levels a second
"""

import contextlib
import io
import json
import sys
import time
from functools import partial

import numpy as np

with contextlib.redirect_stderr(io.StringIO()):
    import gym_sokoban.envs.room_utils as rooms
    import jax
    import jax.numpy as jnp
    from gym_sokoban.envs.sokoban_env import SokobanEnv
    from jumanji.environments.routing.sokoban import Sokoban
    from jumanji.environments.routing.sokoban.generator import ToyGenerator
    from jumanji.environments.routing.sokoban.types import State
    from jumanji.wrappers import AutoResetWrapper, VmapAutoResetWrapper

BATCH, STEPS = 8192, 100
NOOP = 4
# Our up, down, left, right in jumanji's order of moves (up, right, down, left).
TO_JUMANJI = np.array([0, 2, 3, 1, 0])
STEP_COST = 0.1  # both engines charge it; we do not


def has(tiles, *kinds):
    return np.isin(tiles, kinds)


def best(function, repeats=7):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def agree(path):
    play = np.load(path, allow_pickle=False)
    states, actions, rewards = play["states"], play["actions"], play["rewards"]
    live = play["live"]
    report = {"transitions": int(live.sum()), "episodes": states.shape[1], "levels": int(play["levels"])}
    report["jumanji"] = agree_jumanji(states, actions, rewards, live)
    report["gym_sokoban"] = agree_gym_sokoban(states, actions, rewards, live)
    return report


def agree_jumanji(states, actions, rewards, live):
    """States and rewards of all live steps; where our action is NOOP, which jumanji lacks, its state is held."""
    env = Sokoban(generator=ToyGenerator(), time_limit=10**6)
    first = states[0]
    agent = np.argwhere(has(first, 4, 6))[:, 1:]
    start = State(
        key=jax.random.split(jax.random.PRNGKey(0), len(first)),
        fixed_grid=jnp.asarray(np.where(first == 1, 1, np.where(has(first, 3, 5, 6), 2, 0)), jnp.uint8),
        variable_grid=jnp.asarray(np.where(has(first, 4, 6), 3, np.where(has(first, 2, 5), 4, 0)), jnp.uint8),
        agent_location=jnp.asarray(agent, jnp.int32),
        step_count=jnp.zeros(len(first), jnp.int32),
    )

    def step(state, action):
        moved, timestep = jax.vmap(env.step)(state, jnp.asarray(TO_JUMANJI)[action])
        hold = action == NOOP
        pick = lambda old, new: jnp.where(hold.reshape(-1, *[1] * (new.ndim - 1)), old, new)
        following = jax.tree.map(pick, state, moved)
        return following, (following.variable_grid, jnp.where(hold, -STEP_COST, timestep.reward))

    _, (grids, paid) = jax.jit(partial(jax.lax.scan, step))(start, jnp.asarray(actions, jnp.int32))
    ours = np.where(has(states[1:], 4, 6), 3, np.where(has(states[1:], 2, 5), 4, 0))
    differs = (np.asarray(grids) != ours).any((2, 3)) & live
    reward_differs = (np.abs(np.asarray(paid) + STEP_COST - rewards) > 1e-4) & live
    return {"states_that_differ": int(differs.sum()), "rewards_that_differ": int(reward_differs.sum())}


def agree_gym_sokoban(states, actions, rewards, live):
    """The engine's own rules (`_push`, `_calc_reward`), without its drawing."""
    env = SokobanEnv(dim_room=states.shape[2:], num_boxes=int(has(states[0, 0], 2, 5).sum()), reset=False)
    code = np.array([1, 0, 4, 2, 5, 3, 5])
    wrong_states, wrong_rewards = 0, 0
    for i in range(states.shape[1]):
        first = states[0, i]
        env.room_fixed = np.where(first == 1, 0, np.where(has(first, 3, 5, 6), 2, 1))
        env.room_state = code[first]
        env.player_position = np.argwhere(has(first, 4, 6))[0]
        env.boxes_on_target = int((first == 5).sum())
        ours = code[states[:, i]]
        for t in range(len(actions)):
            if not live[t, i]:
                break
            if actions[t, i] != NOOP:
                env._push(int(actions[t, i]) + 1)
            env._calc_reward()
            wrong_states += not np.array_equal(env.room_state, ours[t + 1])
            wrong_rewards += abs(env.reward_last + STEP_COST - rewards[t, i]) > 1e-4
    return {"states_that_differ": int(wrong_states), "rewards_that_differ": int(wrong_rewards)}


def speed():
    env = Sokoban(generator=ToyGenerator(), time_limit=50)
    actions = jax.random.randint(jax.random.PRNGKey(0), (STEPS, BATCH), 0, 4)
    keys = jax.random.split(jax.random.PRNGKey(1), BATCH)

    def steps_per_second(reset, step):
        state, timestep = jax.jit(reset)(keys)
        # The observation is carried, so that it is really made.
        body = lambda carry, action: ((out := step(carry[0], action)), out[1].reward)
        run = jax.jit(lambda s, t: jax.lax.scan(body, (s, t), actions))
        return STEPS * BATCH / best(lambda: jax.block_until_ready(run(state, timestep)))

    plain = lambda s, t: jax.lax.scan(lambda c, a: ((out := jax.vmap(env.step)(c, a))[0], out[1].reward), s, t)
    state, _ = jax.jit(jax.vmap(env.reset))(keys)
    run = jax.jit(plain)
    report = {"jumanji_state_only": STEPS * BATCH / best(lambda: jax.block_until_ready(run(state, actions)))}
    vmapped, single = VmapAutoResetWrapper(env), AutoResetWrapper(env)
    report["jumanji_auto_reset"] = max(
        steps_per_second(vmapped.reset, vmapped.step),
        steps_per_second(jax.vmap(single.reset), jax.vmap(single.step)),
    )
    return report | gym_sokoban_speed()


def gym_sokoban_speed():
    np.random.seed(0)  # noqa: NPY002 (the engine draws from it)
    levels, start = 0, time.perf_counter()
    while time.perf_counter() - start < 15:
        with contextlib.suppress(RuntimeError, RuntimeWarning):
            room = rooms.generate_room(dim=(10, 10), num_steps=34, num_boxes=3)
            levels += 1
    per_second = levels / (time.perf_counter() - start)
    env = SokobanEnv(num_boxes=3, reset=False)
    env.room_fixed, env.room_state, _ = room
    env.player_position = np.argwhere(env.room_state == 5)[0]
    env.num_env_steps, env.max_steps = 0, 10**9
    actions = np.random.default_rng(0).integers(1, 5, 2000)
    seconds = best(lambda: [env.step(int(a), observation_mode="tiny_rgb_array") for a in actions], repeats=3)
    return {"gym_sokoban": len(actions) / seconds, "gym_sokoban_levels": per_second}


if __name__ == "__main__":
    result = agree(sys.argv[2]) if sys.argv[1] == "agree" else speed()
    print(json.dumps(result))
