"""Policies that are networks over grids, on the disk: their weights, and the architecture it takes to read them."""

from pathlib import Path

import jax
import msgspec

from coulda.policies.conv_lstm import ConvLSTMArchitecture, ConvLSTMPolicy
from coulda.policies.last_seen import LastSeenArchitecture, LastSeenPolicy
from coulda.storage import Kind, load_network, save_network

GridPolicy = ConvLSTMPolicy | LastSeenPolicy
"""A network over grids of categories, whatever it remembers."""
Architecture = ConvLSTMArchitecture | LastSeenArchitecture
_KIND = Kind("policy", 2, Architecture)


def save_policy(path: Path, policy: GridPolicy, log: bytes | None = None) -> None:
    """Commit a policy as an artifact at `path`, which must not exist yet; with the log of its training."""
    save_network(path, _KIND, policy, policy.architecture, log)


def load_policy(path: Path) -> GridPolicy:
    """The policy that `save_policy` wrote; anything else raises `coulda.storage.ArtifactError`."""
    return load_network(path, _KIND, _make)


def _make(key: jax.Array, architecture: Architecture) -> GridPolicy:
    network = ConvLSTMPolicy if isinstance(architecture, ConvLSTMArchitecture) else LastSeenPolicy
    return network(key, **msgspec.structs.asdict(architecture))
