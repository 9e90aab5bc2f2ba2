"""Worlds that logs come from, one folder or file each."""

from coulda.environments.bandit import contextual_bandit
from coulda.environments.cassandra import CassandraError, CassandraFile, parse_cassandra, read_cassandra
from coulda.environments.host import HostSimulator, SimulatorError
from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.environments.pendulum import Pendulum
from coulda.environments.sepsis import Sepsis
from coulda.environments.tabular import TabularPOMDP, TabularState, forest, tiger

__all__ = [
    "CassandraError",
    "CassandraFile",
    "HostSimulator",
    "LinearQuadratic",
    "Pendulum",
    "Sepsis",
    "SimulatorError",
    "TabularPOMDP",
    "TabularState",
    "contextual_bandit",
    "forest",
    "parse_cassandra",
    "read_cassandra",
    "tiger",
]
