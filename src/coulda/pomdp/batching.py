"""`batched`: the one place where a function of one episode becomes a function of millions.

`host_call` is where such a function asks somebody outside of JAX, about all episodes of a batch at once.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, PartitionSpec

from coulda.devices import num_devices

CACHE = 2**18
"""Bytes of the largest array that is made in a step of a loop, for all elements of a chunk. With a conv-LSTM of 16
channels, rollouts are four times as fast at 32–64 episodes per chunk as at 4096: a step stays in the cache. Gradients
of the paper's networks are quickest in chunks of eight, with all cores at work."""
SMALLEST, LARGEST = 4, 4096
SMALL = 512
"""Bytes of the largest array of an element that is small: it is of a table and not of a network."""
TELLING = 1009
"""A batch of a size, prime, that no layer has."""
CALLS_HOST = -1
"""In the place of a size: a call to the host."""


def batched(function: Callable[[Any], Any], batch: Any, chunk_size: int | None = None) -> Any:
    """`vmap(function)(batch)`, in chunks so that memory stays flat, split over all local devices.

    Memory holds the batch, the results and `chunk_size` episodes' worth of everything between. So for
    millions of episodes give it keys rather than scenarios, and return returns rather than trajectories.

    Args:
        function: a function of one element.
        batch: a pytree of arrays with one leading axis `[n, ...]`.
        chunk_size: how many elements a device works on at once; by default as many as the cache likes, 4 to 4096.

    >>> import jax.numpy as jnp
    >>> batched(lambda x: x + 1, jnp.arange(5), chunk_size=2)
    Array([1, 2, 3, 4, 5], dtype=int32)
    """
    size = jax.tree.leaves(batch)[0].shape[0]
    traced, chunk_size, alone = _at_once(function, batch, chunk_size)
    devices = 1 if alone else num_devices()
    # Each device's share has another mesh than what was traced here, and is traced by itself.
    function = traced if devices == 1 else function
    # Devices take equal shares in equal chunks, so that the function is compiled once; what is missing is made up with
    # the first element and dropped.
    chunks = max(-(-size // (devices * chunk_size)), 1)
    chunk = -(-size // (devices * chunks))
    padded_size = devices * chunks * chunk
    fill = np.concatenate([np.arange(size), np.zeros(padded_size - size, np.int32)])
    padded = batch if padded_size == size else jax.tree.map(lambda x: x[fill], batch)
    run = partial(_chunked, jax.vmap(function), chunks)
    if devices > 1:
        # Auto: a batch made inside a jitted program has no sharding yet, and shall get this one without asking.
        mesh = jax.make_mesh((devices,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
        share_of = PartitionSpec("batch")
        # A scan that starts from a constant, such as a policy's first carry, does not pass the check of varying axes.
        run = jax.shard_map(run, mesh=mesh, in_specs=share_of, out_specs=share_of, check_vma=False)
    return jax.tree.map(lambda x: x[:size], run(padded))


def sum_over_batch(function: Callable[[Any, Any], Any], shared: Any, batch: Any) -> Any:
    """`function(shared, batch)`, a tree of sums over the batch, on all local devices and in chunks that a cache likes.

    For gradients through `scan`: the devices' shares are added up once, at the end. With `shard_batch` XLA adds up the
    gradient of every kernel at every step, which on two cores is slower than one of them alone.

    Args:
        function: returns arrays that are sums over the leading axis of the batch, such as a gradient of a sum.
        shared: a pytree that every device gets whole; what is not an array is passed on as it is.
        batch: a pytree of arrays `[B, ...]`; a leading axis that cannot be split evenly is left to one device.
    """
    if jax.process_count() > 1:
        # XLA splits it as the batch lies: over the devices of all hosts, where `join_hosts` made it.
        return function(shared, batch)
    devices, size = num_devices(), jax.tree.leaves(batch)[0].shape[0]
    if devices == 1 or size % devices:
        return _sum_of_chunks(function, shared, batch)
    arrays, other = eqx.partition(shared, eqx.is_array)

    def run(arrays: Any, share: Any) -> Any:
        found = _sum_of_chunks(function, eqx.combine(arrays, other), share)
        return jax.tree.map(lambda x: jax.lax.psum(x, "batch"), found)

    mesh = jax.make_mesh((devices,), ("batch",), (AxisType.Auto,), devices=jax.local_devices())
    specs = PartitionSpec(), PartitionSpec("batch")
    # A scan that starts from a constant, such as a policy's first carry, does not pass the check of varying axes.
    return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(arrays, batch)


def _sum_of_chunks(function: Callable[[Any, Any], Any], shared: Any, batch: Any) -> Any:
    """`function(shared, batch)` on one device: as it is on accelerators, which like large batches.

    What CPUs gain is not only the cache: memory that a call is given for the first time is handed over page by page,
    for one chunk in the place of all.
    """
    size = jax.tree.leaves(batch)[0].shape[0]
    if size < 2 * SMALLEST or jax.default_backend() != "cpu":
        return function(shared, batch)
    chunks = _equal_chunks(size, CACHE // _largest_of_one(function, shared, batch))
    if chunks == 1:
        return function(shared, batch)
    split = jax.tree.map(lambda x: x.reshape(chunks, size // chunks, *x.shape[1:]), batch)
    first = jax.tree.map(lambda x: x[0], split)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), eqx.filter_eval_shape(function, shared, first))
    add = lambda total, chunk: (jax.tree.map(jnp.add, total, function(shared, chunk)), None)
    return jax.lax.scan(add, zeros, split)[0]


def _largest_of_one(function: Callable[[Any, Any], Any], shared: Any, batch: Any) -> int:
    """Bytes of the largest array of one element that a loop makes in a step; hardly any, where the host is called.

    Found in a batch of such a size that what belongs to it shows in the shapes: gradients of weights do not grow.
    """
    arrays, other = eqx.partition(shared, eqx.is_array)
    told = jax.tree.map(lambda x: jax.ShapeDtypeStruct((TELLING, *x.shape[1:]), x.dtype), batch)
    program = jax.make_jaxpr(lambda arrays, batch: function(eqx.combine(arrays, other), batch))(arrays, told)
    sizes = list(_sizes(program.jaxpr, in_loop=False))
    return 1 if CALLS_HOST in sizes else max((size // TELLING for size in sizes if size % TELLING == 0), default=1)


def _equal_chunks(size: int, at_once: int) -> int:
    """How many equal chunks of at most `at_once` there are in `size`; 1 where they would be under half as large."""
    fewest = -(-size // max(at_once, SMALLEST))
    most = size // max(-(-at_once // 2), SMALLEST)
    return next((chunks for chunks in range(fewest, most + 1) if size % chunks == 0), 1)


@eqx.filter_jit
def run(function: Callable[..., Any], inputs: Any) -> Any:
    """`function(*inputs)` of each element of a batch, compiled: equal functions and shapes share a program."""
    return batched(lambda element: function(*element), inputs)


def _chunked(function: Callable[[Any], Any], chunks: int, batch: Any) -> Any:
    """`function(batch)` in so many equal chunks; what `lax.map(batch_size=...)` does, for empty arrays too."""
    if chunks == 1:
        return function(batch)
    split = lambda x: x.reshape(chunks, x.shape[0] // chunks, *x.shape[1:])
    join = lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    return jax.tree.map(join, jax.lax.map(function, jax.tree.map(split, batch)))


def _at_once(
    function: Callable[[Any], Any], batch: Any, asked: int | None = None
) -> tuple[Callable[[Any], Any], int, bool]:
    """The function, traced; how many elements at once, by default; and whether one device does it alone.

    A chunk is as large that the largest array that a loop makes in a step fills the cache. One device works alone where
    there are few elements, or one chunk of small ones, which take less time than a second trace; or calls to the host.

    A call waits for a thread of XLA's that hands over its arguments: where each device waits in a call, none is left.
    Only the trace tells of all that. `vmap` goes through the traced program in less than half the time that it takes to
    trace the function once more.
    """
    count = jax.tree.leaves(batch)[0].shape[0]
    if count <= SMALLEST:
        return function, asked or SMALLEST, True
    element = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    program, result = jax.make_jaxpr(function, return_shape=True)(element)
    sizes = list(_sizes(program.jaxpr, in_loop=False))
    # Who works outside of JAX is asked as seldom as can be: a call costs more than what leaves the cache.
    calls = CALLS_HOST in sizes
    largest = 1 if calls else max(sizes, default=1)
    run = lambda x: jax.tree.unflatten(jax.tree.structure(result), jaxpr_as_fun(program)(*jax.tree.leaves(x)))
    at_once = asked or int(np.clip(CACHE // largest, SMALLEST, LARGEST))
    return run, at_once, calls or (count <= at_once and largest <= SMALL)


def _sizes(jaxpr: Any, in_loop: bool) -> Iterator[int]:
    """Bytes of each array that is made inside of loops, counting four a number; `CALLS_HOST` for a call."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pure_callback":
            yield CALLS_HOST
        loop = in_loop or equation.primitive.name in ("scan", "while")
        inner = [
            part for value in equation.params.values() for part in (value if isinstance(value, tuple) else (value,))
        ]
        for part in inner:
            if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                yield from _sizes(getattr(part, "jaxpr", part), loop)
        if in_loop:
            yield from (4 * math.prod(made.aval.shape) for made in equation.outvars)


_raised: list[Exception] = []
"""What a call to the host raised last: a compiled program tells its text alone."""


def host_call(function: Callable[..., Any], result: Any, *arguments: Any) -> Any:
    """`function(*arguments)` on the host, as a part of a compiled program. It must be pure.

    Under `vmap` there is one call for all elements: `function` is given, and returns, pytrees of NumPy's arrays with
    one leading axis `[n, ...]`, also where there is a single element.

    Args:
        function: works on the host.
        result: shapes and dtypes of what it returns of one element.
        arguments: pytrees of arrays of one element, at least one.
    """
    ranks = [np.ndim(leaf) for leaf in jax.tree.leaves(arguments)]

    def call(*batched: Any) -> Any:
        leaves, structure = jax.tree.flatten(batched)
        arrays = [np.asarray(leaf) for leaf in leaves]
        lead = arrays[0].shape[: arrays[0].ndim - ranks[0]]
        size = math.prod(lead)
        rows = [x.reshape(size, *x.shape[x.ndim - rank :]) for x, rank in zip(arrays, ranks, strict=True)]
        try:
            found = function(*jax.tree.unflatten(structure, rows))
        except Exception as error:
            _raised[:] = [error]
            raise
        return jax.tree.map(lambda x, one: np.asarray(x, one.dtype).reshape((*lead, *one.shape)), found, result)

    return jax.pure_callback(call, result, *arguments, vmap_method="broadcast_all")


def _not_told_already(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not any(record.exc_info[1] is error for error in _raised)


# JAX logs each exception of a callback; these are told once, by whoever called.
logging.getLogger("jax._src.callback").addFilter(_not_told_already)


@contextmanager
def raised_as_they_are() -> Iterator[None]:
    """What a call to the host raises within comes out itself, and not as the text of an error of the program's."""
    _raised.clear()
    try:
        yield
    except Exception as error:
        if _raised and _raised[0] is not error and type(_raised[0]).__name__ in str(error):
            raise _raised.pop() from None
        raise
