"""Are discrete observations Markov? Fitted Q evaluation takes them for the state, and cannot know by itself.

Given the observation and the action, what follows must not depend on what came before. What follows is one number,
y = r + G(o'), with G(o') the mean logged return after o'. Among the steps with the same (o, a), y is compared between
those with different (o, a) one step earlier: the sum of squares between them, against the same with y permuted.
"""

import numpy as np
from scipy import stats

from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic

PERMUTATIONS = 100
"""Enough for the mean and the variance of the statistic, to which a gamma distribution is matched."""
MOST_STEPS = 20_000
"""Of the log's first episodes: a dependence that explains 1 % of the variance is found with far fewer."""
SMALL_SHARE = 0.01
"""Of the variance of what follows. Below it the correlation with the past is under 0.1: a reason for caution only."""


def markov_diagnostic(
    rng: np.random.Generator,
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    live: np.ndarray,
    continues: np.ndarray,
) -> tuple[Diagnostic, ...]:
    """Whether the past matters, given the present.

    Args:
        rng: of the permutations.
        observation: `[N, T + 1]`, numbers from 0.
        action: `[N, T]`, numbers from 0.
        reward: `[N, T]`.
        live: whether the step was taken, `[N, T]`.
        continues: whether the episode went on after it, `[N, T]`.
    """
    cell = observation[:, :-1] * (action.max() + 1) + action
    outcome = reward + np.where(continues, _return_after(observation, reward, live)[observation[:, 1:]], 0.0)
    later = live[:, 1:]
    present, past, y = (x[later][:MOST_STEPS] for x in (cell[:, 1:], cell[:, :-1], outcome[:, 1:]))
    present, past, y = _standardized(present, past, y)
    if not len(y):
        return ()
    group = np.unique(present * (cell.max() + 1) + past, return_inverse=True)[1]
    size = np.bincount(group)
    ordered = np.argsort(present, kind="stable")

    def between(values: np.ndarray) -> float:
        return float((np.bincount(group, values) ** 2 / size).sum())

    def permuted() -> np.ndarray:
        shuffled = np.empty_like(y)
        shuffled[ordered] = y[np.lexsort((rng.random(len(y)), present))]
        return shuffled

    chance = np.array([between(permuted()) for _ in range(PERMUTATIONS)])
    return (_verdict(between(y), chance, len(y)),)


def _return_after(observation: np.ndarray, reward: np.ndarray, live: np.ndarray) -> np.ndarray:
    """The mean logged return from each observation on, `[O]`; 0 where nothing was done."""
    to_go = np.flip(np.cumsum(np.flip(np.where(live, reward, 0.0), 1), 1), 1)
    seen, length = observation[:, :-1][live], int(observation.max()) + 1
    return np.bincount(seen, to_go[live], length) / np.maximum(np.bincount(seen, minlength=length), 1)


def _standardized(present: np.ndarray, past: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Outcomes with mean 0 and variance 1 among the steps of each cell, and only cells in which they vary."""
    present = np.unique(present, return_inverse=True)[1]
    count = np.bincount(present)
    centered = y - (np.bincount(present, y) / count)[present]
    variance = np.bincount(present, centered**2) / np.maximum(count - 1, 1)
    kept = variance[present] > 1e-9
    return present[kept], past[kept], centered[kept] / np.sqrt(variance[present[kept]])


def _verdict(found: float, chance: np.ndarray, steps: int) -> Diagnostic:
    mean, variance = chance.mean(), chance.var(ddof=1)
    probability = float(stats.gamma.sf(found, mean**2 / variance, scale=variance / mean)) if variance > 0 else 1.0
    share = max(0.0, float((found - mean) / steps))
    if probability >= UNUSUAL:
        sentence = "Given the observation and the action, what follows does not depend on what came before."
        return Diagnostic("markov", probability, "trust", sentence)
    sentence = (
        f"Given the observation and the action, what came before explains {share:.1%} of the variance of what follows, "
        f"which it would in a Markov world with probability {probability:.0e}: the observation is not the state that "
        "fitted values take it for."
    )
    certain = probability < RARE and share >= SMALL_SHARE
    return Diagnostic("markov", probability, "do not trust" if certain else "caution", sentence)
