"""How many devices a program is spread over."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

__all__ = ["num_devices", "one_device"]

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
