"""Are discrete observations Markov? Fitted Q evaluation takes them for the state, and cannot know by itself.

Given the observation and the action, what follows must not depend on what came before. What follows is one number,
y = r + G(o'), with G(o') the mean logged return after o'. Among the steps with the same (o, a), y is compared between
those with different (o, a) one step earlier: the sum of squares between them, against the same with y permuted.
"""

import numpy as np
from scipy import special

from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.reading import Reading
from coulda.scales import RESOLUTION, normal_above, spread_of

PERMUTATIONS = 100
"""Enough for the mean and the variance of the statistic, to which a gamma distribution is matched."""
MOST_STEPS = 20_000
"""Of the log's first episodes: a dependence that explains 1 % of the variance is found with far fewer."""
RANDOM_FEATURES = 40
"""Of (o, a) and the step before, to foresee errors with."""
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
    kept = variance[present] > RESOLUTION**2 * np.square(y).max(initial=0.0)
    return present[kept], past[kept], centered[kept] / np.sqrt(variance[present[kept]])


def _verdict(found: float, chance: np.ndarray, steps: int) -> Diagnostic:
    mean, variance = chance.mean(), chance.var(ddof=1)
    shape, rate = mean**2 / max(variance, 1e-300), mean / max(variance, 1e-300)
    probability = float(special.gammaincc(shape, max(found, 0.0) * rate)) if variance > 0 else 1.0
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


def residual_diagnostic(
    rng: np.random.Generator, inputs: np.ndarray, reading: Reading, errors: np.ndarray
) -> tuple[Diagnostic, ...]:
    """Whether held-out temporal differences of fitted values can be foreseen, for vectors of features.

    Where the observation is the state and the regression can hold the values, nothing that was seen before tells of
    them. They are regressed on random features of (o_t, a_t) and of the step before, in half of the episodes, and
    predicted in the other half: their correlation with the prediction is then tested, episodes being independent.

    Args:
        rng: deals the halves and draws the features.
        inputs: `[N, T + 1, d]`.
        reading: of the log.
        errors: δ_t of values that were fitted to other episodes, `[N, T]`, zero after the end.
    """
    later = reading.live[:, 1:].any(1)
    if errors.shape[1] < 2 or later.sum() < 2 * FEW_EPISODES:
        return ()
    assert reading.action is not None
    numbers = _scaled(reading.action, reading.live) if reading.continuous else None
    actions = np.eye(int(reading.action.max()) + 1)[reading.action] if numbers is None else numbers
    seen = np.concatenate([_scaled(inputs[:, :-1], reading.live), actions], -1)
    pair = np.concatenate([seen[:, 1:], seen[:, :-1]], -1)
    waves = np.cos(
        pair @ rng.normal(size=(pair.shape[-1], RANDOM_FEATURES)) + rng.uniform(0, 2 * np.pi, RANDOM_FEATURES)
    )
    basis = np.concatenate([pair, waves, np.ones((*pair.shape[:2], 1))], -1)
    live, target = reading.live[:, 1:], errors[:, 1:]
    half = rng.permutation(len(target)) % 2 == 0
    products = np.zeros(len(target))
    for train, test in ((half, ~half), (~half, half)):
        x, y = basis[train][live[train]], target[train][live[train]]
        weights = np.linalg.solve(x.T @ x + 1e-2 * len(x) * np.eye(x.shape[1]), x.T @ (y - y.mean()))
        foreseen = np.where(live[test], basis[test] @ weights, 0.0)
        products[test] = (foreseen * np.where(live[test], target[test] - y.mean(), 0.0)).sum(1)
    error = products.std(ddof=1) / np.sqrt(len(products))
    chance = float(normal_above(products.mean() / error)) if error > 0 else 1.0
    share = max(0.0, float(products.sum() / max((target[live] ** 2).sum(), 1e-300)))
    if chance >= UNUSUAL:
        sentence = "What was seen before does not tell of the errors of the fitted values."
        return (Diagnostic("residuals", chance, "trust", sentence),)
    sentence = (
        f"What was seen before explains {share:.1%} of the errors of the fitted values, which it would with "
        f"probability {chance:.0e} if the observation were the state and the regression could hold its value."
    )
    certain = chance < RARE and share >= SMALL_SHARE
    return (Diagnostic("residuals", chance, "do not trust" if certain else "caution", sentence),)


def _scaled(inputs: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Features with mean 0 and scale 1 over the steps that were taken."""
    taken = inputs[live]
    return (inputs - taken.mean(0)) / spread_of(taken)
