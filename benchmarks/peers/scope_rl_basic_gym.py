"""BasicGym, discrete: its numbers, and steps of its own, to a file."""

import sys

import basicgym  # noqa: F401  (registers the environment)
import gym
import numpy as np

env = gym.make("BasicEnv-discrete-v0").unwrapped
rng, rows = np.random.default_rng(0), []
for _ in range(30):
    state, _ = env.reset()
    for _ in range(env.step_per_episode):
        action = int(rng.integers(env.n_actions))
        following, reward, done, *_ = env.step(action)
        if not done:
            rows.append(np.concatenate([state, [action], following, [reward]]))
        state = following
moves, pays = env.state_transition_function, env.reward_function
np.savez(
    sys.argv[1],
    steps=np.stack(rows),
    horizon=env.step_per_episode,
    actions=env.action_context,
    **{f"move_{name}": getattr(moves, f"{name}_coef") for name in ("state", "action", "state_action")},
    **{f"pay_{name}": getattr(pays, f"{name}_coef") for name in ("state", "action", "state_action")},
)
print("{}")
