"""scope-rl's BasicGym and RTBGym by their own formulas and numbers, many episodes at once; and policies in them."""

from collections.abc import Callable
from typing import Any

import numpy as np

Numbers = dict[str, np.ndarray]
Choose = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]
"""From states `[N, d]`: actions, and their probabilities or densities `[N]`."""


class World:
    """What logs are made in."""

    horizon: int

    def first(self, rng: np.random.Generator, episodes: int) -> np.ndarray:
        """First states, `[N, d]`."""
        raise NotImplementedError

    def step(
        self, rng: np.random.Generator, time: int, state: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The next states, and what is paid."""
        raise NotImplementedError

    def run(self, rng: np.random.Generator, choose: Choose, episodes: int) -> tuple[Any, ...]:
        """States `[N, T, d]`, actions, rewards and probabilities `[N, T]`."""
        state, made = self.first(rng, episodes), []
        for time in range(self.horizon):
            action, chance = choose(state, rng)
            moved, paid = self.step(rng, time, state, action)
            made.append((state, action, paid, chance))
            state = moved
        return tuple(np.stack(x, 1) for x in zip(*made, strict=True))


class Basic(World):
    """BasicGym: ten actions, or vectors in [-1, 1]³. Held against steps that it made itself."""

    def __init__(self, numbers: Numbers):
        self.numbers, self.horizon = numbers, int(numbers["horizon"])
        self.discrete = numbers["actions"].size > 0
        seen, done, after, paid = np.split(numbers["steps"], [5, 6 if self.discrete else 8, -1], axis=1)
        moved, reward = self.step(np.random.default_rng(0), 0, seen, done[:, 0].astype(int) if self.discrete else done)
        assert np.abs(moved - after).max() < 1e-9
        assert np.abs(reward - paid[:, 0]).max() < 1e-9

    def first(self, rng: np.random.Generator, episodes: int) -> np.ndarray:
        """On the sphere."""
        state = rng.normal(size=(episodes, 5))
        return state / np.linalg.norm(state, axis=1, keepdims=True)

    def step(
        self,
        rng: np.random.Generator,  # noqa: ARG002
        time: int,  # noqa: ARG002
        state: np.ndarray,
        action: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Without noise."""
        number, context = self.numbers, self.numbers["actions"][action] if self.discrete else action
        s, a = state / state.shape[1], context / context.shape[1]
        both = ((a @ number["move_state_action"].T) * s).sum(1, keepdims=True)
        moved = s @ number["move_state"].T + a @ number["move_action"].T + both
        paid = s @ number["pay_state"] + a @ number["pay_action"] + ((s @ number["pay_state_action"]) * a).sum(1)
        return moved / np.linalg.norm(moved, axis=1, keepdims=True), paid


class Rtb(World):
    """RTBGym: auctions for advertisements with a budget. Held against returns that it made itself."""

    most = 320
    """Auctions of a step, six deviations above the mean."""

    def __init__(self, numbers: Numbers):
        self.numbers, self.horizon = numbers, int(numbers["horizon"])
        always = lambda state, _: (np.full(len(state), 5), np.ones(len(state)))
        ours, theirs = self.run(np.random.default_rng(0), always, 2000)[2].sum(1), numbers["returns"]
        error = np.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
        assert abs(ours.mean() - theirs.mean()) < 4 * error, (ours.mean(), theirs.mean(), error)

    def first(self, rng: np.random.Generator, episodes: int) -> np.ndarray:
        """The whole budget; what came before is made up."""
        some, count = rng.random((episodes, 3)), rng.integers(0, 3, episodes)
        state = np.zeros(episodes), np.full(episodes, float(self.numbers["budget"])), *some.T, count
        return np.stack([*state, rng.exponential(size=episodes)], 1)

    def step(
        self, rng: np.random.Generator, time: int, state: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The auctions of a step, in parts that fit into the caches."""
        parts = [self._auctions(rng, time, state[i : i + 500], action[i : i + 500]) for i in range(0, len(state), 500)]
        moved, paid = (np.concatenate(x) for x in zip(*parts, strict=True))
        return moved, paid

    def _auctions(
        self, rng: np.random.Generator, time: int, state: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        number, shape = self.numbers, (len(state), self.most)
        mean, spread = number["volume"]
        volume = np.maximum(rng.normal(mean, spread, len(state)), number["least_volume"]).astype(int)
        held = np.arange(self.most) < volume[:, None]
        assert np.ptp(number["of_ads"]) == 0 == np.ptp(number["of_users"])
        ad, user = rng.integers(0, 100, shape), rng.integers(0, 100, shape)
        rate = number["rates"][action]
        bid = (rate[:, None] * number["bid"][time][ad, user]).astype(int)
        # Of auctions without a click nothing is paid: their prices matter for winning alone.
        price = np.maximum(number["scale"][ad] * rng.standard_gamma(number["shape"][ad]), 1.0)
        shown = held & (price < bid)
        click = shown & (rng.random(shape) < number["click"][time][ad, user])
        bought = click & (rng.random(shape) < number["buy"][time][ad, user])
        cost, left = price.astype(int) * click, state[:, 1]
        counted = np.cumsum(cost, 1) < left[:, None]
        total, shown, paid = ((x * counted).sum(1) for x in (cost, shown, bought))
        used = np.divide(total, left, out=np.zeros(len(left)), where=left > 0)
        mille = np.divide(1000.0 * total, shown, out=np.zeros(len(left)), where=shown > 0)
        after = np.full(len(left), time + 1.0), left - total, used, mille, shown / volume, paid, rate
        return np.stack([np.asarray(x, float) for x in after], 1), paid.astype(float)


def discrete(weights: np.ndarray, sharpness: float, epsilon: float) -> Choose:
    """Softmax of values that are linear in the state, `[A, d + 1]`, mixed with the uniform."""

    def choose(state: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        chances = probabilities(weights, sharpness, epsilon, state)
        action = (chances.cumsum(1) < rng.random((len(state), 1))).sum(1).clip(0, chances.shape[1] - 1)
        return action, chances[np.arange(len(state)), action]

    return choose


def probabilities(weights: np.ndarray, sharpness: float, epsilon: float, state: np.ndarray) -> np.ndarray:
    """Of all actions, `[n, A]`."""
    logits = sharpness * (state @ weights[:, :-1].T + weights[:, -1])
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return (1 - epsilon) * chances / chances.sum(1, keepdims=True) + epsilon / chances.shape[1]


def learned(world: World, rng: np.random.Generator) -> np.ndarray:
    """Values by regression on returns of 2,000 random episodes, `[10, d + 1]`, scaled to a spread of one."""
    first = world.first(rng, 1)
    uniform = discrete(np.zeros((10, first.shape[1] + 1)), 0.0, 1.0)
    state, action, reward, _ = world.run(rng, uniform, 2000)
    to_go = np.flip(np.cumsum(np.flip(reward, 1), 1), 1).ravel()
    x, action = np.pad(state.reshape(-1, state.shape[2]), ((0, 0), (0, 1)), constant_values=1.0), action.ravel()
    found = np.stack([np.linalg.lstsq(x[action == a], to_go[action == a], rcond=None)[0] for a in range(10)])
    values = x @ found.T
    return found / (values - values.mean(1, keepdims=True)).std()


def gaussian(weights: np.ndarray, deviation: float) -> Choose:
    """Normal around tanh of a linear function of the state, `[3, d + 1]`; the world takes what lies in [-1, 1]."""

    def choose(state: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        mean = np.tanh(state @ weights[:, :-1].T + weights[:, -1])
        noise = rng.normal(size=mean.shape)
        density = np.exp(-0.5 * (noise**2).sum(1)) / (np.sqrt(2 * np.pi) * deviation) ** mean.shape[1]
        return mean + deviation * noise, density

    return choose


def climbed(world: World, rng: np.random.Generator, rounds: int) -> np.ndarray:
    """Weights of `gaussian` by so many rounds of random search, `[3, 6]`, on 100 episodes each."""
    best, value = np.zeros((3, 6)), -np.inf
    for _ in range(rounds):
        tried = best + 0.3 * rng.normal(size=best.shape)
        found = world.run(np.random.default_rng(1), gaussian(tried, 0.3), 100)[2].sum(1).mean()
        best, value = (tried, found) if found > value else (best, value)
    return best
