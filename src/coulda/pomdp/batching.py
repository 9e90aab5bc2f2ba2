"""`batched`: the one place where a function of one episode becomes a function of millions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec


def batched(function: Callable[[Any], Any], batch: Any, chunk_size: int = 4096) -> Any:
    """`vmap(function)(batch)`, in chunks so that memory stays flat, split over all local devices.

    Memory holds the batch, the results and `chunk_size` episodes' worth of everything between. So for
    millions of episodes give it keys rather than scenarios, and return returns rather than trajectories.

    Args:
        function: of one element.
        batch: a pytree of arrays with one leading axis `[n, ...]`.
        chunk_size: how many elements a device works on at once.

    >>> import jax.numpy as jnp
    >>> batched(lambda x: x + 1, jnp.arange(5), chunk_size=2)
    Array([1, 2, 3, 4, 5], dtype=int32)
    """
    size = jax.tree.leaves(batch)[0].shape[0]
    devices = jax.local_device_count() if size >= jax.local_device_count() else 1
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


def _chunked(function: Callable[[Any], Any], chunks: int, batch: Any) -> Any:
    """`function(batch)` in so many equal chunks; what `lax.map(batch_size=...)` does, for empty arrays too."""
    if chunks == 1:
        return function(batch)
    split = lambda x: x.reshape(chunks, x.shape[0] // chunks, *x.shape[1:])
    join = lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    return jax.tree.map(join, jax.lax.map(function, jax.tree.map(split, batch)))
