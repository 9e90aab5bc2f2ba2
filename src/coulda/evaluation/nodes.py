"""A few points in the place of a normal distribution: what a policy would do next, where actions are numbers."""

import numpy as np

HERMITE = (7, 5, 3)
"""Points in each direction, by the number of directions."""


def nodes(size: int) -> np.ndarray:
    """Points `[K, k]` that stand for a standard normal distribution of k numbers.

    Gauss–Hermite's, 7, 5² or 3³; for more numbers the 2k points of a cubature that is exact for cubic functions.

    >>> [len(nodes(size)) for size in (1, 2, 3, 4)]
    [7, 25, 27, 8]
    """
    if size > len(HERMITE):
        return np.sqrt(size) * np.concatenate([np.eye(size), -np.eye(size)])
    points, _ = np.polynomial.hermite_e.hermegauss(HERMITE[size - 1])
    return np.stack(np.meshgrid(*[points] * size, indexing="ij"), -1).reshape(-1, size)


def node_weights(size: int) -> np.ndarray:
    """The weights of `nodes`, `[K]`.

    >>> points, weights = nodes(2), node_weights(2)
    >>> [round(float(weights @ x), 6) for x in (np.ones(25), points[:, 0] ** 2, points[:, 0] ** 4)]
    [1.0, 1.0, 3.0]
    """
    if size > len(HERMITE):
        return np.full(2 * size, 1 / (2 * size))
    _, weights = np.polynomial.hermite_e.hermegauss(HERMITE[size - 1])
    product = np.prod(np.stack(np.meshgrid(*[weights] * size, indexing="ij"), -1), -1).ravel()
    return product / product.sum()
