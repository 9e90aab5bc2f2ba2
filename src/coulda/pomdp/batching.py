"""`batched`: the one place where a function of one episode becomes a function of millions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
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
    devices = jax.local_device_count()
    size = jax.tree.leaves(batch)[0].shape[0]
    share = -(-size // devices)
    run = partial(_chunked, jax.vmap(function), min(chunk_size, max(share, 1)))
    if devices == 1 or size < devices:
        return run(batch)
    # Every device takes an equal share; what is missing is made up with the first element and dropped.
    fill = np.concatenate([np.arange(size), np.zeros(share * devices - size, np.int32)])
    # Auto: a batch made inside a jitted program has no sharding yet, and shall get this one without asking.
    mesh = jax.make_mesh((devices,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    share_of = PartitionSpec("batch")
    # A scan that starts from a constant, such as a policy's first carry, does not pass the check of varying axes.
    spread = jax.shard_map(run, mesh=mesh, in_specs=share_of, out_specs=share_of, check_vma=False)
    padded = batch if share * devices == size else jax.tree.map(lambda x: x[fill], batch)
    return jax.tree.map(lambda x: x[:size], spread(padded))


def _chunked(function: Callable[[Any], Any], chunk_size: int, batch: Any) -> Any:
    """`function(batch)` of so many elements at once; what `lax.map(batch_size=...)` does, for empty arrays too."""
    size = jax.tree.leaves(batch)[0].shape[0]
    chunks, rest = divmod(size, chunk_size)
    if chunks == 0 or (chunks == 1 and rest == 0):
        return function(batch)
    split = lambda x: x[: chunks * chunk_size].reshape(chunks, chunk_size, *x.shape[1:])
    join = lambda x: x.reshape(chunks * chunk_size, *x.shape[2:])
    done = jax.tree.map(join, jax.lax.map(function, jax.tree.map(split, batch)))
    if rest == 0:
        return done
    last = function(jax.tree.map(lambda x: x[chunks * chunk_size :], batch))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), done, last)
