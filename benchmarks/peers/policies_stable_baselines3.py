"""PPO of stable-baselines3 on CartPole, beside coulda: run by `benchmarks/policies.py` in an environment of its own.

As in the tutorial: a policy that was trained little acts and is logged, one that was trained more is evaluated on that
log, and then run to see what it earns. CartPole is cut off after 40 steps.
"""

import json

import gymnasium
import jax
import numpy as np
from stable_baselines3 import PPO

from coulda.episodes import Recorder
from coulda.evaluation import compare
from coulda.policies import as_policy

STEPS, LOGGED, TRUE = 40, 1000, 2000


def play(policy, episodes: int, seed: int) -> list[Recorder]:
    """All episodes take a step together; the policy is asked about all that go on."""
    random = np.random.default_rng(seed)
    envs = [Recorder(gymnasium.make("CartPole-v1", max_episode_steps=STEPS)) for _ in range(episodes)]
    observations = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(envs)])
    live = np.arange(episodes)
    while len(live):
        probabilities = policy.probabilities(observations[live])
        actions = (random.random(len(live)) > probabilities[:, 0]).astype(int)
        going = []
        for i, action, said in zip(live, actions, probabilities, strict=True):
            observations[i], _, terminated, truncated, _ = envs[i].step(int(action), probability=said[action])
            if not (terminated or truncated):
                going.append(i)
        live = np.array(going, int)
    return envs


def joined(envs: list[Recorder]):
    """One log of all."""
    first = envs[0]
    for env in envs[1:]:
        first._episodes += env._episodes
        first._terminated += env._terminated
    return first.log()


def main() -> None:
    """Print the table, and the truth."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=STEPS)
    ppo = PPO("MlpPolicy", env, n_steps=512, seed=0, device="cpu").learn(1_536)
    acting = as_policy(ppo, env.action_space)
    log = joined(play(acting, LOGGED, seed=0))
    ppo.learn(3_072, reset_num_timesteps=False)
    new = as_policy(ppo, env.action_space)
    theirs = ppo.policy.get_distribution(ppo.policy.obs_to_tensor(log.observation)[0]).distribution.probs
    difference = np.abs(new.probabilities(log.observation) - theirs.detach().numpy()).max()
    table = compare(jax.random.key(0), log, {"new": new}).estimates["new"]
    returns = joined(play(new, TRUE, seed=10**6)).episode_returns
    print(
        json.dumps(
            {
                "episodes": LOGGED,
                "largest difference of a probability": float(difference),
                "truth": {"mean": float(returns.mean()), "standard error": float(returns.std() / TRUE**0.5)},
                "logged": float(log.episode_returns.mean()),
                "estimates": {
                    name: {
                        "value": one.value,
                        "interval": None if one.interval is None else [one.interval.low, one.interval.high],
                        "effective episodes": one.effective_sample_size,
                        "verdict": one.verdict,
                    }
                    for name, one in table.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
