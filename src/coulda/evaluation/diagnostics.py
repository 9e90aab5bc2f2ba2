"""When not to believe an estimate: each diagnostic is a number, a threshold with a reason, and a plain sentence.

Every estimator can be asked what it says of the log itself, where the answer is known: the mean of the logged returns
is the value of whoever made the log. One that misses it by more than its interval allows is wrong about something that
the policy in question meets, too.
"""

from dataclasses import replace

import numpy as np

from coulda.evaluation.estimate import Diagnostic, Estimate, Verdict
from coulda.evaluation.intervals import Interval, unit_free, widened
from coulda.evaluation.reading import Reading
from coulda.evaluation.weights import Weighted
from coulda.noise import effective_sample_size
from coulda.scales import normal_above, unit_of

ENOUGH_WEIGHT = 70
"""Effective episodes for a nominal interval, where neither tail nor spread warns. Measured (results/NOTES.md):
from 70 on 95 % intervals hold the truth as often as with thousands, from 40 to 70 in 86 % of the answers."""
LITTLE_WEIGHT = 10
"""Below this many the standard error itself is off by more than 22 %, and the mean rests on a handful of episodes."""
SMALL_LOSS, LARGE_LOSS = 0.005, 0.05
"""Of all weight, to the cap. Measured (results/NOTES.md): where nothing else warns, intervals hold the truth
in 83 % of the logs with losses from 0.5 to 5 %; from 10 % on in 40 %."""
LONG_TAIL, PARETO_LIMIT = 0.7, 1.0
"""Shapes of the weights' tail. From 0.7 on averages converge too slowly to be of use (Vehtari et al., 2024), from 1 on
there is no mean. Between 0.5, where the variance is infinite, and 0.7 intervals were measured to hold the truth as
often as below (results/NOTES.md)."""
UNSTABLE_SPREAD = 0.4
"""Relative error of the squared standard error. Of normal terms it is √(2 / N), 0.26 with 30 of them; a rare event that
was seen k times has 1/√k, 0.4 with six. Measured (results/NOTES.md): intervals hold the truth as often as with
a smaller one up to there, and less often beyond."""
FEW_EPISODES = 30
"""The usual place from which the mean of moderately skewed terms is taken as normal."""
RARE = 1e-4
"""Probability under a correct model of a test statistic that counts as a contradiction: with the dozen tests of one
table, a false alarm in a thousand tables."""

UNUSUAL = 0.01
"""Probability under a correct model that counts as a warning: one table in a hundred is warned about for nothing."""


FEW = 30
"""Effective episodes below which weighted errors are not normal, and say nothing."""
UNLIKELY = 0.05
"""Probability under a right answer of a miss that is warned of. Where the answer is known, a wrong one is as far off as
the log can show, and no further: at 0.01 a miss of twice the half-width of an interval would pass in one case of four,
at 0.05 in one of ten."""


def graded(value: float, caution: float, refuse: float) -> Verdict:
    """Larger is worse: trust below `caution`, do not trust from `refuse` on; a NaN is not trusted.

    >>> graded(0.1, 0.5, 0.7), graded(0.6, 0.5, 0.7), graded(0.7, 0.5, 0.7), graded(float("nan"), 0.5, 0.7)
    ('trust', 'caution', 'do not trust', 'do not trust')
    """
    if value < caution:
        return "trust"
    return "caution" if value < refuse else "do not trust"


def weight_diagnostics(weighted: Weighted) -> tuple[Diagnostic, ...]:
    """Of importance weights: how many episodes carry the estimate, how heavy the tail is, and overlap."""
    ess, shape = float(effective_sample_size(weighted.relative)), pareto_shape(weighted.relative)
    return (
        Diagnostic(
            "effective sample size",
            ess,
            graded(-ess, -ENOUGH_WEIGHT, -LITTLE_WEIGHT),
            f"The {len(weighted.total)} episodes weigh as much as {ess:.1f}; below {ENOUGH_WEIGHT} no nominal interval "
            "is claimed.",
        ),
        Diagnostic(
            "weight tail",
            shape,
            graded(shape, LONG_TAIL, PARETO_LIMIT),
            f"The largest weights fall off like a Pareto tail of shape {shape:.2f}; from {LONG_TAIL} on averages "
            f"hardly settle, from {PARETO_LIMIT:g} on there is none.",
        ),
        _mean_weight(weighted.total),
    )


