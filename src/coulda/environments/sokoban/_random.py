"""SplitMix64 (Steele, Lea & Flood 2014) for compiled code: one stream per level, so threads cannot change a result."""

import numpy as np

from coulda.extras import require

numba = require("numba", extra="sokoban")

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(cache=True)
def mix(x):
    """SplitMix64's finalizer, a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True)
def stream(seed, index):
    """State `uint64[1]` of stream number `index`; streams start at unrelated places of the cycle."""
    state = np.empty(1, np.uint64)
    state[0] = mix(seed + mix(np.uint64(index) + _GAMMA))
    return state


@numba.njit(cache=True)
def bits(state):
    """The next 32 random bits, as uint64."""
    state[0] += _GAMMA
    return mix(state[0]) >> np.uint64(32)


@numba.njit(cache=True)
def below(state, n):
    """The next number uniform on 0..n-1 (bias at most n / 2^32)."""
    return np.int64((bits(state) * np.uint64(n)) >> np.uint64(32))
