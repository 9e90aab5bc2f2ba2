"""Does what came before tell more of a step than what was seen and done in it?

Where the observation is the state, noise is independent of time and of everything before it, given state and action. Of
something hidden that lasts, early steps and late ones tell differently much, and so do steps after different pasts. The
same is asked of actions, given the state and the time: where they depend on the past, whoever acted remembers, or knew
what was not logged.

What came before is told by means over the episode so far, by the step before, and by the time together with state and
action. From these, and from what they shall tell, all is taken off that state and action foresee (regressions on
episodes that they have not seen), so that errors of the fit, which are functions of state and action, count only
squared. What is left must be uncorrelated: the products are added up within episodes, and their mean over episodes is
held against zero (Hotelling's T²).
"""

from dataclasses import replace

import numpy as np
from scipy import special

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.evaluation.diagnostics import FEW_EPISODES, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.fitting.confounding import Trace, in_nats, verdict_of
from coulda.fitting.judging import MOST_ROWS, NOTHING, Foreseen, Noise, graded_share, gravest, share_of
from coulda.scales import spread_of, unit_of

WHAT = "time and what came before"
LEAST_SHARE = 0.005
"""Of the variance of changes or actions: a correlation of 0.07 with what came before is of little consequence."""
PARTS = 5
"""Of episodes, one of which is foreseen by a regression on the others."""
WAVES = 40
MOST_PRODUCTS = 20
"""Columns up to which all their products are features."""
RIDGE = 0.01
LEAST_PER_COLUMN = 5
"""Episodes for each number that is held against zero; of more numbers the first principal ones are."""


def memory(rng: np.random.Generator, found: Noise, states: int) -> tuple[Diagnostic, ...]:
    """Whether noise, and whether actions, depend on what came before; the first inputs are of so many `states`."""
    found = found.first(MOST_ROWS)
    if _short(found):
        return ()
    noise, others = _of_noise(rng, found)
    done, part = found.inputs[:, states:], found.episode % PARTS
    free = features(rng, np.concatenate([found.inputs[:, :states], _early(found)], 1))
    past, done = (left_of(free, x, part) for x in (_past(found), done))
    varies = [column for column in done.T if column.std() > 1e-6]
    acts = [_told(past, column, found.episode, "what was done") for column in varies]
    tests = len(acts) + len(noise)
    moves, best = (gravest(tried, tests, LEAST_SHARE) for tried in (noise, acts))
    return _markov([*noise, *others]), verdict_of(_trace(moves), _trace(best), tests, WHAT)


def markov(rng: np.random.Generator, found: Noise) -> tuple[Diagnostic, ...]:
    """Whether time and what came before foresee the noise of a step, its size, or an end."""
    found = found.first(MOST_ROWS)
    if _short(found):
        return ()
    noise, others = _of_noise(rng, found)
    return (_markov([*noise, *others]),)


def lasting_rewards(log: EpisodeLog, fold: np.ndarray) -> tuple[Diagnostic, ...]:
    """Of a table: whether what is paid, given both states and the action, depends on what was paid and done before.

    `fold` is of each episode. Where rewards do not vary, or nothing came before, there is nothing to ask.
    """
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    seen, episode = np.asarray(log.observation).astype(int), np.repeat(np.arange(len(log)), log.lengths)
    acts, own = np.asarray(log.action).astype(int), fold[episode]
    step = np.stack([seen[before], acts, seen[before + 1]], 1)
    later = np.arange(len(acts)) > log.starts[episode]
    reward = np.asarray(log.reward, float) / unit_of(log.reward)
    paid = _rest_in_cells(step, reward[:, None], own)
    if np.unique(episode[later]).size < 2 * FEW_EPISODES or paid.std() < 1e-6 * (1 + np.abs(reward).max()):
        return ()
    done = _rest_in_cells(step[:, :1], np.eye(acts.max() + 1)[acts - acts.min()], own)
    past = _so_far(np.concatenate([paid, done], 1), episode)
    moves = _told(_rest_in_cells(step, past, own)[later], paid[later, 0], episode[later], "what is paid")
    rest = _rest_in_cells(step[:, :1], past, own)[later]
    knows = [_told(rest, x, episode[later], "what was done") for x in done[later].T if x.std() > 1e-6]
    tests = 1 + len(knows)
    best = gravest(knows, tests, LEAST_SHARE)
    if tests * moves.chance >= UNUSUAL or moves.share < LEAST_SHARE:
        told = "Given states and action, what is paid does not depend on what came before."
        return (Diagnostic("rewards", moves.share, "trust", told),)
    found = verdict_of(_trace(moves), _trace(best), tests, "what came before")
    told = found.sentence.replace("what follows", "what is paid", 1)
    more = "Something that lasts and was not logged pays: returns of the model vary otherwise than those of the log."
    return (replace(found, name="rewards", sentence=f"{told} {more}"),)


