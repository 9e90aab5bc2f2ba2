"""Uniform bits as a hash of a counter: noise that is computed where it is needed, from a seed that is drawn once."""

import numpy as np
from jax import Array

# 2^32 / golden ratio: consecutive counters land far apart.
GAMMA = np.uint32(0x9E3779B9)


def scramble(x: Array, key: Array | int = 0) -> Array:
    """A bijection of uint32 for each `key`, after the 2-round hash of least known bias ("lowbias32").

    The key enters between the rounds, so that hashes under different keys are not shifts of each other.
    """
    x = (x ^ (x >> 16)) * np.uint32(0x21F0AAAD)
    x = ((x ^ (x >> 15)) + key) * np.uint32(0x735A2D97)
    return x ^ (x >> 15)
