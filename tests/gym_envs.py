"""Gymnasium environments as users write them, good and bad; workers import them from here."""

import os
import random
import time

import gymnasium
import numpy as np


class Shop(gymnasium.Env):
    """An inventory: order 0 … 4 a day, sell what is asked for; unmet demand is lost and not seen."""

    observation_space = gymnasium.spaces.Discrete(13)
    action_space = gymnasium.spaces.Discrete(5)
    DAYS = 6

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stock, self.day = int(self.np_random.integers(3, 8)), 0
        return self.stock, {}

    def step(self, action):
        late = self.np_random.random() < 0.2
        asked = int(self.np_random.poisson(2.5))
        before = self.stock + (0 if late else action)
        sold = min(before, asked)
        self.stock, self.day = min(before - sold + (action if late else 0), 12), self.day + 1
        return self.stock, 3.0 * sold - 0.5 * self.stock - 1.0 * action, False, self.day >= self.DAYS, {}


class Drift(gymnasium.Env):
    """A number that drifts and is seen; the push of each day is normal."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1.0, 1.0)
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place = 0.9 * self.place + 0.3 * float(action[0]) + self.np_random.normal(0.0, 0.2)
        return np.array([self.place], np.float32), -(self.place**2), abs(self.place) > 2, False, {}


class Micro(Drift):
    """The same, seen and paid in millions."""

    def reset(self, **arguments):
        seen, info = super().reset(**arguments)
        return np.float32(1e-6) * seen, info

    def step(self, action):
        seen, paid, *rest = super().step(action)
        return np.float32(1e-6) * seen, 1e-6 * paid, *rest


class Moody(Shop):
    """How many come a day is drawn at first, and never seen."""

    def reset(self, **arguments):
        found = super().reset(**arguments)
        self.rate = self.np_random.gamma(4.0, 0.6)
        return found

    def step(self, action):
        self.stock = max(self.stock - int(self.np_random.poisson(self.rate)), 0)
        return super().step(action)


class Tipped(Shop):
    """Two numbers of which only the sum is seen, and days that may go in very many ways."""

    def step(self, action):
        found = super().step(action)
        tips = self.np_random.gamma(2.0, 1.0) + self.np_random.beta(2.0, 5.0)
        order = self.np_random.permutation(5)
        return found[0], found[1] + tips + 0.1 * order[0], *found[2:]


class Own(Shop):
    """Draws from a generator of its own, made in `reset`."""

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.stock, self.day = int(self.rng.integers(3, 8)), 0
        return self.stock, {}

    def step(self, action):
        self.np_random = self.rng
        return super().step(action)


class Hiding(gymnasium.Wrapper):
    """Keeps the environment it runs in an attribute of another name."""

    def __init__(self):
        super().__init__(gymnasium.Env())
        self.hidden = Shop()
        self.observation_space, self.action_space = Shop.observation_space, Shop.action_space

    def reset(self, **arguments):
        return self.hidden.reset(**arguments)

    def step(self, action):
        return self.hidden.step(action)


class Untaped(Shop):
    """Leaves something to chance that is not on the tape."""

    def __init__(self, how):
        self.how, self.box = how, [np.random.RandomState(0)]

    def step(self, action):
        found = super().step(action)
        chance = {"python": random.random, "numpy": np.random.random, "hidden": self.box[0].rand, "time": time.time_ns}
        return found[0], found[1] + 1e-3 * (chance[self.how]() % 7), *found[2:]


class Growing(Shop):
    """Its observations do not keep their shape."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (1,), np.float32)

    def reset(self, **arguments):
        return np.array([super().reset(**arguments)[0]], np.float32), {}

    def step(self, action):
        found = super().step(action)
        return np.full(1 + self.day // 4, found[0], np.float32), *found[1:]


class Breaking(Shop):
    """Fails, dies or hangs when the shelf is empty."""

    def __init__(self, how=""):
        self.how = how

    def step(self, action):
        found = super().step(action)
        if self.stock == 0 and self.how == "raise":
            raise ValueError("the shelf is empty")
        if self.stock == 0 and self.how == "die":
            os._exit(7)
        if self.stock == 0 and self.how == "hang":
            time.sleep(60)
        return found


class Sprawling(Shop):
    """Draws more and more, the longer it lasts."""

    def step(self, action):
        if self.day == 5 and self.stock == 0:
            self.np_random.random(40)
        return super().step(action)


def untaped_python():
    return Untaped("python")


def untaped_numpy():
    return Untaped("numpy")


def untaped_hidden():
    return Untaped("hidden")


def untaped_time():
    return Untaped("time")


def raising():
    return Breaking("raise")


def dying():
    return Breaking("die")


def hanging():
    return Breaking("hang")


def shop():
    """For the command line: an environment with a limit of steps of its own."""
    return gymnasium.wrappers.TimeLimit(Shop(), Shop.DAYS)


class Spaceless(gymnasium.Env):
    """Says neither what is seen nor what can be done."""


class Listed(Shop):
    """Observes a list in the place of an array."""

    observation_space = gymnasium.spaces.Box(0.0, 99.0, (1,), np.float32)

    def reset(self, **arguments):
        return [super().reset(**arguments)[0]], {}

    def step(self, action):
        found = super().step(action)
        return [found[0]], *found[1:]


class Dated(Shop):
    """Has the step of older Gyms."""

    def step(self, action):
        seen, paid, ended, cut, more = super().step(action)
        return seen, paid, ended or cut, more


def unmade():
    raise RuntimeError("no license")
