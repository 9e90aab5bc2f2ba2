"""Ranks of a truth among draws, and what uneven ones say: the statistics of `calibrate`, on plain arrays."""

from collections.abc import Sequence

import numpy as np

from coulda.scales import chi_square_above, normal_quantile

GRID = 1e-4
"""Values that differ by less, in standard deviations, are equal: what rounding tells apart must not be ranked."""
POLYNOMIALS = 4
"""Of Neyman's smooth test: shifts, widths, skewness, and one more."""


def ranked(truth: np.ndarray, draws: np.ndarray, dice: np.ndarray) -> np.ndarray:
    """How many of `draws` `[n, L]` lie below `truth` `[n]`; among equals any place is as likely, by `dice` in [0, 1).

    The fraction of what is returned is uniform, so that of a right source it is uniform in [0, L + 1).
    """
    width = GRID * truth.std() + 1e-6 * np.abs(truth).max()
    if width > 0:
        # A grid, not a distance: equality must be transitive, or edges would be ranked unevenly. It is shifted, since
        # numbers such as 0 and 1/2 would lie on its edges.
        truth, draws = (np.floor(x / width + 0.381966) for x in (truth, draws))
    below, equal = (draws < truth[:, None]).sum(1), (draws == truth[:, None]).sum(1)
    return below + dice * (equal + 1)


def smooth_test(positions: np.ndarray) -> float:
    """The probability that numbers of [0, 1] that are uniform are this uneven (Neyman's smooth test).

    The mean of each Legendre polynomial, orthonormal on [0, 1], is standard normal over √n; their squares are added.
    """
    n = len(positions)
    moments = [np.sqrt(2 * k + 1) * _legendre(k, positions).sum() / np.sqrt(n) for k in range(1, POLYNOMIALS + 1)]
    return float(chi_square_above(np.sum(np.square(moments)), POLYNOMIALS))


def _legendre(degree: int, positions: np.ndarray) -> np.ndarray:
    return np.polynomial.legendre.Legendre.basis(degree)(2 * positions - 1)


def information(truth: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, float]:
    """By how much less draws `[n, L, d]` miss the truth `[n, d]` than those of the prior, `[n]`; and these by how much.

    A miss is the energy score E|x - u| - ½ E|x - x'| (in one dimension the CRPS), which no forecast makes smaller on
    average than the posterior. Other episodes' truths are draws of the prior; what lies beyond all of them counts as
    the outermost, lest a few draws that are far off be all that is seen.
    """
    draws = np.clip(draws, truth.min(0), truth.max(0))
    n, count = len(truth), min(draws.shape[1], len(truth) - 1)
    others = (np.arange(n)[:, None] + 1 + np.arange(count)) % n
    apart = _apart(truth[:, None], truth[others]).mean(1)
    prior = apart - 0.5 * apart.mean()
    # Each draw is held against the next one in the place of all others, which is as right on average.
    posterior = _apart(truth[:, None], draws).mean(1) - 0.5 * _apart(draws[:, 1:], draws[:, :-1]).mean(1)
    return prior - posterior, float(prior.mean())


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a - b, axis=-1)


def holm(p_values: Sequence[float]) -> np.ndarray:
    """The same probabilities over all of them together (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values)
    adjusted = np.maximum.accumulate(values[order] * (len(values) - np.arange(len(values))))
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def how_wrong(positions: np.ndarray) -> str:
    """What uneven ranks, as positions in [0, 1], say of the draws; sizes are those of normal distributions."""
    n = len(positions)
    shifted, widened = (np.sqrt(2 * k + 1) * _legendre(k, positions).sum() / np.sqrt(n) for k in (1, 2))
    if max(abs(shifted), abs(widened)) < 3:
        return "the ranks of the truth are uneven, but neither by a shift nor by a width"
    if abs(shifted) >= abs(widened):
        shift = np.sqrt(2) * normal_quantile(np.clip(positions.mean(), 1e-3, 1 - 1e-3))
        return f"draws lie too {'low' if shift > 0 else 'high'}, by about {abs(shift):.2g} deviations"
    # Var Φ(σ z) = asin(σ² / (1 + σ²)) / 2π for a standard normal z, where σ is the truth's width in those of the draws.
    share = np.sin(2 * np.pi * np.clip(np.mean((positions - 0.5) ** 2), 1e-3, 0.249))
    width = np.sqrt((1 - share) / share)
    return f"draws are too {'narrow' if width < 1 else 'wide'}, about {width:.2g} times as wide as they should be"
