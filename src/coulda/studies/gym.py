"""Gymnasium environments as they are: are logged episodes replayed to the bit, and are estimates right?

python -m coulda.studies.gym            # writes results/gym: replay.json, tables.json, tables-again.json, cartpole.json
python -m coulda.studies.gym replay     # only that one

LunarLander is replayed where Box2D is installed.
"""

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments import GymSimulator
from coulda.environments.taping import taped_reset, taped_step
from coulda.episodes import collect, open_log, write_log
from coulda.episodes.log import concatenate
from coulda.errors import CouldaError
from coulda.evaluation import OnScenarios, Precision, compare
from coulda.noise import Categorical
from coulda.policies import AnyAction, TabularPolicy
from coulda.pomdp import Policy
from coulda.storage import replace_json

EPISODES = 10_000
"""Replayed, over all environments."""
LONGEST = 200
"""Steps of an episode."""
NAMES = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "LunarLander-v3",
)
TABLE_LOG, TABLE_STEPS = 1000, 40
NOISES = {"FrozenLake-v1": 0.3, "Taxi-v4": 0.1}
"""The share of random actions of the policy that is nearly best."""
CARTPOLE_LOG, CARTPOLE_TRUTH, SCENARIOS = 2000, 5000, 2
NEAR = 0.03
"""Of the truth, as was asked for."""


