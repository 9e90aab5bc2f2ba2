"""Importance weights along a log, in log space."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

LARGEST = 300.0
"""Logarithm of a weight that can be squared, multiplied by a return and summed: numbers end at e^709."""


@dataclass(frozen=True)
class Weighted:
    """What importance weighting needs."""

    log_ratio: np.ndarray
    """log π(a_t | h_t) - log μ(a_t | h_t), `[N, T]`, zero after the end."""
    reward: np.ndarray
    """γ^t r_t, `[N, T]`, zero after the end."""

    @cached_property
    def log_cumulative(self) -> np.ndarray:
        """Log ρ_{1:t}, `[N, T]`; after the end it stays what it was."""
        return np.cumsum(self.log_ratio, axis=1)

    @cached_property
    def cumulative(self) -> np.ndarray:
        """ρ_{1:t}, `[N, T]`; infinite where it is more than a number can hold."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_cumulative)

    @cached_property
    def log_total(self) -> np.ndarray:
        """Log ρ of whole episodes, `[N]`, in one piece: every row of a table goes over it."""
        return np.ascontiguousarray(self.log_cumulative[:, -1])

    @cached_property
    def total(self) -> np.ndarray:
        """ρ of whole episodes, `[N]`; infinite where it is more than a number can hold."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_total)

    @cached_property
    def relative(self) -> np.ndarray:
        """ρ of whole episodes divided by the largest, `[N]`: it survives where all are below what a number can hold."""
        last, top = self.log_total, self.log_total.max()
        return np.exp(last - top) if np.isfinite(top) else np.zeros(len(last))

    @cached_property
    def too_large(self) -> np.ndarray:
        """The episodes in which ρ_{1:t} is no number at some step, or one that cannot be squared and summed."""
        return np.flatnonzero(~(self.log_cumulative.max(1) <= LARGEST))

    @cached_property
    def scaled(self) -> np.ndarray:
        """ρ_{1:t} divided by the largest at each step: ratios do not change with the scale of the weights."""
        top = self.log_cumulative.max(0)
        found = self.log_cumulative - np.where(np.isfinite(top), top, 0.0)
        return np.exp(found, out=found)

    @cached_property
    def returns(self) -> np.ndarray:
        """G of each episode, `[N]`."""
        return self.reward.sum(1)
