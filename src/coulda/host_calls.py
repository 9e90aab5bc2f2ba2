"""Calls from a compiled program to the host: one batch at a time, and errors that come back as they were raised."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

__all__ = ["host_call", "raised_as_they_are"]

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
