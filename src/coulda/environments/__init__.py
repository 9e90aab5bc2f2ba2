"""Worlds that logs come from, one folder or file each."""

from coulda.environments.bandit import contextual_bandit
from coulda.environments.cassandra import CassandraError, CassandraFile, parse_cassandra, read_cassandra
from coulda.environments.glucose import Glucose, GlucoseState
from coulda.environments.gym import GymSimulator
from coulda.environments.host import HostSimulator
from coulda.environments.host_workers import SimulatorError
from coulda.environments.inventory import Inventory, InventoryState
from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.environments.pendulum import Pendulum
from coulda.environments.pump import Pump, PumpState
from coulda.environments.queue import Queue
from coulda.environments.sepsis import Sepsis
from coulda.environments.tabular import TabularPOMDP, TabularState, forest, tiger

__all__ = [
    "CassandraError",
    "CassandraFile",
    "Glucose",
    "GlucoseState",
    "GymSimulator",
    "HostSimulator",
    "Inventory",
    "InventoryState",
    "LinearQuadratic",
    "Pendulum",
    "Pump",
    "PumpState",
    "Queue",
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