class Shop(gymnasium.Env):
    """An inventory written in the ordinary way: late deliveries, lost demand, a promotion now and then."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:  # noqa: ARG002
        """Some stock."""
        super().reset(seed=seed)
        self.stock, self.rate = int(self.np_random.integers(3, 8)), float(self.np_random.gamma(4.0, 0.6))
        return self._seen(0), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A day."""
        late = self.np_random.random() < 0.2
        asked = int(self.np_random.poisson(self.rate))
        if self.np_random.choice(["usual", "promotion"], p=[0.9, 0.1]) == "promotion":
            asked += int(self.np_random.binomial(6, 0.5))
        there = self.stock + (0 if late else action)
        sold = min(there, asked)
        self.stock = there - sold + (action if late else 0)
        spoiled = self.np_random.permutation(self.stock)[: self.stock // 10].size
        self.stock -= spoiled
        return self._seen(sold), 3.0 * sold - 0.5 * self.stock - 1.0 * action, False, False, {}

    def _seen(self, sold: int) -> np.ndarray:
        return np.array([self.stock, sold], np.float32)


def shop() -> gymnasium.Env:
    """The inventory over a month."""
    return gymnasium.wrappers.TimeLimit(Shop(), 30)


def worlds() -> dict[str, Callable[[], gymnasium.Env]]:
    """Those that can be made here, by name."""
    found: dict[str, Callable[[], gymnasium.Env]] = {}
    for name in NAMES:
        make = partial(gymnasium.make, name)
        try:
            make().close()
        except (gymnasium.error.DependencyNotInstalled, ImportError):
            continue
        found[name] = make
    return found | {"inventory": shop}


def replay(out: Path) -> None:
    """Log episodes on tapes, write and read the log, and run each again on its tape in a new environment."""
    makes = worlds()
    found: dict[str, Any] = {}
    for number, (name, make) in enumerate(makes.items()):
        start, count = time.perf_counter(), -(-EPISODES // len(makes))
        # The shelf of the inventory is shuffled, one draw a piece: it may hold more than a dry run meets.
        draws = 150 if name == "inventory" else None
        model = GymSimulator(make, horizon=_horizon(make), workers=0, draws_per_step=draws)
        same, steps = _replayed(jax.random.key(number), model, make(), count)
        taken = round(time.perf_counter() - start, 1)
        found[name] = {"episodes": count, "steps": steps, "bit for bit": same, "seconds": taken}
        found[name] |= {"numbers at reset": model.initial_noise.shape[0], "per step": model.transition_noise.shape[0]}  # pyright: ignore[reportAttributeAccessIssue]
    total = {key: sum(one[key] for one in found.values()) for key in ("episodes", "steps", "bit for bit")}
    left_out = [name for name in NAMES if name not in makes]
    replace_json(out, {"longest": LONGEST, "environments": found, "all": total, "not installed": left_out})


def _horizon(make: Callable[[], gymnasium.Env]) -> int:
    limit = getattr(make().spec, "max_episode_steps", None)
    return min(limit or 30, LONGEST)


def _replayed(key: Array, model: GymSimulator, env: gymnasium.Env, count: int) -> tuple[int, int]:
    """How many episodes come out as logged, to the bit, and how many steps they had."""
    with TemporaryDirectory() as folder:
        write_log(Path(folder) / "log", collect(key, model, AnyAction.of(model), count))
        log = concatenate(list(open_log(Path(folder) / "log").batches()))
    # The keys of `collect`: episode i is on the tape that its own draws.
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(count))
    tapes = jax.tree.map(np.asarray, jax.jit(jax.vmap(model.scenario_prior.sample))(keys))
    same = 0
    for i in range(count):
        episode = log[i]
        seen, paid, over = [taped_reset(env, tapes.initial[i])], [], False
        for t, action in enumerate(episode.action):
            act = action.item() if np.ndim(action) == 0 else action
            observation, reward, terminated, truncated, _ = taped_step(env, act, tapes.transition[i, t])
            seen.append(jax.tree.map(np.copy, observation))
            paid.append(reward)
            over = bool(terminated) or (bool(truncated) and len(paid) < model.horizon)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
        equal = jax.tree.map(lambda a, b: np.array_equal(np.asarray(a, b.dtype), b), stacked, episode.observation)
        whole = all(jax.tree.leaves(equal)) and np.array_equal(np.asarray(paid, np.float32), episode.reward)
        same += whole and over == bool(log.terminated[i])
    return same, log.num_steps


def tables(out: Path, noises: Mapping[str, float] = NOISES, seed: int = 100, episodes: int = TABLE_LOG) -> None:
    """FrozenLake and Taxi: MB-PE and CF-PE of three policies against backward induction over the tables."""
    found = {}
    for number, (name, noise) in enumerate(noises.items()):
        start = time.perf_counter()
        make = partial(gymnasium.make, name, max_episode_steps=TABLE_STEPS)
        model = GymSimulator(make, workers=0)
        moves, rewards, ends, first = _tables(make().unwrapped)
        best = _best(moves, rewards, ends)
        sizes = moves.shape[:2]
        mixed = lambda share, best=best, sizes=sizes: (1 - share) * best + share * np.full(sizes, 1 / sizes[1])
        policies = {"nearly best": mixed(noise), "half as good": mixed(0.5), "any action": mixed(1.0)}
        keys = jax.random.split(jax.random.key(seed + number))
        log = collect(keys[0], model, TabularPolicy(mixed(0.7)), episodes)
        table = compare(keys[1], log, {n: TabularPolicy(p) for n, p in policies.items()}, [OnScenarios(model)])
        exact = {n: _value(moves, rewards, ends, first, p) for n, p in policies.items()}
        found[name] = {"rows": _rows(table, exact), "seconds": round(time.perf_counter() - start, 1)}
    replace_json(out, {"logged episodes": episodes, "seed": seed, "steps": TABLE_STEPS, "worlds": found})


def _tables(env: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """P(s' | s, a), E[r | s, a], P(s' is the end | s, a) `[S, A, S]` and P(s_1) of a toy of Gymnasium's."""
    size, actions = env.observation_space.n, env.action_space.n
    moves, ends, rewards = np.zeros((size, actions, size)), np.zeros((size, actions, size)), np.zeros((size, actions))
    for state, action in np.ndindex(size, actions):
        for chance, following, reward, ended in env.P[state][action]:
            moves[state, action, following] += chance
            ends[state, action, following] += chance * ended
            rewards[state, action] += chance * reward
    return moves, rewards, ends, np.asarray(env.initial_state_distrib)


def _best(moves: np.ndarray, rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """A deterministic policy that is best at the first of many steps, `[S, A]`."""
    worth = np.zeros(len(moves))
    for _ in range(10 * TABLE_STEPS):
        worth = (rewards + 0.99 * (moves - ends) @ worth).max(1)
    return np.eye(rewards.shape[1])[(rewards + 0.99 * (moves - ends) @ worth).argmax(1)]


def _value(moves: np.ndarray, rewards: np.ndarray, ends: np.ndarray, first: np.ndarray, policy: np.ndarray) -> float:
    worth = np.zeros(len(moves))
    for _ in range(TABLE_STEPS):
        worth = (policy * (rewards + (moves - ends) @ worth)).sum(1)
    return float(first @ worth)


def _rows(table: Any, truth: dict[str, float]) -> dict[str, Any]:
    """Of each policy and method: the estimate, and how far it is off, in standard errors and of the truth."""
    found: dict[str, Any] = {}
    for name, estimate in table.rows():
        error = float(estimate.terms.std(ddof=1) / np.sqrt(len(estimate.terms)))
        off = estimate.value - truth[name]
        found.setdefault(name, {"truth": truth[name]})[estimate.method] = {
            "value": estimate.value,
            "standard error": error,
            "z": off / error,
            "relative error": abs(off / truth[name]) if truth[name] else None,
            "verdict": estimate.verdict,
        }
    return found


class Balance(Policy):
    """Push to where the pole falls, more or less surely."""

    firmness: Array

    def __init__(self, firmness: float):
        self.firmness = jnp.asarray(firmness, jnp.float32)

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """Right if it leans or turns right."""
        lean = observation[2] + 0.5 * observation[3]
        return carry, Categorical(logits=jnp.stack([jnp.zeros(()), self.firmness * lean]))


def cartpole(out: Path) -> None:
    """MB-PE and CF-PE of three policies against the environment as it is, with its own seeds and no tape."""
    start = time.perf_counter()
    model = GymSimulator(partial(gymnasium.make, "CartPole-v1"), workers=0)
    firm = {"any action": 0.0, "hesitant": 3.0, "firm": 8.0}
    keys = jax.random.split(jax.random.key(200))
    log = collect(keys[0], model, Balance(1.0), CARTPOLE_LOG)
    policies = {name: Balance(firmness) for name, firmness in firm.items()}
    table = compare(keys[1], log, policies, [OnScenarios(model)], precision=Precision(scenarios=SCENARIOS))
    plain = {name: _plain_returns(firmness, CARTPOLE_TRUTH) for name, firmness in firm.items()}
    rows = _rows(table, {name: float(returns.mean()) for name, returns in plain.items()})
    for name, returns in plain.items():
        rows[name]["standard error of the truth"] = float(returns.std(ddof=1) / np.sqrt(len(returns)))
    methods = [one for row in rows.values() for one in row.values() if isinstance(one, dict)]
    near = all(one["relative error"] < NEAR for one in methods)
    settings = {"logged episodes": CARTPOLE_LOG, "plain episodes": CARTPOLE_TRUTH, "scenarios": SCENARIOS}
    replace_json(
        out, settings | {"rows": rows, "all within 3 %": near, "seconds": round(time.perf_counter() - start, 1)}
    )


def _plain_returns(firmness: float, count: int) -> np.ndarray:
    """Of the environment as Gymnasium makes it."""
    env, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(7)
    found = np.zeros(count)
    for i in range(count):
        observation, _ = env.reset(seed=1000 + i)
        over = False
        while not over:
            right = 1 / (1 + np.exp(-firmness * float(observation[2] + 0.5 * observation[3])))
            observation, reward, terminated, truncated, _ = env.step(int(rng.random() < right))
            found[i] += float(reward)
            over = terminated or truncated
    return found


PARTS = {
    "replay": replay,
    "tables": tables,
    "tables-again": partial(tables, noises={"FrozenLake-v1": NOISES["FrozenLake-v1"]}, seed=300, episodes=2000),
    "cartpole": cartpole,
}

if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in PARTS]:
        raise CouldaError(f"there is no part {unknown}; there are {list(PARTS)}")
    for part in sys.argv[1:] or PARTS:
        place = Path("results/gym") / f"{part}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        PARTS[part](place)