def cap_diagnostic(capped: np.ndarray, weights: np.ndarray) -> Diagnostic:
    """What the cap takes away is missing from the value: its share of all weight is how far that is off."""
    lost = 1 - float(capped.sum() / weights.sum())
    sentence = f"The cap takes {lost:.1%} of all weight away, and the value is off by about as much."
    return Diagnostic("cap", lost, graded(lost, SMALL_LOSS, LARGE_LOSS), sentence)


def _mean_weight(weights: np.ndarray) -> Diagnostic:
    """E_μ[π/μ] = 1 wherever μ covers π and its probabilities are right."""
    mean, error = float(weights.mean()), float(weights.std(ddof=1) / np.sqrt(len(weights))) if len(weights) > 1 else 1.0
    z = abs(mean - 1) / max(error, 1e-12) if abs(mean - 1) > 1e-6 else 0.0
    rare = 2 * normal_above(z) < RARE
    sentence = (
        f"The weights average {mean:.3f} ± {error:.3f} instead of 1: the behavior's probabilities are wrong, or the "
        "policy does things that the behavior never does."
        if rare
        else f"The weights average {mean:.3f} ± {error:.3f}, as they should."
    )
    return Diagnostic("overlap", mean, "do not trust" if rare else "trust", sentence)


def pareto_shape(weights: np.ndarray) -> float:
    """k̂ of a generalized Pareto distribution fitted to the largest weights (Zhang & Stephens, 2009).

    As in Pareto-smoothed importance sampling: the largest min(N/5, 3√N) weights, with a weak prior at 0.5.
    """
    n = len(weights)
    size = int(min(n / 5, 3 * np.sqrt(n)))
    if size < 5:
        return float("inf")
    order = np.sort(np.partition(weights, n - size - 1)[n - size - 1 :])
    excess = order[1:] - order[0]
    excess = excess[excess > 1e-12 * order[-1]]
    # No tail at all: the weights are bounded, as for a policy equal to the behavior's.
    if len(excess) < 5:
        return float("-inf")
    m = len(excess)
    grid = 30 + int(np.sqrt(m))
    theta = 1 / excess[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * excess[int(m / 4 + 0.5) - 1])
    shape = np.log1p(-theta[:, None] * excess).mean(1)
    # At θ = 0 the distribution is exponential, and -θ / shape is its rate.
    flat = shape == 0
    rate = np.where(flat, 1 / excess.mean(), -theta / np.where(flat, 1.0, shape))
    log_likelihood = m * (np.log(rate) - shape - 1)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    best = (theta * posterior).sum() / posterior.sum()
    fitted = np.log1p(-best * excess).mean()
    return float((m * fitted + 10 * 0.5) / (m + 10))


def log_diagnostics(reading: Reading, *, goes_on: bool = False) -> tuple[Diagnostic, ...]:
    """Of the log itself: its size, episodes that were cut off.

    Args:
        reading: of the log.
        goes_on: whether values go on from where an episode was cut off; for all others nothing more was paid.
    """
    n, cut = len(reading), reading.cut_short
    found = [
        Diagnostic(
            "episodes",
            n,
            "trust" if n >= FEW_EPISODES else "caution",
            f"There are {n} episodes; below {FEW_EPISODES} no interval is reliable.",
        )
    ]
    if cut:
        what = "values go on from there" if goes_on else "their later rewards are counted as zero"
        sentence = f"{cut} of {n} episodes were cut off before the horizon; {what}."
        found.append(Diagnostic("cut off", cut / n, "caution", sentence))
    return tuple(found)


def spread_diagnostic(terms: np.ndarray, simulated: np.ndarray | None = None) -> tuple[Diagnostic, ...]:
    """How far the standard error itself is known: √((κ - 1) / N), with κ the kurtosis of the terms `[N]`.

    Where a few episodes make all of the spread, a rare event decides, and the next log may have none or two of it. A
    log that has none cannot tell. So κ is that of many `simulated` returns, where a model has them: else just those
    logs would be trusted in which nothing rare happened.
    """
    returns = terms if simulated is None else simulated
    squares = unit_free(returns - returns.mean()) ** 2
    if len(terms) < 2 or not squares.any():
        return ()
    error = float(np.sqrt(max((squares**2).mean() / squares.mean() ** 2 - 1, 0.0) / len(terms)))
    where = "" if simulated is None else " in the model"
    sentence = (
        f"A few episodes make most of the spread{where}, so that its square is known to {error:.0%} only: rare events "
        "decide."
        if error >= UNSTABLE_SPREAD
        else f"The spread of the terms is known to {error:.0%}."
    )
    return (Diagnostic("spread", error, "caution" if error >= UNSTABLE_SPREAD else "trust", sentence),)


