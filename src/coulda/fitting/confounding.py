"""Did whoever acted know more than was logged? A test for tables, which needs no truth.

Where the observation is the state, what follows it and the action does not depend on the step before. Where something
is hidden that lasts, it does; and where whoever acted went by it, so do the actions, given the observation. Actions
alone may also be those of a policy with memory, which the log cannot tell from one that saw more: a reason for caution.
Both together are what makes a log mislead: actions are found where they do no harm.

Both are asked as a prediction of unseen episodes, with the step before and with that of another step of the same kind.
"""

from typing import NamedTuple

import numpy as np

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic, Verdict
from coulda.tails import normal_above

SHUFFLES = 4
"""Others that the step before is held against."""
PULL = 5.0
"""Pseudo-counts of the coarser kind, in which a finer one is embedded."""
LEAST_GAIN = 0.01
"""Nats a step: of a dependence that explains less little follows. Actions in sepsis without glucose have 0.08."""


class Gain(NamedTuple):
    """How much better something is foreseen with the step before."""

    nats: float
    chance: float


def confounding(rng: np.random.Generator, log: EpisodeLog, fold: np.ndarray) -> tuple[Diagnostic, ...]:
    """Whether what follows, and what is done, depend on the step before; `fold` is of each episode."""
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    observed, action = np.asarray(log.observation).astype(int), np.asarray(log.action).astype(int)
    episode = np.repeat(np.arange(len(log)), log.lengths)
    later = np.flatnonzero(np.arange(len(before)) > log.starts[episode])
    if np.unique(episode[later]).size < 2 * FEW_EPISODES:
        return ()
    state, done = observed[before], action
    last = np.isin(np.arange(len(before)), np.cumsum(log.lengths) - 1)
    follows = observed[before + 1] * 2 + (last & log.terminated[episode])
    pasts = [done[later - 1][:, None], np.stack([state[later - 1], done[later - 1]], 1)]
    cell = np.stack([state[later], done[later]], 1)
    own, of = fold[episode[later]], episode[later]
    moves = min((_gain(rng, cell, past, follows[later], own, of) for past in pasts), key=lambda gain: gain.chance)
    acts = min((_gain(rng, cell[:, :1], past, done[later], own, of) for past in pasts), key=lambda gain: gain.chance)
    return (verdict_of(moves, acts, 2 * len(pasts), LEAST_GAIN, "the step before"),)


def verdict_of(moves: Gain, acts: Gain, tests: int, least: float, by: str) -> Diagnostic:
    """On how much of what follows, and of what is done, something `by` tells that was there before."""
    lasts = tests * moves.chance < UNUSUAL and moves.nats >= least
    knows = tests * acts.chance < RARE and acts.nats >= least
    verdict: Verdict = "trust"
    told = [f"Given what was seen, neither what follows nor what is done depends on {by}."]
    if lasts:
        verdict = "caution"
        told = [f"Given state and action, what follows depends on {by} ({moves.nats:.2g} nats a step)."]
    if knows:
        verdict = "do not trust" if lasts and tests * moves.chance < RARE else "caution"
        told = told if lasts else []
        told.append(
            f"Given what was seen, what was done depends on what came before ({acts.nats:.2g} nats a step): whoever "
            "acted remembers, or knew what was not logged. If they knew, what actions do is mistaken for whom they "
            "were given to."
        )
    return Diagnostic("confounding", max(moves.nats, acts.nats), verdict, " ".join(told))


def _gain(
    rng: np.random.Generator,
    cell: np.ndarray,
    past: np.ndarray,
    target: np.ndarray,
    fold: np.ndarray,
    episode: np.ndarray,
) -> Gain:
    """By the past of a step, over that by the past of another step in the same cell."""
    coarse, target = _numbers(cell), _numbers(target[:, None])
    real = _log_prob(coarse, _numbers(np.concatenate([cell, past], 1)), target, fold)
    others = np.zeros_like(real)
    inside = np.argsort(coarse, kind="stable")
    for _ in range(SHUFFLES):
        shuffled = np.empty_like(past)
        shuffled[inside] = past[np.lexsort((rng.random(len(past)), coarse))]
        others += _log_prob(coarse, _numbers(np.concatenate([cell, shuffled], 1)), target, fold) / SHUFFLES
    each = np.bincount(episode, real - others)[np.bincount(episode) > 0]
    error = each.std(ddof=1) / np.sqrt(len(each))
    chance = float(normal_above(each.mean() / error)) if error > 0 else 1.0
    return Gain(float((real - others).mean()), chance)


def _log_prob(coarse: np.ndarray, fine: np.ndarray, target: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Of what happened, by frequencies of the other folds in the fine cell, pulled to those in the coarse one."""
    likely = np.full(len(target), 1 / (target.max() + 1))
    for kind, pull in ((coarse, 1.0), (fine, PULL)):
        both = _numbers(np.stack([kind, target], 1))
        there, so = _elsewhere(kind, fold), _elsewhere(both, fold)
        likely = (so + pull * likely) / (there + pull)
    return np.log(likely)


def _elsewhere(kind: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """How many rows of the same kind the other folds have."""
    own = _numbers(np.stack([kind, fold], 1))
    return np.bincount(kind)[kind] - np.bincount(own)[own]


def _numbers(rows: np.ndarray) -> np.ndarray:
    """Different rows, numbered."""
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()
