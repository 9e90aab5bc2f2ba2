"""Confidence intervals for means, and for sums of ratios of means, over independent episodes.

Every estimator here is such a sum: with z̄ the mean over episodes,

    θ = mean(plain) + Σ_k mean(numerator_k) / mean(denominator_k),

importance sampling without normalization being the case of no ratios, weighted importance sampling that of one, and
its per-decision form that of one ratio a step. So one bootstrap, one jackknife and one linearization serve all.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coulda.errors import CouldaError
from coulda.pomdp.rollout import check_discount
from coulda.scales import normal_below, normal_quantile, student_quantile

AT_ONCE = 2**16
"""Counts of episodes that are drawn at a time: with millions of them the bootstrap takes three times as long."""
BOOTSTRAP_LIMIT = 20_000
"""Episodes beyond which BCa is not worth its time: its corrections are of the order 1/N, here below 0.01 %."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    kind: str
    """How it was found: "student", "bca", "bootstrap", "bernstein" or "woodruff"."""

    def __contains__(self, value: float) -> bool:
        """Whether the value lies in it."""
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        """High minus low."""
        return self.high - self.low


@dataclass(frozen=True)
class Ratios:
    """The sufficient statistics of an estimator, one row an episode."""

    plain: np.ndarray
    """`[N]`."""
    numerator: np.ndarray
    """`[N, K]`."""
    denominator: np.ndarray
    """`[N, K]`."""

    @staticmethod
    def mean_of(values: np.ndarray) -> "Ratios":
        """θ = mean(values)."""
        nothing = np.zeros((len(values), 0))
        return Ratios(values, nothing, nothing)

    @cached_property
    def value(self) -> float:
        """θ."""
        return float(self._theta(self.plain.mean(), self.numerator.mean(0), self.denominator.mean(0)))

    @cached_property
    def terms(self) -> np.ndarray:
        """θ plus each episode's influence on it, `[N]`: their mean is θ, their spread its standard error."""
        scale = self.denominator.mean(0)
        ratio = self.numerator.mean(0) / scale
        # As products, since another array of this size costs more than the sums.
        return self.plain + ratio.sum() + self.numerator @ (1 / scale) - self.denominator @ (ratio / scale)

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """θ of logs in which episode i occurs `counts[b, i]` times, `[B]`."""
        size = counts.sum(1)
        plain = counts @ self.plain / size
        return self._theta(plain, counts @ self.numerator, counts @ self.denominator)

    def leave_one_out(self) -> np.ndarray:
        """θ without each of the episodes, `[N]`."""
        n = len(self.plain)
        plain = (self.plain.sum() - self.plain) / (n - 1)
        return self._theta(plain, self.numerator.sum(0) - self.numerator, self.denominator.sum(0) - self.denominator)

    @staticmethod
    def _theta(plain, numerator, denominator):
        # A resample of episodes that all have weight zero says nothing; the plain part is what is left of it.
        ratio = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
        return plain + ratio.sum(-1)


def student(terms: np.ndarray, level: float) -> Interval:
    """Mean ± t · standard error, with N - 1 degrees of freedom."""
    n = len(terms)
    if n < 2:
        return Interval(-np.inf, np.inf, level, "student")
    half = student_quantile(0.5 + level / 2, n - 1) * terms.std(ddof=1) / np.sqrt(n)
    return Interval(float(terms.mean() - half), float(terms.mean() + half), level, "student")


def widened(interval: Interval, value: float, error: float, freedom: int, why: str) -> Interval:
    """An interval of a value that has another, independent standard error too, known to so many degrees of freedom.

    >>> widened(Interval(-3.0, 3.0, 0.95, "student"), 0.0, 0.0, 4, "refits")
    Interval(low=-3.0, high=3.0, level=0.95, kind='student')
    """
    if error == 0:
        return interval
    more = float(student_quantile((1 + interval.level) / 2, freedom)) * error
    low, high = (float(np.hypot(value - limit, more)) for limit in (interval.low, interval.high))
    return Interval(value - low, value + high, interval.level, f"{interval.kind} and {why}")


@dataclass(frozen=True)
class MeanInterval:
    """A mean over seeds and its 95% interval (Student's)."""

    mean: float
    low: float
    high: float


def mean_interval(values: np.ndarray) -> MeanInterval:
    """Of one number a seed."""
    found = student(values, 0.95)
    return MeanInterval(float(values.mean()), found.low, found.high)


def bca(rng: np.random.Generator, ratios: Ratios, level: float, resamples: int = 2000) -> Interval:
    """Bias-corrected and accelerated bootstrap over episodes (Efron, 1987); Student's for very long logs."""
    n = len(ratios.plain)
    if n > BOOTSTRAP_LIMIT or n < 2 or np.ptp(ratios.terms) == 0:
        return student(ratios.terms, level)
    theta = np.sort(_bootstrap(rng, ratios, resamples))
    # Ties are counted half, so that a discrete statistic is not taken for a biased one.
    below = (np.sum(theta < ratios.value) + np.sum(theta <= ratios.value)) / (2 * resamples)
    bias = normal_quantile(np.clip(below, 1 / resamples, 1 - 1 / resamples))
    influence = ratios.leave_one_out()
    # The acceleration has no unit; powers of the smallest weights would be 0.
    influence = unit_free(influence.mean() - influence)
    squares = np.sum(influence**2)
    acceleration = np.sum(influence**3) / (6 * squares**1.5) if squares > 0 else 0.0
    z = bias + normal_quantile([(1 - level) / 2, (1 + level) / 2])
    low, high = np.quantile(theta, normal_below(bias + z / (1 - acceleration * z)))
    return Interval(float(low), float(high), level, "bca")


