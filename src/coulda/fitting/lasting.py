"""Does what follows a step of a table depend on what came before it? A test of the right size, however thin cells are.

What follows is one number, y = r + G(o'), with G(o') the mean return after o' in other episodes. Where the observation
is the state, y may be permuted among the steps with the same observation and action. Of each episode only the first
step in such a cell counts: two steps of one episode cannot change places, since what followed the first is the past of
the second, and in thin cells that alone looks like a dependence. The statistic is the sum of squares between steps with
different pasts, over all cells, against the same of permutations.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.fitting.judging import BOUND

PERMUTATIONS = 200
"""Enough for the mean and the variance of the statistic, to which a gamma distribution is matched."""
PARTS = 5
"""Of episodes: G is that of the other parts."""
PULL = 5.0
"""Steps by which a group of like pasts is drawn to its cell."""


class Lasting(NamedTuple):
    """How much of the variance of what follows a kind of past explains, given observation and action."""

    share: float
    least: float
    """The lower confidence bound."""
    most: float
    """The upper one."""
    chance: float
    """With which a world without a memory shows as much."""


def lasting(rng: np.random.Generator, log: EpisodeLog) -> list[Lasting]:
    """By the action, the two actions and the step before, as far as these vary; none where nothing does."""
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    state, action = np.asarray(log.observation).astype(int)[before], np.asarray(log.action).astype(int)
    episode = np.repeat(np.arange(len(log)), log.lengths)
    time = np.arange(len(before)) - log.starts[episode]
    y, known = _what_follows(rng, log, before, episode, time)
    cell = numbered(state, action)
    chosen = _first_of_each(episode, cell, known & (time > 0))
    chosen = chosen[np.bincount(cell[chosen], minlength=1)[cell[chosen]] > 1]
    action_before, two_before, state_before = (
        _earlier(action, time, 1),
        _earlier(action, time, 2),
        _earlier(state, time, 1),
    )
    pasts = ((action_before,), (action_before, two_before), (state_before, action_before))
    here = numbered(cell[chosen])
    groups = [numbered(here, *(past[chosen] for past in kind)) for kind in pasts]
    return _against_permutations(rng, here, groups, y[chosen])


def numbered(*columns: np.ndarray) -> np.ndarray:
    """Different rows of columns `[n]`, numbered, `[n]`."""
    found = np.zeros(len(columns[0]), int)
    for column in columns:  # one at a time: sorting rows takes ten times as long
        which = np.unique(column, return_inverse=True)[1].ravel()
        found = np.unique(found * (which.max(initial=0) + 1) + which, return_inverse=True)[1].ravel()
    return found


def _what_follows(
    rng: np.random.Generator, log: EpisodeLog, before: np.ndarray, episode: np.ndarray, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """R + G(o') of every step, and whether o' is known; the horizon, which ends everything, is no end."""
    observed, reward = np.asarray(log.observation).astype(int), np.asarray(log.reward, float)
    last = time == log.lengths[episode] - 1
    ended = last & log.terminated[episode] & (time < log.max_length - 1)
    part = (rng.permutation(len(log)) % PARTS)[episode]
    paid = np.cumsum(reward)
    to_go = paid[np.cumsum(log.lengths) - 1][episode] - paid + reward
    total, number = np.zeros((2, PARTS, observed.max() + 1))
    np.add.at(total, (part, observed[before]), to_go)
    np.add.at(number, (part, observed[before]), 1)
    others = (total.sum(0) - total + to_go.mean()) / (number.sum(0) - number + 1)
    after = np.where(number.sum(0) > 0, others, 0.0)[part, observed[before + 1]]
    return reward + np.where(ended, 0.0, after), ended | ~last | (log.schema.last_observation == "logged")


def _earlier(values: np.ndarray, time: np.ndarray, steps: int) -> np.ndarray:
    """Values `[n]` so many steps before; -1 where there is no such step."""
    return np.where(time >= steps, np.roll(values, steps), -1)


def _first_of_each(episode: np.ndarray, cell: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The first step that counts of every episode in every cell."""
    there = np.flatnonzero(counts)
    _, first = np.unique(numbered(episode[there], cell[there]), return_index=True)
    return there[first]


def _against_permutations(
    rng: np.random.Generator, cell: np.ndarray, groups: list[np.ndarray], y: np.ndarray
) -> list[Lasting]:
    """Of those kinds of past that vary within a cell."""
    groups = [group for group in groups if group.max(initial=-1) > cell.max(initial=-1)]
    left = y - (np.bincount(cell, y) / np.bincount(cell))[cell]
    total = float(left @ left)
    if total <= 1e-12 * float(y @ y):
        return []
    ordered, sizes = np.argsort(cell, kind="stable"), [np.bincount(group) for group in groups]

    def between(values: np.ndarray) -> list[float]:
        sums = (np.bincount(group, values) for group in groups)
        return [float((x**2 / (size + PULL)).sum()) for x, size in zip(sums, sizes, strict=True)]

    def permuted() -> np.ndarray:
        shuffled = np.empty_like(left)
        shuffled[ordered] = left[np.lexsort((rng.random(len(left)), cell))]
        return shuffled

    by_chance = np.array([between(permuted()) for _ in range(PERMUTATIONS)])
    return [_compared(*each, total, len(y)) for each in zip(between(left), by_chance.T, strict=True)]


def _compared(found: float, by_chance: np.ndarray, total: float, steps: int) -> Lasting:
    mean, variance = float(by_chance.mean()), max(float(by_chance.var(ddof=1)), 1e-24 * total**2)
    chance = float(special.gammaincc(mean**2 / variance, found * mean / variance))
    beyond = found - mean
    # As the variance of χ² with k degrees of freedom grows from 2 k to 2 k + 4 λ where it is not central.
    error = np.sqrt(variance + 4 * max(beyond, 0.0) * total / steps)
    least, most = (float((beyond + sign * BOUND * error) / total) for sign in (-1, 1))
    return Lasting(beyond / total, least, most, chance)
