"""The numbers of BasicGym (discrete, continuous) and RTBGym (discrete), and steps of theirs, to files in a folder."""

import sys
from pathlib import Path

import basicgym  # noqa: F401  (registers the environments)
import gym
import numpy as np
import rtbgym  # noqa: F401

folder = Path(sys.argv[1])


def steps_of(env, act) -> np.ndarray:
    """State, action, next state and reward of steps that the environment makes."""
    rows = []
    for _ in range(30):
        state, _ = env.reset()
        for _ in range(env.step_per_episode):
            action = act()
            following, reward, done, *_ = env.step(action)
            if not done:
                rows.append(np.concatenate([state, np.ravel(action), following, [reward]]))
            state = following
    return np.stack(rows)


rng = np.random.default_rng(0)
for kind in ("discrete", "continuous"):
    env = gym.make(f"BasicEnv-{kind}-v0").unwrapped
    act = (lambda: int(rng.integers(10))) if kind == "discrete" else (lambda: rng.uniform(-1, 1, 3))
    moves, pays = env.state_transition_function, env.reward_function
    np.savez(
        folder / f"basic-{kind}.npz",
        steps=steps_of(env, act),
        horizon=env.step_per_episode,
        actions=env.action_context if kind == "discrete" else np.zeros(0),
        **{f"move_{name}": getattr(moves, f"{name}_coef") for name in ("state", "action", "state_action")},
        **{f"pay_{name}": getattr(pays, f"{name}_coef") for name in ("state", "action", "state_action")},
    )

# Its own rates are its logspace, whose first number rounding puts below the least that it allows.
env = gym.make("RTBEnv-discrete-v0", action_meaning=np.clip(np.logspace(-1, 1, 10), 0.1, 10.0)).unwrapped
market, bidder = env.env.simulator, env.env.bidder
ads, users = (np.repeat(np.arange(100), 100), np.tile(np.arange(100), 100))
known = {
    "ad_ids": ads,
    "user_ids": users,
    "ad_feature_vector": market.ad_feature_vector[ads],
    "user_feature_vector": market.user_feature_vector[users],
}
table = lambda of: np.stack([of(timestep=t, **known).reshape(100, 100) for t in range(env.step_per_episode)])
returns = []
for _ in range(300):  # of action 5, to be held against ours
    env.reset()
    returns.append(sum(env.step(5)[1] for _ in range(env.step_per_episode)))
np.savez(
    folder / "rtb.npz",
    horizon=env.step_per_episode,
    budget=env.initial_budget,
    rates=env.action_meaning,
    click=table(market.ctr.calc_prob),
    buy=table(market.cvr.calc_prob),
    bid=table(bidder._predict_reward) * bidder.standard_bid_price * bidder.scaler,
    shape=market.winning_price_distribution.ks,
    scale=market.winning_price_distribution.thetas,
    of_ads=market.ad_sampling_rate,
    of_users=market.user_sampling_rate,
    volume=[market.search_volume_distribution.mean[0], market.search_volume_distribution.std[0]],
    least_volume=market.minimum_search_volume,
    returns=returns,
)
print("{}")
