"""Are two samples of one distribution? Their energy distance tells (Székely & Rizzo, 2013), whatever they hold."""

import numpy as np

from coulda.scales import chi_square_above

PERMUTATIONS = 200
"""Enough for the mean and the deviation of the statistic; the shape of its tail comes from its spectrum."""
DIRECTIONS = 24
"""Onto which vectors are projected: the energy distance is the mean over all of them."""
SPECTRUM = 200
"""Episodes that the spectrum is taken of."""


def energy_test(rng: np.random.Generator, first: np.ndarray, second: np.ndarray) -> float:
    """Probability that two samples `[n, d]` and `[m, d]` of one distribution are as far apart as these.

    The mean and the deviation of the energy distance under exchange of rows come from permutations. Its law is that of
    Σ λ_k χ²_1, with λ the spectrum of the centered distances, and so is its tail: a χ² of the same skewness (Liu, Tang
    & Zhang, 2009). A gamma distribution of the same mean and variance would make 1e-4 of what is 4.5e-4, for numbers.
    """
    both = np.concatenate([first, second])
    if both.shape[1] > 1:
        directions = rng.normal(size=(both.shape[1], DIRECTIONS))
        both = both @ (directions / np.linalg.norm(directions, axis=0))
    labels = np.concatenate([np.full(len(first), 1 / len(first)), np.full(len(second), -1 / len(second))])
    signs = np.stack([labels, *(rng.permutation(labels) for _ in range(PERMUTATIONS))])
    found, *chance = np.sum([_distances(column, signs) for column in both.T], axis=0)
    mean, deviation = float(np.mean(chance)), float(np.std(chance, ddof=1))
    if deviation <= 1e-12 * max(found, 1e-300):
        return 1.0
    variation, skewness = _shape(both[rng.permutation(len(both))[:SPECTRUM]])
    # So few permutations may miss the tail that makes most of the deviation: the larger of two estimates.
    deviation, freedom = max(deviation, variation * mean), 8 / skewness**2
    return float(chi_square_above(freedom + (found - mean) / deviation * np.sqrt(2 * freedom), freedom))


def _distances(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """∫ (F - G)² for each row of signs, half the energy distance of one column of numbers."""
    order = np.argsort(values)
    apart = np.take(signs, order, axis=1)
    np.square(np.cumsum(apart, 1, out=apart), out=apart)
    return apart[:, :-1] @ np.diff(values[order])


def _shape(rows: np.ndarray) -> tuple[float, float]:
    """Deviation by mean, and skewness, of Σ λ_k χ²_1, with λ the spectrum of the centered distances between rows."""
    distance = np.abs(rows[:, None, :] - rows[None, :, :]).sum(-1)
    centered = -(distance - distance.mean(0) - distance.mean(1)[:, None] + distance.mean())
    square = centered @ centered
    first, second, third = np.trace(centered), np.trace(square), np.sum(square * centered)
    if second <= 0:  # all of these rows are equal: the others differ in a few, as a coin does
        return np.sqrt(2), np.sqrt(8)
    return float(np.sqrt(2 * second) / first), float(np.clip(np.sqrt(8) * third / second**1.5, 0.1, np.sqrt(8)))
