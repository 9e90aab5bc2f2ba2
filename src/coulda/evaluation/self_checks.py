"""The question every estimator can be asked: what does it say of the log itself, where the answer is known?

The mean of the logged returns is the value of whoever made the log. An estimator that misses it by more than its
interval allows is wrong about something that the policy in question meets, too.
"""

from dataclasses import replace

import numpy as np

from coulda.evaluation.diagnostics import RARE
from coulda.evaluation.estimate import Diagnostic, Estimate, Interval, Verdict
from coulda.evaluation.intervals import widened
from coulda.evaluation.model_checks import chosen_by_ends
from coulda.evaluation.reading import Reading
from coulda.noise import effective_sample_size
from coulda.tails import normal_above

FEW = 30
"""Effective episodes below which weighted errors are not normal, and say nothing."""
UNLIKELY = 0.05
"""Probability under a right answer of a miss that is warned of. Where the answer is known, a wrong one is as far off as
the log can show, and no further: at 0.01 a miss of twice the half-width of an interval would pass in one case of four,
at 0.05 in one of ten."""


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
    if reading.cut_short or (paired and chosen_by_ends(reading)):
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
    chance = float(2 * normal_above(size / error)) if error > 0 else float(size < 1e-6)
    if chance >= UNLIKELY or size <= half / 2:
        return Diagnostic(name, chance, "trust", f"{sentence}, within chance.")
    verdict: Verdict = "do not trust" if chance < RARE and size > 2 * half else "caution"
    return Diagnostic(name, chance, verdict, f"{sentence}: a miss of {size:.3g}, where the interval is ± {half:.2g}.")