def log_itself_diagnostic(predicted: np.ndarray, reading: Reading, interval: Interval) -> tuple[Diagnostic, ...]:
    """Of predictions `[N]` for logged episodes that were not used for them; nothing where episodes were cut off."""
    if reading.cut_short or len(reading) < FEW:
        return ()
    missed = predicted - reading.returns
    sentence = f"It predicts {predicted.mean():.4g} for the log itself, whose mean is {reading.returns.mean():.4g}"
    return (_graded_miss("log itself", *_mean_and_error(missed), interval, sentence),)


def simulated_log_diagnostic(made: np.ndarray, logged: np.ndarray, interval: Interval) -> tuple[Diagnostic, ...]:
    """Of the returns that a model makes under the logged behavior, `[M]`, against the logged ones, `[N]`."""
    if len(logged) < FEW or not len(made):
        return ()
    error = float(np.sqrt(made.var(ddof=1) / len(made) + logged.var(ddof=1) / len(logged)))
    sentence = f"It predicts {made.mean():.4g} for the log itself, whose mean is {logged.mean():.4g}"
    return (_graded_miss("log itself", float(made.mean() - logged.mean()), error, interval, sentence),)


def inferred_log_diagnostic(
    made: np.ndarray, reading: Reading, interval: Interval, *, paired: bool
) -> tuple[Diagnostic, ...]:
    """Of what the logged behavior returns on scenarios of each episode, `[N]`; `paired` where it told of them.

    Nothing is said where episodes were cut off, or where their ends are no evidence.
    """
    if reading.cut_short or (paired and reading.chosen_by_ends):
        return ()
    if not paired:
        return simulated_log_diagnostic(made, reading.returns, interval)
    return log_itself_diagnostic(made, reading, interval)


def as_known_by(reading: Reading, row: Estimate) -> Estimate:
    """The row with an interval that holds what the log could not have shown.

    A model, or values that were fitted, can be held against the mean of the logged returns, and no log knows that
    better than its standard error: an error of as much passes every check, and belongs to the interval.
    """
    n = len(reading)
    if row.interval is None or row.value is None or n < 2:
        return row
    error = float(reading.returns.std(ddof=1) / np.sqrt(n))
    limits = widened(row.interval, row.value, error, n - 1, "log")
    return replace(row, interval=limits, details=row.details | {"error of the logged mean": error})


def correction_diagnostic(
    reading: Reading, policy: str, q: np.ndarray, v: np.ndarray, interval: Interval
) -> tuple[Diagnostic, ...]:
    """Of fitted values, held out: what weighted temporal differences would add, which is nothing if they are right.

    Nothing is said where the behavior's probabilities are not known, or the weights carry too little.
    """
    if not reading.has_probabilities or reading.log.schema.behavior == "fitted":
        return ()
    weighted = reading.weighted(policy)
    rho = weighted.cumulative
    if not np.isfinite(rho).all() or effective_sample_size(weighted.relative) < FEW:
        return ()
    corrections = np.where(reading.live, rho * (reading.paid + v[:, 1:] - q), 0.0).sum(1)
    sentence = f"Weighted by the behavior's probabilities, its own errors add up to {corrections.mean():.3g}"
    return (_graded_miss("correction", *_mean_and_error(corrections), interval, sentence),)


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _graded_miss(name: str, miss: float, error: float, interval: Interval, sentence: str) -> Diagnostic:
    """How far `miss` is from 0, against chance and against the interval."""
    size, half = abs(miss), max(interval.width / 2, 1e-12)
    rounding = 1e-6 * unit_of(np.array([interval.low, interval.high]))
    chance = float(2 * normal_above(size / error)) if error > 0 else float(size <= rounding)
    if chance >= UNLIKELY or size <= half / 2:
        return Diagnostic(name, chance, "trust", f"{sentence}, within chance.")
    verdict: Verdict = "do not trust" if chance < RARE and size > 2 * half else "caution"
    return Diagnostic(name, chance, verdict, f"{sentence}: a miss of {size:.3g}, where the interval is ± {half:.2g}.")
