"""Policies outside of JAX along a log: asked about all steps of many episodes in one call, or known from columns.

Those with memory are walked like any other, all episodes of a batch together.
"""

from typing import TypeGuard

import jax
import numpy as np

from coulda.episodes import EpisodeLog, StoredLog
from coulda.errors import CouldaError
from coulda.evaluation.nodes import nodes
from coulda.policies import HostPolicy, LoggedPolicy
from coulda.policies.host import taken_log_probs
from coulda.pomdp import Policy
from coulda.pomdp.rollout import remembers

Told = tuple[np.ndarray, np.ndarray | None]
"""Log-probabilities of what was done, `[ΣT_i]`, and probabilities of all that could have been, `[Σ(T_i + 1), A]`, or,
where actions are numbers, those at `nodes`, `[Σ(T_i + 1), K, k]`."""


def is_host(policy: Policy) -> TypeGuard[HostPolicy]:
    """Whether it can be asked without JAX about all steps at once."""
    return isinstance(policy, HostPolicy) and not remembers(policy)


def is_column(policy: Policy) -> TypeGuard[LoggedPolicy]:
    """Whether only its probabilities along the log are known."""
    return isinstance(policy, LoggedPolicy)


def ask_host(policy: HostPolicy, batch: EpisodeLog, every: bool) -> Told:
    """What it says of a batch of episodes; of all actions where `every`."""
    last = np.cumsum(batch.lengths + 1) - 1
    if not every:
        acted_on = jax.tree.map(lambda leaf: np.delete(leaf, last, 0), batch.observation)
        return policy.log_densities(acted_on, batch.action), None
    if not policy.host.discrete:
        acted_on = jax.tree.map(lambda leaf: np.delete(leaf, last, 0), batch.observation)
        (mean, scale), _ = policy.host.answers(batch.observation)
        mean, scale = (x.reshape(len(x), 1, -1) for x in (mean, scale))
        following = mean + scale * nodes(mean.shape[-1])[None]
        return policy.log_densities(acted_on, batch.action), following.astype(np.float32)
    found = policy.probabilities(batch.observation)
    return taken_log_probs(np.delete(found, last, 0), batch.action), found


def columns_of(
    name: str, policy: LoggedPolicy, log: EpisodeLog | StoredLog, lengths: np.ndarray, terminated: np.ndarray
) -> Told:
    """What the columns say; they must be of this log."""
    if len(policy.taken) != lengths.sum():
        raise CouldaError(
            f"policy '{name}' has probabilities of {len(policy.taken)} steps, and the log has {lengths.sum()}; they "
            "must be columns of this log."
        )
    if policy.every is None:
        return policy.taken, None
    unknown = np.asarray(np.isnan(policy.every).any(1))
    # Fitted values go on after an episode only where it was cut off, before the longest of them ended.
    goes_on = ~terminated & (lengths < log.max_length) & (log.schema.last_observation == "logged")
    for episode in np.flatnonzero(unknown[np.cumsum(lengths + 1) - 1] & goes_on)[:1]:
        raise CouldaError(
            f"policy '{name}': episode {episode} was cut off, and what it would have been worth afterwards depends on "
            "the policy there; give its probabilities in the row of the last observation, too."
        )
    return policy.taken, np.where(unknown[:, None], 0, policy.every)
