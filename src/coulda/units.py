"""Numbers are compared in their own units: a price in millions is no rounding, nor is a milligram in kilograms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["RESOLUTION", "spread_of", "unit_of"]

RESOLUTION = 1e-7
"""Of float32: what varies by less of its size does not vary."""


def unit_of(values: Any, axis: int | None = None) -> Any:
    """What numbers near 0 are compared with: 1; or the largest of `values`, where all are smaller.

    Where the largest is more than 100, a hundredth of it, since float32 has seven digits. NaNs do not count.

    Args:
        values: numbers of one kind, NumPy's or JAX's.
        axis: which is kept with a length of 1; by default all of them are gone.

    >>> [float(unit_of(np.array(x))) for x in ([0.0, 30.0], [0.0, -3e-6, np.nan], [5e6, 0.0], [0.0])]
    [1.0, 3e-06, 50000.0, 1.0]
    """
    xp = jnp if isinstance(values, jax.Array) else np
    size = xp.where(xp.isnan(values), 0.0, xp.abs(values))
    largest = xp.max(size, axis=axis, keepdims=axis is not None, initial=0.0)
    return xp.where(largest > 0, xp.maximum(xp.minimum(largest, 1.0), largest / 100), 1.0)


def spread_of(values: np.ndarray) -> np.ndarray:
    """The standard deviation of each column of `[n, d]`; 1 where it does not vary, and where there is none.

    >>> [f"{x:.3g}" for x in spread_of(np.array([[1e-8, 5.0], [3e-8, 5.0]]))]
    ['1e-08', '1']
    """
    if not len(values):
        return np.ones(values.shape[1])
    found = values.std(0, dtype=float)
    return np.where(found > RESOLUTION * np.abs(values).max(0), found, 1.0)
