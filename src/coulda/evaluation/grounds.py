"""What a fitted model rests on: every row that rests on the model inherits what its fit says of itself."""

from dataclasses import replace
from typing import NamedTuple, Protocol

from jax import Array

from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.intervals import widened
from coulda.evaluation.reading import Log
from coulda.pomdp import Policy


class Grounds(Protocol):
    """What a model that was fitted rests on."""

    @property
    def verdict(self) -> tuple[Diagnostic, ...]:
        """Of the model, whoever is evaluated."""
        ...

    def stands_for(self, log: Log) -> tuple[str, ...]:
        """Names of diagnostics of rows in whose place the verdict stands, for the log that was fitted to.

        Asked of a given model, they call whatever a large log finds a contradiction; the fit grades its consequence.
        """
        ...

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:
        """Of the places where a policy goes. Consumes `key`."""
        ...

    def refit_error(self, key: Array, policy: Policy) -> "RefitError":
        """The standard error of the policy's value by refits, with degrees of freedom. Consumes `key`."""
        ...


class RefitError(NamedTuple):
    """How far off a value is since another log would have made another model."""

    error: float
    freedom: int

    def widen(self, row: Estimate) -> Estimate:
        """The row with an interval that knows of it."""
        limits = row.interval
        if limits is not None:
            limits = widened(limits, row.value or 0.0, self.error, self.freedom, "refits")
        return replace(row, interval=limits, details=row.details | {"error of the fit": self.error})


def grounded(
    key: Array, grounds: Grounds, policy: Policy, log: Log, methods: dict[str, Estimate]
) -> dict[str, Estimate]:
    """Rows of a policy with what the fit says of itself. Consumes `key`."""
    told, replaced = (*grounds.verdict, *grounds.on_path(key, policy)), grounds.stands_for(log)
    kept = lambda row: (d for d in row.diagnostics if d.name not in replaced)
    return {name: replace(row, diagnostics=(*kept(row), *told)) for name, row in methods.items()}
