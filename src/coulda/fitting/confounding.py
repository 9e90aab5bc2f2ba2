"""Did whoever acted know more than was logged? A test for tables, which needs no truth.

Where the observation is the state, what follows it and the action does not depend on what came before. Where something
is hidden that lasts, it does; and where whoever acted went by it, so do the actions, given the observation. Actions
alone may also be those of a policy with memory, which the log cannot tell from one that saw more: a reason for caution.
Both together are what makes a log mislead: actions are found where they do no harm.

Of what follows see `coulda.fitting.lasting`. Actions are asked as a prediction of unseen episodes, with the step before
and with that of another step of the same kind.
"""

from typing import NamedTuple

import numpy as np

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic, Verdict
from coulda.fitting.judging import SMALL_MISS
from coulda.fitting.lasting import Lasting, lasting, numbered
from coulda.scales import normal_above

SHUFFLES = 4
"""Others that the step before is held against."""
PULL = 5.0
"""Pseudo-counts of the coarser kind, in which a finer one is embedded."""
LEAST_GAIN = 0.01
"""Nats a step: of a dependence that explains less little follows. Actions in sepsis without glucose have 0.08."""


class Trace(NamedTuple):
    """How much of something is told by what came before."""

    nats: float
    """A step; of a number as if it were normal."""
    chance: float
    """With which nothing tells as much."""
    matters: bool
    """Whether it is of consequence."""
    surely: bool
    """Whether it is of consequence for certain."""
    size: str
    """How much it is, in words."""


NOTHING = Trace(0.0, 1.0, False, False, "nothing")


def in_nats(nats: float, chance: float, least: float) -> Trace:
    """Of consequence from so many nats on."""
    return Trace(nats, chance, nats >= least, nats >= least, f"{nats:.2g} nats a step")


def confounding(rng: np.random.Generator, log: EpisodeLog, fold: np.ndarray) -> tuple[Diagnostic, ...]:
    """Whether what follows, and what is done, depend on what came before; `fold` is of each episode."""
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    state, done = np.asarray(log.observation).astype(int)[before], np.asarray(log.action).astype(int)
    episode = np.repeat(np.arange(len(log)), log.lengths)
    later = np.flatnonzero(np.arange(len(before)) > log.starts[episode])
    if np.unique(episode[later]).size < 2 * FEW_EPISODES:
        return ()
    pasts = (done[later - 1][:, None], np.stack([state[later - 1], done[later - 1]], 1))
    own, of = fold[episode[later]], episode[later]
    acts = [_gain(rng, state[later][:, None], past, done[later], own, of) for past in pasts]
    found = lasting(rng, log)
    moves, unseen = _in_returns(found, log.num_steps / len(log))
    tests = len(acts) + len(found)
    return (verdict_of(moves, min(acts, key=lambda act: act.chance), tests, "what came before", unseen),)


def _in_returns(found: list[Lasting], steps: float) -> tuple[Trace, str]:
    """The least likely, in deviations of the return of so many steps; and what is to be said where nothing is found.

    What lasts moves each step the same way, and chance does not: of a share of the variance of a step, an episode of T
    steps makes √(T · share) deviations of what it returns.
    """
    if not found:
        return (
            NOTHING,
            "No two episodes did the same in the same place: whether what follows depends on it too is not known.",
        )
    least_likely, most = min(found, key=lambda x: x.chance), max(x.most for x in found)
    effect, least, most = (float(np.sqrt(steps * max(x, 0.0))) for x in (least_likely.share, least_likely.least, most))
    nats = float(-0.5 * np.log1p(-np.clip(least_likely.share, 0.0, 0.99)))
    unseen = (
        f"Whether what follows depends on it too, this log is too small to show: {most:.2g} deviations of the return "
        "might, unseen."
        if most >= SMALL_MISS
        else f"What follows does not, by more than {most:.2g} deviations of the return: it looks like memory."
    )
    size = f"{effect:.2g} deviations of the return"
    return Trace(nats, least_likely.chance, effect >= SMALL_MISS, least >= SMALL_MISS, size), unseen


def verdict_of(moves: Trace, acts: Trace, tests: int, by: str, unseen: str = "") -> Diagnostic:
    """On how much of what follows, and of what is done, is told `by` something that was there before.

    `unseen` is what is to be said where actions alone depend on it.
    """
    lasts, knows = (tests * x.chance < limit and x.matters for x, limit in ((moves, UNUSUAL), (acts, RARE)))
    certain = lasts and knows and tests * moves.chance < RARE and moves.surely
    follows = f"Given state and action, what follows depends on {by} ({moves.size})."
    does = f"Given what was seen, what was done depends on {by} ({acts.size})"
    mistaken = "what actions do is mistaken for whom they were given to."
    told = [f"Given what was seen, neither what follows nor what is done depends on {by}."]
    if certain:
        told = [
            "Something that was not logged drives both what was done and what followed.",
            follows,
            f"{does}:",
            mistaken,
        ]
    elif knows:
        told = [follows] if lasts else []
        told += [f"{does}: whoever acted remembers, or knew what was not logged. If they knew, {mistaken}"]
        told += [] if lasts or not unseen else [unseen]
    elif lasts:
        told = [follows]
    verdict: Verdict = "do not trust" if certain else "caution" if lasts or knows else "trust"
    return Diagnostic("confounding", max(moves.nats, acts.nats), verdict, " ".join(told))


def _gain(
    rng: np.random.Generator,
    cell: np.ndarray,
    past: np.ndarray,
    target: np.ndarray,
    fold: np.ndarray,
    episode: np.ndarray,
) -> Trace:
    """By the past of a step, over that by the past of another step in the same cell."""
    coarse, target = numbered(*cell.T), numbered(target)
    real = _log_prob(coarse, numbered(coarse, *past.T), target, fold)
    others = np.zeros_like(real)
    inside = np.argsort(coarse, kind="stable")
    for _ in range(SHUFFLES):
        shuffled = np.empty_like(past)
        shuffled[inside] = past[np.lexsort((rng.random(len(past)), coarse))]
        others += _log_prob(coarse, numbered(coarse, *shuffled.T), target, fold) / SHUFFLES
    each = np.bincount(episode, real - others)[np.bincount(episode) > 0]
    error = each.std(ddof=1) / np.sqrt(len(each))
    chance = float(normal_above(each.mean() / error)) if error > 0 else 1.0
    return in_nats(float((real - others).mean()), chance, LEAST_GAIN)


def _log_prob(coarse: np.ndarray, fine: np.ndarray, target: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Of what happened, by frequencies of the other folds in the fine cell, pulled to those in the coarse one."""
    likely = np.full(len(target), 1 / (target.max() + 1))
    for kind, pull in ((coarse, 1.0), (fine, PULL)):
        both = numbered(kind, target)
        there, so = _elsewhere(kind, fold), _elsewhere(both, fold)
        likely = (so + pull * likely) / (there + pull)
    return np.log(likely)


def _elsewhere(kind: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """How many rows of the same kind the other folds have."""
    own = numbered(kind, fold)
    return np.bincount(kind)[kind] - np.bincount(own)[own]
