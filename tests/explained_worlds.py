"""Observed finite worlds with published explanations: the synthetic one of Tsirtsis et al. (2021), and a 4 × 4 grid."""

from functools import cache

import numpy as np

from coulda.environments import TabularPOMDP
from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.pomdp import Episode
from coulda.studies.explanations import synthetic_world

synthetic = cache(synthetic_world)


def observed(transition, reward, horizon, reparameterization="gumbel_max", first=None, terminal=None):
    states = transition.shape[1]
    first = np.full(states, 1 / states) if first is None else first
    kwargs = {"horizon": horizon, "reparameterization": reparameterization, "terminal": terminal}
    return TabularPOMDP(first, transition, np.eye(states), reward, **kwargs)


def log_of(model: TabularPOMDP, states: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> EpisodeLog:
    episodes, steps = actions.shape
    schema = Schema(model.observation_space, model.action_space)
    lengths, terminated = np.full(episodes, steps), np.zeros(episodes, bool)
    return checked_log(schema, states.ravel(), actions.ravel(), rewards.ravel(), lengths, terminated)


def grid() -> tuple[TabularPOMDP, Episode]:
    """Lally et al. (2025): an action succeeds with 0.9, else one of the others is taken; a path into the trap."""
    pay = np.zeros(16)
    for value, states in {1: (1, 4, 5), 2: (2, 8, 9), 3: (3, 10, 12), 4: (7, 13), 5: (11, 14)}.items():
        pay[list(states)] = value
    pay[6], pay[15] = -100, 100
    transition = np.zeros((4, 16, 16))
    for state in range(16):
        row, column = divmod(state, 4)
        around = [(row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)]
        places = [4 * r + c if 0 <= r < 4 and 0 <= c < 4 else state for r, c in around]
        for action in range(4):
            for other, place in enumerate(places):
                transition[action, state, place] += 0.9 if other == action else 0.1 / 3
    transition[:, [6, 15]] = np.eye(16)[[6, 15]]
    states = np.array([0, 1, 2] + [6] * 8, np.int32)
    actions = np.array([1, 1, 2] + [0] * 7, np.int32)
    episode = Episode(states, actions, pay[states[1:]].astype(np.float32), np.ones(10, bool), np.zeros(10, np.float32))
    return observed(transition, pay, 10, first=np.eye(16)[0]), episode
