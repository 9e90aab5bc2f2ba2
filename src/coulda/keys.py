"""Keys of `jax.random` whose draws are the same, bit for bit, in a quarter of the time, and compiled in a third of it.

And keys made of keys without a program: on the host, where a program of its own takes longer to find than to run.

On CPU, JAX runs threefry (Salmon et al., 2011) as a loop over its rounds, each of which goes over all numbers. Written
out, all twenty are one pass that the compiler fuses with what is made of the bits.
"""

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.extend.random import define_prng_impl, threefry_prng_impl
from jax.interpreters import batching, mlir

__all__ = ["apart", "folded", "quick"]

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20
HOST = SimpleNamespace(
    add=np.add,
    bitwise_or=np.bitwise_or,
    bitwise_xor=np.bitwise_xor,
    full_like=np.full_like,
    shift_left=np.left_shift,
    shift_right=np.right_shift,
)
"""What NumPy calls what a round does."""
IN_PROGRAM = SimpleNamespace(
    add=hlo.add,
    bitwise_or=hlo.or_,
    bitwise_xor=hlo.xor,
    full_like=lambda like, value: _constant(like.type, int(value)),
    shift_left=hlo.shift_left,
    shift_right=hlo.shift_right_logical,
)
"""What StableHLO calls it. As operations of JAX, rounds took a fifth of the time of a warm first table."""


def quick(key: Array) -> Array:
    """The same key, for quick draws; one of another kind than `jax.random.key`'s default is left as it is.

    >>> key = jax.random.key(0)
    >>> bool((jax.random.normal(quick(key), (3,)) == jax.random.normal(key, (3,))).all())
    True
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_WRITTEN_OUT)


def apart(key: Array, count: int = 2) -> list[Array]:
    """`jax.random.split` of a key that is a value, on the host: also to take an array of keys apart is a program.

    >>> key = jax.random.key(0)
    >>> [bool(mine == theirs) for mine, theirs in zip(apart(key), jax.random.split(key), strict=True)]
    [True, True]
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return list(jax.random.split(key, count))
    return [jax.random.wrap_key_data(one) for one in _on_host(key, np.arange(count, dtype=np.uint32))]


def folded(key: Array, data: int) -> Array:
    """`jax.random.fold_in` of a key that is a value, on the host.

    >>> key = jax.random.key(0)
    >>> bool(folded(key, 2**32 - 1) == jax.random.fold_in(key, 2**32 - 1))
    True
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return jax.random.fold_in(key, data)
    return jax.random.wrap_key_data(_on_host(key, np.array([data], np.uint32))[0])


def _on_host(key: Array, counter: np.ndarray) -> np.ndarray:
    """The data of the keys that `key` makes of counters `[n]`, `[n, 2]`."""
    first, second = (np.full_like(counter, half) for half in np.asarray(jax.random.key_data(key)))
    return np.stack(_rounds(first, second, counter, HOST), axis=-1)


def _rounds(first: Any, second: Any, counter: Any, by: SimpleNamespace) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds, of uint32 counters and both halves of their keys, all of one shape."""
    number = cache(lambda value: by.full_like(counter, value))
    keys = first, second, by.bitwise_xor(by.bitwise_xor(first, second), number(PARITY))
    x, y = first, by.add(counter, second)  # the upper half of the counter is nil
    for i in range(ROUNDS // 4):
        for rotation in ROTATIONS[i % 2]:
            x = by.add(x, y)
            up, down = by.shift_left(y, number(rotation)), by.shift_right(y, number(32 - rotation))
            y = by.bitwise_xor(x, by.bitwise_or(up, down))
        x, y = by.add(x, keys[(i + 1) % 3]), by.add(by.add(y, keys[(i + 2) % 3]), number(i + 1))
    return x, y


def _constant(kind: Any, value: int) -> Any:
    return hlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, value)))


def _batch(arrays: tuple[Array, ...], axes: tuple[int | None, ...]) -> tuple[list[Array], tuple[int, int]]:
    """Of a batch: the same rounds, of larger arrays."""
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    whole = [
        lax.broadcast(x, (size,)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arrays, axes, strict=True)
    ]
    return _threefry_p.bind(*whole), (0, 0)


# An operation of its own, so that its rounds are written out once, for all of a batch. A function would be batched one
# operation after another, and once more for each axis of the keys.
_threefry_p = Primitive("threefry, written out")
_threefry_p.multiple_results = True
_threefry_p.def_impl(lambda *arrays: [jax.device_put(x) for x in _rounds(*map(np.asarray, arrays), by=HOST)])
_threefry_p.def_abstract_eval(lambda *arrays: arrays[:2])
batching.primitive_batchers[_threefry_p] = _batch
mlir.register_lowering(_threefry_p, lambda _, *arrays: _rounds(*arrays, by=IN_PROGRAM))


def _threefry(key: Array, counter: Array) -> tuple[Array, Array]:
    first, second = (lax.full_like(counter, half) for half in (key[0], key[1]))
    return _threefry_p.bind(first, second, counter)


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    return _threefry(key, lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    x, y = _counted(key, shape)
    if width == 64:
        return (x.astype(jnp.uint64) << np.uint64(32)) | y.astype(jnp.uint64)
    return (x ^ y).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _whole(jnp.stack(_counted(key, shape), axis=-1))


def _fold_in(key: Array, data: int) -> Array:
    return _whole(jnp.stack(_threefry(key, jnp.asarray(data, jnp.uint32))))


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
