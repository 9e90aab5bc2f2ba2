"""What a fitted model rests on: every row that rests on the model inherits what its fit says of itself."""

from dataclasses import replace
from typing import Protocol

import jax
from jax import Array

from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.intervals import widened
from coulda.pomdp import Policy


class Grounds(Protocol):
    """What a model that was fitted rests on."""

    @property
    def verdict(self) -> tuple[Diagnostic, ...]:
        """Of the model, whoever is evaluated."""
        ...

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:
        """Of the places where a policy goes. Consumes `key`."""
        ...

    def refit_error(self, key: Array, policy: Policy) -> tuple[float, int]:
        """How far off the policy's value is since another log would have made another model, with degrees of freedom.

        A standard error. Consumes `key`.
        """
        ...


def grounded(key: Array, grounds: Grounds, policy: Policy, methods: dict[str, Estimate]) -> dict[str, Estimate]:
    """Rows of a policy with what the fit says of itself, and with intervals that know of its error. Consumes `key`."""
    key_path, key_refit = jax.random.split(key)
    told = (*grounds.verdict, *grounds.on_path(key_path, policy))
    error, freedom = grounds.refit_error(key_refit, policy)
    found = {}
    for name, row in methods.items():
        limits = row.interval
        if limits is not None:
            limits = widened(limits, row.value or 0.0, error, freedom, "refits")
        details = row.details | {"error of the fit": error}
        found[name] = replace(row, interval=limits, diagnostics=(*row.diagnostics, *told), details=details)
    return found
