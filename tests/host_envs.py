"""Gymnasium environments for the host simulator's tests; spawned workers import them from here."""

import os

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """A walk on 0 … 10 that ends at both ends; recorded noise may push it one further."""

    observation_space = gymnasium.spaces.Box(-2.0, 12.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, fault: str = ""):
        self.fault, self.place, self.time, self.pushes = fault, 0.0, 0, np.zeros(0)

    def begin(self, start, pushes):
        self.place, self.time, self.pushes = float(np.floor(start)), 0, pushes
        return self._observation()

    def step(self, action):
        if self.fault == "raise" and self.time == 1:
            raise ValueError("the ice is thin")
        if self.fault == "die" and self.time == 1:
            os._exit(7)
        self.place += float(action) - 1 + float(self.pushes[self.time] > 0.8)
        self.time += 1
        return self._observation(), self.place / 10, not 0 < self.place < 10, False, {}

    def _observation(self):
        return np.array([self.place, self.time], np.float32)


def begin(env, scenario):
    return env.begin(scenario.initial, scenario.transition)


def failing():
    return Walk("raise")


def dying():
    return Walk("die")
