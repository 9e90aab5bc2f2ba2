"""All cores and all devices, by splitting the batch; and how many a program is spread over."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from coulda.errors import CouldaError

__all__ = [
    "join_hosts",
    "num_devices",
    "on_all_devices",
    "one_device",
    "replicate",
    "shard_batch",
    "use_all_cores",
]

_alone: ContextVar[bool] = ContextVar("alone", default=False)


def num_devices() -> int:
    """All local ones, but within `one_device`."""
    return 1 if _alone.get() else jax.local_device_count()


@contextmanager
def one_device(needed: bool) -> Iterator[None]:
    """Programs that are traced within are for one device, if that is `needed`.

    Those that call the host need it: while one device waits for an answer, the others wait for that device, which XLA
    takes for a fault after 40 seconds.
    """
    token = _alone.set(needed or _alone.get())
    try:
        yield
    finally:
        _alone.reset(token)


def use_all_cores() -> int:
    """Make every CPU core a JAX device, and return how many there are.

    XLA:CPU runs a convolution on one core. With a device a core, `shard_batch` uses them all with the same
    program that uses eight GPUs. JAX fixes its devices when it is first used, so call this before.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError as error:
        if jax.local_device_count("cpu") != cores:
            raise CouldaError(
                f"JAX is in use already with {jax.local_device_count('cpu')} CPU device(s), so {cores} cores cannot "
                "become devices; call use_all_cores() before the first JAX operation"
            ) from error
    return cores


def shard_batch(batch: Any) -> Any:
    """Split the leading axis of every array of `batch` over all local devices.

    Inside a jitted step this is enough for data parallelism: with replicated parameters, XLA runs each share
    on its device and adds the gradients up. With one device it does nothing.
    """
    devices = num_devices()
    if devices == 1:
        return batch
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if leaf.ndim == 0 or leaf.shape[0] % devices:
            raise CouldaError(
                f"batch{jax.tree_util.keystr(path)} of shape {leaf.shape} cannot be split over {devices} devices; "
                f"make its leading axis a multiple of {devices}"
            )
    mesh = jax.make_mesh((devices,), ("batch",), (AxisType.Auto,), devices=jax.local_devices())
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("batch")))


def on_all_devices(tree: Any) -> Any:
    """The arrays of `tree` on every local device, as `sum_over_batch` leaves them: so a step is compiled once."""
    if num_devices() == 1:
        return tree
    mesh = jax.make_mesh((num_devices(),), ("batch",), (AxisType.Auto,), devices=jax.local_devices())
    arrays, other = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, PartitionSpec())), other)


def join_hosts(share: Any) -> Any:
    """One batch over the devices of all processes that `jax.distributed` joined, of which each gives its share.

    A jitted step on it, with parameters from `replicate`, is run by all of them together: XLA adds the gradients up
    over the network. Shares are of one size, a multiple of a process's devices.
    """
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(_all_devices("batch"), leaf), share)


def replicate(tree: Any) -> Any:
    """The arrays of `tree`, which all processes have, on all their devices."""
    whole = _all_devices()
    make = lambda leaf: jax.make_array_from_process_local_data(whole, np.asarray(leaf))
    return jax.tree.map(lambda leaf: make(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def _all_devices(*axes: str) -> NamedSharding:
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), (AxisType.Auto,))
    return NamedSharding(mesh, PartitionSpec(*axes))
