"""The exact solver as a planner: in every state of a Sokoban level, all actions that begin a shortest solution."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.sokoban.action_table import MAX_STATES, ActionTable, tabulate
from coulda.noise import Categorical
from coulda.pomdp import Planner, Scenario


class SolverPlanner(Planner):
    """Uniform over the optimal actions of one level; no answer (all logits -inf) where there is no solution."""

    table: ActionTable
    level: Array
    """The level's place in the table."""

    def __call__(self, carry: Any, state: Array, observation: Any) -> tuple[Any, Categorical]:  # noqa: ARG002
        """Look the state up."""
        return carry, Categorical(logits=jnp.where(self.table.optimal(self.level, state), 0.0, -jnp.inf))


class SolverPlanners(eqx.Module):
    """The planners of a batch of levels: call it with a level's place."""

    table: ActionTable

    def __call__(self, level: Array) -> SolverPlanner:
        """The planner of one level."""
        return SolverPlanner(self.table, level)


def solver_planners(scenarios: Scenario, num_boxes: int, max_states: int = MAX_STATES) -> SolverPlanners:
    """Search all levels of scenarios `[n, ...]` on the host, exhaustively; see `tabulate`."""
    return SolverPlanners(tabulate(np.asarray(scenarios.initial), num_boxes, max_states))
