"""`PlanningProblem`: what a planner of a search is made for."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from coulda.pomdp import Actor, Planner, Policy, Scenario


class PlanningProblem(NamedTuple):
    """One scenario of a search, in which trajectories are to be planned."""

    policy: Policy
    """π^k."""
    scenario: Scenario
    number: Array
    """The scenario's place in its batch."""
    episodes: Array
    """How many episodes the search has seen so far, for schedules."""


PlannerFor = Callable[[PlanningProblem], Actor]
"""λ for one scenario. One that has a method `prepared` is first given all scenarios of a step, on the host."""

Experts = Callable[[Scenario], Callable[[Array], Planner]]
"""Scenarios `[N, ...]` -> the expert of the i-th of them. Runs on the host, once per step: it may search."""


def prepared(planner: Any, scenarios: Scenario) -> Any:
    """The planner, after its work on the host for scenarios `[N, ...]`, if it has any."""
    return planner.prepared(scenarios) if hasattr(planner, "prepared") else planner
