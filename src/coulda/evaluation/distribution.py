"""Beyond the mean: quantiles of the return, and the mean of its worst share (CVaR), from weighted returns.

With w_i the normalized weight of return G_i, F(x) = Σ_i w_i 1{G_i ≤ x},

    quantile_q = min {x : F(x) ≥ q},   CVaR_q = x - E[(x - G)⁺] / q at x = quantile_q,

the mean of the worst share q of all returns. Importance sampling has one return and one weight per logged episode; what
is run, in a model or in the world, has returns of equal weight, several for each logged episode.

A quantile's interval is that of F, as of so many independent draws as would know it as well, turned back into returns
(Woodruff, 1952; Clopper & Pearson, 1934): it holds for returns of a few values, too, and is open where so few episodes
cannot tell how bad the worst is. A CVaR is a mean to first order, since its derivative by x is zero; its bootstrap
finds x anew in every resample (with x held, intervals of 95 % held the truth of a small world in 92 % of 400 logs).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jax import Array
from scipy import special

from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.intervals import Interval, Precision, Ratios, Returns
from coulda.evaluation.reading import generator
from coulda.noise import effective_sample_size
from coulda.scales import normal_quantile

ENOUGH, LITTLE = 10, 3
"""Effective draws beyond a quantile: the share beyond is known to a third with ten of them, and hardly with three."""
MOST_NUMBERS = 4_000_000
"""In memory at once, while resamples are counted."""
ROUNDING = 1e-9
"""Sums of weights are not exact: a share that is reached up to this is reached."""


def distribution_of(
    key: Array, method: str, returns: np.ndarray, weights: np.ndarray, asked: Returns, precision: Precision
) -> dict[str, Estimate]:
    """Quantiles and CVaRs by their names, such as "0.05 quantile" and "0.1 CVaR".

    Args:
        key: for the bootstrap; consumed.
        method: whose row they belong to.
        returns: `[N]`, or `[N, M]` where each of N independent episodes has M equally likely ones.
        weights: of the episodes, `[N]`, in any unit.
        asked: which of them.
        precision: the level, and the kind of the intervals.
    """
    if not asked.beyond_the_mean:
        return {}
    draws = returns.reshape(len(returns), -1)
    order = np.argsort(draws, axis=None)
    values = draws.ravel()[order]
    share = np.cumsum(np.repeat(weights / weights.sum() / draws.shape[1], draws.shape[1])[order])

    def at(q: float) -> float:
        """The least return of which at least the share q is at or below."""
        return float(values[min(int(np.searchsorted(share, q - ROUNDING)), len(values) - 1)])

    found = {}
    for q in asked.quantiles:
        x = at(q)
        below = _ratio((draws <= x).mean(1), weights)
        size = _worth(below, weights, draws.size)
        low, high = _limits(q, size, precision.level)
        limits = at(low) if low > 0 else -np.inf, at(high) if high < 1 else np.inf
        interval = Interval(*limits, precision.level, "woodruff")
        terms = x + _influence(below, interval, precision.level)
        found[f"{q:.4g} quantile"] = _estimate(method, x, interval, terms, weights, size * min(q, 1 - q))
    for q in asked.cvar:
        x = at(q)
        mean = _ratio((x - np.maximum(x - draws, 0) / q).mean(1), weights)
        mean = WorstShare(mean.plain, mean.numerator, mean.denominator, q, draws, order)
        size = _worth(_ratio((draws <= x).mean(1), weights), weights, draws.size)
        interval = precision.of_weighted(generator(key), mean)
        found[f"{q:.4g} CVaR"] = _estimate(method, mean.value, interval, mean.terms, weights, size * q)
    return found


@dataclass(frozen=True)
class WorstShare(Ratios):
    """The mean of the worst share of returns: the ratio that it is at its quantile, found anew in each resample."""

    share: float
    draws: np.ndarray
    """`[N, M]`."""
    order: np.ndarray
    """Of all draws, from the worst on."""

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """The mean in logs in which episode i occurs `counts[b, i]` times, `[B]`, a few million numbers at a time."""
        values, episode = self.draws.ravel()[self.order], self.order // self.draws.shape[1]
        at_once = max(1, MOST_NUMBERS // len(values))
        return np.concatenate(
            [self._means(values, (part * self.denominator[:, 0])[:, episode]) for part in _pieces(counts, at_once)]
        )

    def _means(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        total = weights.sum(1, keepdims=True)
        above = np.cumsum(weights, 1) / np.where(total > 0, total, 1.0)
        inside = np.diff(np.minimum(above, self.share), axis=1, prepend=0.0)
        return inside @ values / self.share


def _pieces(counts: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(counts), size):
        yield counts[start : start + size]


def _ratio(numbers: np.ndarray, weights: np.ndarray) -> Ratios:
    """Their weighted mean."""
    return Ratios(np.zeros(len(numbers)), (weights * numbers)[:, None], weights[:, None])


def _worth(below: Ratios, weights: np.ndarray, most: int) -> float:
    """How many independent draws would know F as well, at the quantile; `most` are there."""
    found, n = below.value, len(weights)
    error = below.terms.var(ddof=1) / n if n > 1 else np.inf
    if error == 0 or not 0 < found < 1:
        return float(effective_sample_size(weights))
    return float(min(found * (1 - found) / error, most)) if np.isfinite(error) else 0.0


def _limits(q: float, size: float, level: float) -> tuple[float, float]:
    """Between which shares the quantile q lies; 0 and 1 where so few draws cannot tell."""
    beyond = (1 - level) / 2
    low = 0.0 if (1 - q) ** size > beyond else float(special.betaincinv(size * q, size * (1 - q) + 1, beyond))
    high = 1.0 if q**size > beyond else float(special.betaincinv(size * q + 1, size * (1 - q), 1 - beyond))
    return low, high


def _influence(below: Ratios, interval: Interval, level: float) -> np.ndarray:
    """How much each episode moves the quantile, `[N]`: as it moves F, in units that give the interval's width."""
    moved = below.value - below.terms
    error = moved.std(ddof=1) / np.sqrt(len(moved)) if len(moved) > 1 else 0.0
    if not np.isfinite(interval.width) or error == 0:
        return np.zeros(len(moved))
    return moved * interval.width / (2 * normal_quantile(0.5 + level / 2) * error)


def _estimate(
    method: str, value: float, interval: Interval, terms: np.ndarray, weights: np.ndarray, beyond: float
) -> Estimate:
    sentence = f"What lies beyond it weighs as much as {beyond:.1f} episodes; below {ENOUGH} little is known of it."
    found = Diagnostic("beyond", beyond, graded(-beyond, -ENOUGH, -LITTLE), sentence)
    ess = float(effective_sample_size(weights))
    return Estimate(method, value, interval, terms, ess, diagnostics=(found,))
