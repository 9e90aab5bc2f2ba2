"""Planners λ(a | s, h): they may see the hidden state."""

from coulda.planners.dynamic_programming import (
    Solution,
    TabularPlanner,
    finite_horizon,
    policy_iteration,
    value_iteration,
)
from coulda.planners.lqr import LinearPlanner, Regulator, lqr
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import EpisodeMixture, ExpertMixture, Experts, ExpertSchedule, PlannerFor, PlanningProblem
from coulda.planners.time_varying_lqr import AffinePlanner, time_varying_lqr

__all__ = [
    "MCTS",
    "AffinePlanner",
    "EpisodeMixture",
    "ExpertMixture",
    "ExpertSchedule",
    "Experts",
    "LinearPlanner",
    "PlannerFor",
    "PlanningProblem",
    "Regulator",
    "Solution",
    "TabularPlanner",
    "finite_horizon",
    "lqr",
    "policy_iteration",
    "time_varying_lqr",
    "value_iteration",
]
