"""Planners λ(a | s, h): they may see the hidden state."""

from coulda.planners.dynamic_programming import TabularPlanner, finite_horizon, policy_iteration, value_iteration
from coulda.planners.lqr import LinearPlanner, lqr

__all__ = ["LinearPlanner", "TabularPlanner", "finite_horizon", "lqr", "policy_iteration", "value_iteration"]