def unit_free(values: np.ndarray) -> np.ndarray:
    """Values over the largest of them by absolute value: what has no unit stays, and no power of them is lost.

    >>> unit_free(np.array([1e-200, -2e-200]))
    array([ 0.5, -1. ])
    """
    largest = np.abs(values).max(initial=0.0)
    return values / largest if largest > 0 else values


def hull(one: Interval, other: Interval) -> Interval:
    """The least interval that holds both.

    BCa follows skewed terms, and resamples know nothing of weights that were not drawn; Student's is symmetric.
    """
    if one.kind == other.kind:
        return one
    return Interval(min(one.low, other.low), max(one.high, other.high), one.level, f"{one.kind} and {other.kind}")


def bernstein(terms: np.ndarray, level: float, bounds: tuple[float, float]) -> Interval:
    """Empirical Bernstein bound (Maurer & Pontil, 2009) for terms in `bounds`: holds for every N, and is wide.

    Each side holds with probability 1 - δ/2, δ = 1 - level.
    """
    n, spread = len(terms), bounds[1] - bounds[0]
    if terms.min() < bounds[0] - 1e-6 or terms.max() > bounds[1] + 1e-6:
        raise CouldaError(f"terms reach from {terms.min():g} to {terms.max():g}, outside bounds={bounds}")
    if n < 2:
        return Interval(bounds[0], bounds[1], level, "bernstein")
    log = np.log(4 / (1 - level))
    half = np.sqrt(2 * terms.var(ddof=1) * log / n) + 7 * spread * log / (3 * (n - 1))
    low, high = max(bounds[0], terms.mean() - half), min(bounds[1], terms.mean() + half)
    return Interval(float(low), float(high), level, "bernstein")


def _bootstrap(rng: np.random.Generator, ratios: Ratios, resamples: int) -> np.ndarray:
    """θ of `resamples` logs drawn with replacement, as many counts at a time as a core's cache holds."""
    n = len(ratios.plain)
    at_once = max(1, AT_ONCE // n)
    found = []
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        rows = rng.integers(0, n, (size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(rows.ravel(), minlength=size * n).reshape(size, n).astype(float)
        found.append(ratios.resampled(counts))
    return np.concatenate(found)


KINDS = ("student", "bca", "bernstein")


@dataclass(frozen=True)
class Precision:
    """How precisely to answer: the intervals, and how many scenarios are drawn."""

    level: float = 0.95
    """The level of the intervals."""
    interval: str | None = None
    """The kind: "student", "bca" or "bernstein"; by default what holds both of the first where episodes are
    weighted, and Student's elsewhere. Bernstein bounds hold for every number of episodes; they need terms that are
    returns: what is weighted keeps the default."""
    bounds: tuple[float, float] | None = None
    """The least and the largest possible return, which "bernstein" needs."""
    scenarios: int = 1
    """Scenarios per logged episode. Their mean is the episode's term, so that the spread of terms covers both the
    sampling of episodes and that of scenarios."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise CouldaError(f"level is {self.level}; it must lie between 0 and 1, such as 0.95")
        if self.interval not in (None, *KINDS):
            raise CouldaError(f"interval is {self.interval!r}; use one of {', '.join(map(repr, KINDS))}")
        if self.interval == "bernstein" and self.bounds is None:
            raise CouldaError("a Bernstein bound needs the least and the largest return: give bounds=(low, high)")
        if self.scenarios < 1:
            raise CouldaError(f"scenarios is {self.scenarios}; draw at least 1 per episode")

    def of_returns(self, rng: np.random.Generator, ratios: Ratios) -> Interval:
        """The interval of a mean whose terms are returns."""
        if self.interval == "bernstein":
            assert self.bounds is not None
            return bernstein(ratios.terms, self.level, self.bounds)
        return bca(rng, ratios, self.level) if self.interval == "bca" else student(ratios.terms, self.level)

    def of_weighted(self, rng: np.random.Generator, ratios: Ratios) -> Interval:
        """The interval of an estimate whose terms are weighted, and so not bounded as the return is."""
        symmetric = student(ratios.terms, self.level)
        if self.interval == "student":
            return symmetric
        found = bca(rng, ratios, self.level)
        return found if self.interval == "bca" else hull(found, symmetric)


@dataclass(frozen=True)
class Returns:
    """G = Σ_t γ^t r_t, t from 0: its mean is estimated, and what else is asked of its distribution."""

    discount: float = 1.0
    """γ, the worth of what is paid one step later, in (0, 1]; 1 is the paper's, undiscounted."""

    quantiles: tuple[float, ...] = ()
    """Such as 0.05 and 0.5, the median."""
    cvar: tuple[float, ...] = ()
    """Shares of the worst returns whose mean is asked for, such as 0.1."""

    def __post_init__(self) -> None:
        if self.discount != 1:
            check_discount(self.discount)
        for name in ("quantiles", "cvar"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for share in getattr(self, name):
                if not 0 < share < 1:
                    raise CouldaError(f"{name} has {share}; a share lies between 0 and 1, such as 0.05")

    @property
    def beyond_the_mean(self) -> bool:
        """Whether anything is asked of the distribution."""
        return bool(self.quantiles or self.cvar)

    def __str__(self) -> str:
        """Such as "return" or "return, discounted by 0.9"."""
        return "return" if self.discount == 1 else f"return, discounted by {self.discount:g} a step"

    def paid(self, reward: np.ndarray) -> np.ndarray:
        """γ^t r_t of rewards `[..., T]`."""
        return reward if self.discount == 1 else reward * self.discount ** np.arange(reward.shape[-1])
