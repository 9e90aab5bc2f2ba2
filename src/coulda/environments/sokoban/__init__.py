"""PO-Sokoban: the environment, its level generator and its exact solver (section 3.2, appendix C).

In the order in which they import each other: `tiles` (the seven categories), `boxoban` and `pool` (levels on
disk), `generator`, `solver`, `action_table` and `planner` (the expert), `checks`, `noise`, `environment` (`Sokoban`,
the POMDP), `slippery` (where chance goes on), `revealed` (what an episode tells of its level), `boards` and `batch`
(the fast path), `drawing`, `gym`.
"""

from coulda.environments.sokoban.action_table import ActionTable, tabulate
from coulda.environments.sokoban.batch import SokobanBatch
from coulda.environments.sokoban.boxoban import LevelFileError, read_levels, write_levels
from coulda.environments.sokoban.checks import LevelCheck, check_level, count_defects
from coulda.environments.sokoban.environment import Sokoban
from coulda.environments.sokoban.game import Game
from coulda.environments.sokoban.generator import generate
from coulda.environments.sokoban.gym import POSokobanEnv, POSokobanVectorEnv, register
from coulda.environments.sokoban.noise import UniformLevels
from coulda.environments.sokoban.planner import SolverPlanner, SolverPlanners, solver_planners
from coulda.environments.sokoban.pool import read_pool, write_pool
from coulda.environments.sokoban.revealed import LevelEvidence, Revealed, revealed
from coulda.environments.sokoban.slippery import SlipperySokoban
from coulda.environments.sokoban.solver import SOLVED, UNKNOWN, UNSOLVABLE, Solutions, solve

__all__ = [
    "SOLVED",
    "UNKNOWN",
    "UNSOLVABLE",
    "ActionTable",
    "Game",
    "LevelCheck",
    "LevelEvidence",
    "LevelFileError",
    "POSokobanEnv",
    "POSokobanVectorEnv",
    "Revealed",
    "SlipperySokoban",
    "Sokoban",
    "SokobanBatch",
    "Solutions",
    "SolverPlanner",
    "SolverPlanners",
    "UniformLevels",
    "check_level",
    "count_defects",
    "generate",
    "read_levels",
    "read_pool",
    "revealed",
    "solve",
    "solver_planners",
    "tabulate",
    "write_levels",
    "write_pool",
]

register()  # gymnasium.make("coulda.environments.sokoban:coulda/POSokoban-v0")
