"""How much weighted draws weigh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["effective_sample_size"]


def effective_sample_size(weights: Any, axis: int | None = None) -> Any:
    """Kish's (Σw)² / Σw², over all weights or along an axis: between 1 and n, and 0 where every weight is zero.

    Weights need not be normalized. NumPy stays NumPy, in its own precision.

    >>> float(effective_sample_size(np.array([1.0, 1.0, 0.0])))
    2.0
    """
    xp = jnp if isinstance(weights, jax.Array) else np
    top = weights.max(axis=axis, keepdims=True)
    # Scaled, so that squares neither overflow nor vanish.
    scaled = weights / xp.where(top > 0, top, 1.0)
    squares = (scaled**2).sum(axis=axis)
    return scaled.sum(axis=axis) ** 2 / xp.where(squares > 0, squares, 1.0)
