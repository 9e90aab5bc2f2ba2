"""What fitted models rest on, for every row of a table that rests on them: where a policy goes, and what refits say."""

from dataclasses import dataclass

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.model_checks import FEW_EXAMPLES
from coulda.fitting.judging import disagreement
from coulda.fitting.tables import FittedTable
from coulda.fitting.tabular import Counts, TabularFit, redrawn, values
from coulda.fitting.vectors import FittedVectors
from coulda.noise import Categorical
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.pomdp.walk import remembers

EPISODES = 500
"""Simulated to see where a policy goes, and by how much refits differ."""
REDRAWS = 20
"""Of the posterior of frequencies."""
SMALL_UNKNOWN, LARGE_UNKNOWN = 0.01, 0.1
"""Of a policy's episodes that go where nothing was ever tried; what follows there is counted as nothing."""


def jackknife(values: np.ndarray) -> tuple[float, int]:
    """The standard error of a value, from those of fits that each leave out one of K groups of episodes, `[K, n]`.

    Each row has the same n simulated episodes; what their number leaves to chance is taken off.
    """
    members, episodes = values.shape
    apart = values - values.mean(0)
    chance = apart.var(1, ddof=1).mean() / episodes
    square = (members - 1) / members * (apart.mean(1) ** 2).sum() - (members - 1) ** 2 / members * chance
    return float(np.sqrt(max(square, 0.0))), members - 1


def spread(values: np.ndarray) -> tuple[float, int]:
    """The same, from draws of what the fit might have been, `[B, n]`."""
    draws, episodes = values.shape
    apart = values - values.mean(0)
    chance = apart.var(1, ddof=1).mean() / episodes if episodes > 1 else 0.0
    return float(np.sqrt(max(apart.mean(1).var(ddof=1) - chance, 0.0))), draws - 1


@dataclass(frozen=True)
class TableGrounds:
    """Of a table: its counts."""

    verdict: tuple[Diagnostic, ...]
    model: FittedTable
    counts: Counts
    recipe: TabularFit

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:
        """How much of what the policy does was tried, and how often."""
        states, actions, live = (np.asarray(x) for x in _walks(self.model, policy, jax.random.split(key, EPISODES)))
        lost = float((states[:, -1] == self.model.unknown).mean())
        few = float((self.counts.tried[actions, states[:, :-1]] < FEW_EXAMPLES)[live].mean())
        return (
            Diagnostic(
                "support",
                1 - few,
                graded(few, 0.05, 0.25),
                f"{few:.0%} of the policy's steps in the model have fewer than {FEW_EXAMPLES} examples in the log.",
            ),
            Diagnostic(
                "never tried",
                lost,
                graded(lost, SMALL_UNKNOWN, LARGE_UNKNOWN),
                f"{lost:.1%} of the policy's episodes do something in a state in which it was never done; what comes "
                "of it is not known, and counts as nothing.",
            ),
        )

    def refit_error(self, key: Array, policy: Policy) -> tuple[float, int]:
        """By draws of the posterior of all frequencies."""
        keys = jax.random.split(key, REDRAWS + 1)
        drawn = (redrawn(one, self.counts, self.recipe) for one in keys[1:])
        if remembers(policy):
            shared = jax.random.split(keys[0], EPISODES)
            return spread(np.stack([np.asarray(_returns(model, policy, shared), float) for model in drawn]))
        acts = _probabilities(policy, self.model.seen)
        return spread(np.array([[float(values(model, acts))] for model in drawn]))