def _rest_in_cells(cell: np.ndarray, values: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """What the means of other folds in the same cell `[n, c]` leave of values `[n, q]`; drawn to the mean of all."""
    which = np.unique(cell, axis=0, return_inverse=True)[1].ravel()
    own = np.unique(np.stack([which, fold], 1), axis=0, return_inverse=True)[1].ravel()
    count = 1 + np.bincount(which)[which] - np.bincount(own)[own]
    total = lambda x: np.bincount(which, x)[which] - np.bincount(own, x)[own]
    return np.stack([x - (total(x) + x.mean()) / count for x in values.T], 1)


def _markov(tried: list[Foreseen]) -> Diagnostic:
    return graded_share("markov", tried, WHAT, "what is seen is not the state", LEAST_SHARE)


def _short(found: Noise) -> bool:
    """Whether there are too few episodes with something before."""
    return np.unique(found.episode[found.time > 0]).size < 2 * FEW_EPISODES


def _of_noise(rng: np.random.Generator, found: Noise) -> tuple[list[Foreseen], list[Foreseen]]:
    """What came before tells of the columns of noise; and of their sizes, and the end."""
    part, ones = found.episode % PARTS, np.ones((len(found.time), 1))
    before = features(rng, found.inputs)
    timed = _early(found) * np.concatenate([ones, found.inputs], 1)
    rest = left_of(before, np.concatenate([timed, _past(found), _last(found)], 1), part)
    # Heavy tails would decide otherwise.
    noise = {f"the noise of {name}": np.clip(x, -4, 4) for name, x in zip(found.names, found.noise.T, strict=True)}
    sizes = {f"the size of {name}": np.abs(x) for name, x in noise.items()}

    def of(name: str, target: np.ndarray) -> Foreseen:
        known = np.isfinite(target)
        if np.unique(found.episode[known]).size < 2 * FEW_EPISODES:
            return NOTHING
        left = left_of(before[known], target[known][:, None], part[known])[:, 0]
        return _told(rest[known], left, found.episode[known], name)

    of_noise, of_sizes = (
        [of(*one).of_changes(spread) for one, spread in zip(targets.items(), found.spread, strict=True)]
        for targets in (noise, sizes)
    )
    return of_noise, [*of_sizes, of("the end", found.end)]


def _told(rest: np.ndarray, target: np.ndarray, episode: np.ndarray, what: str) -> Foreseen:
    """How much of the target `[n]` is told by what is left of the past `[n, p]`."""
    there = np.unique(episode, return_inverse=True)[1]
    episodes, spread = int(there.max()) + 1, rest.std(0)
    x = rest[:, spread > 1e-6] / spread[spread > 1e-6]
    size, directions = np.linalg.eigh(x.T @ x / len(x))
    most = max(1, episodes // LEAST_PER_COLUMN)
    x = x @ directions[:, size > 1e-6 * size[-1]][:, ::-1][:, :most]
    each = np.stack([np.bincount(there, column * target) for column in x.T], 1)
    mean, columns = each.mean(0), x.shape[1]
    square = episodes * mean @ np.linalg.solve(np.cov(each.T).reshape(columns, columns), mean)
    ratio = (episodes - columns) / (columns * (episodes - 1)) * square
    chance = float(special.fdtrc(columns, episodes - columns, ratio))
    slope = np.linalg.solve(x.T @ x, x.T @ target)
    return share_of(target, x @ slope, there, chance, what, columns / len(target))


def _trace(found: Foreseen) -> Trace:
    """In nats, as if all were normal."""
    nats, least = (float(-0.5 * np.log1p(-min(share, 0.99))) for share in (found.share, LEAST_SHARE))
    return in_nats(nats, found.chance, least)


def _early(found: Noise) -> np.ndarray:
    """1, 1/2, 1/3, …, `[n, 1]`: what is not known is learned in the first steps."""
    return 1 / (1 + found.time[:, None])


def _past(found: Noise) -> np.ndarray:
    """Means of noise, states and actions over the episode so far, drawn to zero, `[n, p]`."""
    return _so_far(np.concatenate([np.nan_to_num(np.clip(found.noise, -4, 4)), found.inputs], 1), found.episode)


def _so_far(values: np.ndarray, episode: np.ndarray) -> np.ndarray:
    """Sums over the steps before, by their number and one more, `[n, p]`."""
    first = np.maximum.accumulate(np.where(np.append(True, np.diff(episode) != 0), np.arange(len(values)), 0))
    before = np.cumsum(values, 0) - values
    return (before - before[first]) / (np.arange(len(values)) - first + 1)[:, None]


def _last(found: Noise) -> np.ndarray:
    """Noise, state and action of the step before; zero where there is none, `[n, p]`."""
    values = np.concatenate([np.nan_to_num(np.clip(found.noise, -4, 4)), found.inputs], 1)
    follows = np.append(False, (np.diff(found.episode) == 0) & (np.diff(found.time) == 1))
    return np.where(follows[:, None], np.roll(values, 1, 0), 0.0)


def features(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Standardized columns, their products, and random waves."""
    x = (x - x.mean(0)) / spread_of(x)
    size = x.shape[1]
    one, other = np.triu_indices(size) if size <= MOST_PRODUCTS else (np.arange(size), np.arange(size))
    waves = np.cos(x @ rng.normal(size=(size, WAVES)) / np.sqrt(2) + rng.uniform(0, 2 * np.pi, WAVES))
    return np.concatenate([x, x[:, one] * x[:, other], waves], 1)


def left_of(features: np.ndarray, target: np.ndarray, part: np.ndarray) -> np.ndarray:
    """What regressions on the other parts of the episodes leave of the targets, `[n, q]`."""
    left = np.zeros(target.shape)
    for k in np.unique(part):
        rest, own = part != k, part == k
        center, mean = features[rest].mean(0), target[rest].mean(0)
        x = features[rest] - center
        weights = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ (target[rest] - mean))
        left[own] = target[own] - mean - (features[own] - center) @ weights
    return left
