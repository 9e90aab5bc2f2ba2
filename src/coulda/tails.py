"""Tails and quantiles of common distributions, by `scipy.special`: `scipy.stats` takes as long to import as JAX."""

from typing import Any

import numpy as np
from scipy import special

__all__ = [
    "chi_square_above",
    "normal_above",
    "normal_below",
    "normal_log_prob",
    "normal_quantile",
    "student_quantile",
]


def normal_below(z: Any) -> Any:
    """P(Z ≤ z)."""
    return special.ndtr(z)


def normal_above(z: Any) -> Any:
    """P(Z > z), also far out.

    >>> f"{normal_above(20.0):.3g}"
    '2.75e-89'
    """
    return special.ndtr(-np.asarray(z, float))


def normal_quantile(probability: Any) -> Any:
    """Z with P(Z ≤ z) = probability.

    >>> round(float(normal_quantile(0.975)), 3)
    1.96
    """
    return special.ndtri(probability)


def normal_log_prob(value: Any, mean: Any, scale: Any) -> Any:
    """Log N(value; mean, scale²), elementwise."""
    return -((value - mean) ** 2) / (2 * scale**2) - np.log(np.sqrt(2 * np.pi) * scale)


def student_quantile(probability: Any, freedom: Any) -> Any:
    """T with P(T ≤ t) = probability, with so many degrees of freedom.

    >>> round(float(student_quantile(0.975, 10)), 3)
    2.228
    """
    return special.stdtrit(freedom, probability)


def chi_square_above(value: Any, freedom: Any) -> Any:
    """P(χ² > value), with so many degrees of freedom.

    >>> round(float(chi_square_above(3.841, 1)), 3)
    0.05
    """
    return special.chdtrc(freedom, np.maximum(value, 0.0))