@dataclass(frozen=True)
class VectorGrounds:
    """Of an ensemble: its members."""

    verdict: tuple[Diagnostic, ...]
    model: FittedVectors
    on_log: float
    """The variance between members on the log, in variances of the noise."""
    taken: np.ndarray
    """How often each discrete action was taken, `[A]`; of continuous ones the least and the largest, `[2, k]`."""

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:
        """Whether members are of one mind where the policy goes, and whether what it does was done."""
        found = _between(self.model, policy, jax.random.split(key, EPISODES))
        between, action, live = (np.asarray(x) for x in found)
        return disagreement(between[live], self.on_log), self._support(action[live])

    def _support(self, action: np.ndarray) -> Diagnostic:
        space = self.model.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            few = float((self.taken[action - int(space.start)] < FEW_EXAMPLES).mean())
            what = (
                f"{few:.0%} of the policy's steps take actions of which the log has fewer than {FEW_EXAMPLES} examples."
            )
        else:
            flat = action.reshape(len(action), -1)
            few = float(((flat < self.taken[0]) | (flat > self.taken[1])).any(1).mean())
            what = f"{few:.0%} of the policy's actions are beyond all that were logged."
        return Diagnostic("support", 1 - few, graded(few, 0.05, 0.25), what)

    def refit_error(self, key: Array, policy: Policy) -> tuple[float, int]:
        """By the members, each of which left out a fold."""
        return jackknife(np.asarray(_by_member(self.model, policy, jax.random.split(key, EPISODES)), float).T)


@dataclass(frozen=True)
class HiddenGrounds:
    """Of hidden states: fits that each leave out a fold."""

    verdict: tuple[Diagnostic, ...]
    members: tuple[POMDP, ...]

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:  # noqa: ARG002
        """Nothing is known of where a policy goes in states that nobody saw."""
        return ()

    def refit_error(self, key: Array, policy: Policy) -> tuple[float, int]:
        """By the members."""
        keys = jax.random.split(key, EPISODES)
        return jackknife(np.stack([np.asarray(_returns(model, policy, keys), float) for model in self.members]))


def between_members(model: FittedVectors, seen: Array, action: Array, change: Array) -> Array:
    """The variance of the members' means at a step, in variances of the noise, averaged over what has noise."""
    every = jax.vmap(lambda member: model.heads(member, model.inputs(seen, action), change))(
        jnp.arange(model.num_members)
    )
    # A tenth of the spread of changes is little, however little noise there is.
    noise = jnp.mean(jnp.exp(2 * every.log_scale), 0) + 0.01
    count = jnp.maximum(jnp.sum(model.noisy.astype(jnp.float32)), 1.0)
    return jnp.sum(jnp.where(model.noisy, jnp.var(every.mean, axis=0) / noise, 0.0)) / count


@eqx.filter_jit
def _between(model: FittedVectors, policy: Policy, keys: Array) -> tuple[Array, Array, Array]:
    def one(key: Array) -> tuple[Array, Array, Array]:
        episode = rollout(model, policy, model.scenario_prior.sample(key)).episode
        seen = episode.observation
        change = jax.vmap(model.change)(seen[:-1], seen[1:])
        between = jax.vmap(lambda *step: between_members(model, *step))(seen[:-1], episode.action, change)
        return between, episode.action, episode.live

    return batched(one, keys)


@eqx.filter_jit
def _by_member(model: FittedVectors, policy: Policy, keys: Array) -> Array:
    """Returns of each member on the same noise, `[n, K]`."""

    def one(key: Array) -> Array:
        scenario = model.scenario_prior.sample(key)

        def by(member: Array) -> Array:
            own = eqx.tree_at(lambda s: s.initial["member"], scenario, member)
            return rollout(model, policy, own).episode_return

        return jax.vmap(by)(jnp.arange(model.num_members, dtype=scenario.initial["member"].dtype))

    return batched(one, keys)


@eqx.filter_jit
def _walks(model: POMDP, policy: Policy, keys: Array) -> tuple[Array, Array, Array]:
    def one(key: Array) -> tuple[Array, Array, Array]:
        found = rollout(model, policy, model.scenario_prior.sample(key))
        return found.state.index, found.episode.action, found.episode.live

    return batched(one, keys)


@eqx.filter_jit
def _returns(model: POMDP, policy: Policy, keys: Array) -> Array:
    return batched(lambda key: rollout(model, policy, model.scenario_prior.sample(key)).episode_return, keys)


@eqx.filter_jit
def _probabilities(policy: Policy, seen: int) -> Array:
    def one(observation: Array) -> Array:
        _, distribution = policy(policy.initial_carry(), observation)
        assert isinstance(distribution, Categorical)
        return distribution.probabilities

    return jax.vmap(one)(jnp.arange(seen, dtype=jnp.int32))
