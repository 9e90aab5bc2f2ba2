"""One step of an optimizer on the arrays of a module."""

from typing import Any, TypeVar

import equinox as eqx
import jax
import optax

Module = TypeVar("Module")


def first_state(optimizer: optax.GradientTransformation, module: Any) -> Any:
    """The optimizer's state before its first step on the floating-point arrays of `module`."""
    return optimizer.init(eqx.filter(module, eqx.is_inexact_array))


def descend(optimizer: optax.GradientTransformation, gradient: Any, state: Any, module: Module) -> tuple[Module, Any]:
    """The module after one step against `gradient`, and the optimizer's state after it."""
    parameters = eqx.filter(module, eqx.is_inexact_array)
    # Optax counts in integers and promotes them, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(gradient, state, parameters)
    return eqx.apply_updates(module, updates), state
