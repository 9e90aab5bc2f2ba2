"""Are fitted behavior probabilities right? Held-out episodes tell, where weights rest on them.

The behavior is fitted again, without each fold of the episodes, and held against what was done in it. Given what was
seen, what is done in different steps is independent, so that steps count:

- Choices: steps are grouped by the probability that an action was given, and the share of them in which it was taken is
  compared with the mean probability (Hosmer & Lemeshow, 1980).
- Both: what was done and is not explained must not go with the action before, the step, or squares of what was seen.
- Numbers: where the fitted distribution is right, its own cumulative probability of what was done is uniform, in every
  group of steps with alike means (Gneiting, Balabdaoui & Raftery, 2007).
"""

import numpy as np
from gymnasium import spaces

from coulda.episodes import EpisodeLog
from coulda.episodes.behavior import choice_probabilities, fitted_behavior, held_out, location_and_scale, unexplained
from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic, Verdict
from coulda.evaluation.reading import Reading, sample
from coulda.scales import chi_square_above, normal_below

GROUPS = 5
"""Of steps, by what was predicted."""
LEVELS = 5
"""Of the cumulative probability, within a group."""
SMALL_MISS = 0.02
"""Of a probability: the fit itself misses as much where a few hundred steps tell of it."""
LARGE_MISS = 0.1
"""A ratio of probabilities of which one is off by a tenth is off as much, at every step."""


def propensity_diagnostic(reading: Reading) -> tuple[Diagnostic, ...]:
    """Of a log whose probabilities were fitted; nothing to say of others."""
    if reading.log.schema.behavior != "fitted":
        return ()
    return (reading.once("propensities", lambda: _checked(sample(np.random.default_rng(0), reading.log))),)


def _checked(log: EpisodeLog) -> Diagnostic:
    discrete = isinstance(log.schema.action_space, spaces.Discrete)
    square, size, freedom = _of_choices(log) if discrete else _of_numbers(log)
    chance = float(chi_square_above(square, max(freedom, 1)))
    told = f"fitted to other episodes, the behavior's probabilities are off by up to {size:.2g}"
    if chance >= UNUSUAL or size < SMALL_MISS:
        missed = unexplained(fitted_behavior(log, penalty=1.0), log.padded())
        if missed < UNUSUAL:
            text = (
                "What was done depends on the step, on what was done before, or otherwise on what was seen (a function "
                f"of the observation would do so with probability {missed:.0e}): fitted probabilities are not those."
            )
            return Diagnostic("propensities", missed, "caution", text)
        return Diagnostic("propensities", chance, "trust", f"Fitted probabilities are calibrated: {told}.")
    verdict: Verdict = "do not trust" if chance < RARE and size >= LARGE_MISS else "caution"
    return Diagnostic(
        "propensities",
        chance,
        verdict,
        f"Fitted probabilities are not calibrated: {told}, which happens to right ones with probability {chance:.0e}. "
        "Log what the behavior saw, or the probabilities themselves.",
    )


def _of_choices(log: EpisodeLog) -> tuple[float, float, float]:
    """The sum of squares, the largest miss, and the degrees of freedom."""
    said = held_out(log, choice_probabilities, penalty=1.0)
    actions = log.action - int(log.schema.action_space.start)  # pyright: ignore[reportAttributeAccessIssue]
    found = [_missed(p, (actions == a).astype(float), p * (1 - p), p) for a, p in enumerate(said.T)]
    # The probabilities of all actions sum to one, so that one of them is told by the others.
    share = 1 - 1 / len(found)
    return share * sum(f[0] for f in found), max(f[1] for f in found), share * sum(f[2] for f in found)


def _of_numbers(log: EpisodeLog) -> tuple[float, float, float]:
    both = held_out(log, lambda policy, part: np.concatenate(location_and_scale(policy, part), 1), penalty=1.0)
    mean, scale = np.split(both, 2, axis=1)
    below = normal_below((log.action.reshape(mean.shape) - mean) / scale)
    found = []
    for column, center in zip(below.T, mean.T, strict=True):
        for cell in range(LEVELS):
            inside = (column > cell / LEVELS) & (column <= (cell + 1) / LEVELS)
            chance = np.full(len(column), 1 / LEVELS)
            found.append(_missed(center, inside.astype(float), chance * (1 - chance), chance))
    share = 1 - 1 / LEVELS  # one level is told by the others
    return share * sum(f[0] for f in found), max(f[1] for f in found), share * sum(f[2] for f in found)


def _missed(
    by: np.ndarray, happened: np.ndarray, variance: np.ndarray, expected: np.ndarray
) -> tuple[float, float, int]:
    """Over groups of steps with alike `by`: Σ miss² / variance, the largest miss of a share, and how many groups."""
    group = np.searchsorted(np.unique(np.quantile(by, np.arange(1, GROUPS) / GROUPS)), by)
    square, size, count = 0.0, 0.0, 0
    for number in np.unique(group):
        here = group == number
        if (spread := variance[here].sum()) < 5:  # too few to be normal
            continue
        miss = (happened - expected)[here].sum()
        square, size, count = square + miss**2 / spread, max(size, abs(miss) / here.sum()), count + 1
    return float(square), float(size), count
