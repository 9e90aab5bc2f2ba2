"""A Gymnasium environment that takes its noise by hand; workers import it from here."""

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A walk on 0 … 10 that ends at both ends; noise may push it one further."""

    observation_space = gymnasium.spaces.Box(-2.0, 12.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self):
        self.place, self.time, self.push = 0.0, 0, 0.0

    def step(self, action):
        self.place += float(action) - 1 + float(self.push > 0.8)
        self.time += 1
        return self.observation(), self.place / 10, not 0 < self.place < 10, False, {}

    def observation(self):
        return np.array([self.place, self.time], np.float32)


def begin(env, start):
    env.place, env.time = float(np.floor(start)), 0
    return env.observation()


def step(env, action, push):
    env.push = push
    return env.step(action)
