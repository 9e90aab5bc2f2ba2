"""The question every estimator can be asked: what does it say of the log itself, where the answer is known?

The mean of the logged returns is the value of whoever made the log. An estimator that misses it by more than its
interval allows is wrong about something that the policy in question meets, too.
"""

import numpy as np
from scipy import stats

from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic, Interval, Verdict
from coulda.evaluation.reading import Reading
from coulda.weights import effective_sample_size

FEW = 30
"""Effective episodes below which weighted errors are not normal, and say nothing."""


def log_itself_diagnostic(predicted: np.ndarray, reading: Reading, interval: Interval) -> tuple[Diagnostic, ...]:
    """Of predictions `[N]` for logged episodes that were not used for them; nothing where episodes were cut off."""
    if reading.cut_short or len(reading) < FEW:
        return ()
    missed = predicted - reading.returns
    sentence = f"It predicts {predicted.mean():.4g} for the log itself, whose mean is {reading.returns.mean():.4g}"
    return (_graded_miss("log itself", missed, interval, sentence),)


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
    corrections = np.where(reading.live, rho * (reading.reward + v[:, 1:] - q), 0.0).sum(1)
    sentence = f"Weighted by the behavior's probabilities, its own errors add up to {corrections.mean():.3g}"
    return (_graded_miss("correction", -corrections, interval, sentence),)


def _graded_miss(name: str, missed: np.ndarray, interval: Interval, sentence: str) -> Diagnostic:
    """How far the mean of `missed` is from 0, against chance and against the interval."""
    error = missed.std(ddof=1) / np.sqrt(len(missed))
    size, half = abs(float(missed.mean())), max(interval.width / 2, 1e-12)
    chance = float(2 * stats.norm.sf(size / error)) if error > 0 else float(size < 1e-6)
    verdict: Verdict = "trust"
    if chance < UNUSUAL and size > half / 2:
        verdict = "do not trust" if chance < RARE and size > 2 * half else "caution"
    if verdict == "trust":
        return Diagnostic(name, chance, verdict, f"{sentence}, within chance.")
    return Diagnostic(name, chance, verdict, f"{sentence}: a miss of {size:.3g}, where the interval is ± {half:.2g}.")
