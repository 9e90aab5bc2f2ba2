"""What fitted models rest on, for every row of a table that rests on them: where a policy goes, and what refits say."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.spatial import KDTree

from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.grounds import RefitError
from coulda.evaluation.model_checks import FEW_EXAMPLES
from coulda.evaluation.reading import Log
from coulda.fitting.folds import Folds
from coulda.fitting.judging import disagreement
from coulda.fitting.tables import FittedTable
from coulda.fitting.tabular import Counts, TabularFit, redrawn, values
from coulda.fitting.vectors import FittedVectors
from coulda.noise import Categorical
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.pomdp.rollout import remembers

EPISODES = 500
"""Simulated to see where a policy goes, and by how much refits differ."""
REDRAWS = 20
"""Of the posterior of frequencies."""
NEIGHBORS = 5
"""Logged steps that must be near, for a step to have support."""
MOST_NEAR = 4096
"""Steps of a log, or of a policy, that are looked at for it."""
ANOTHER_ACTION = 1e3
"""How far apart different discrete actions are, in spreads of states."""
SMALL_UNKNOWN, LARGE_UNKNOWN = 0.01, 0.1
"""Of a policy's episodes that go where nothing was ever tried; what follows there is counted as nothing."""


def jackknife(values: np.ndarray) -> RefitError:
    """The standard error of a value, from those of fits that each leave out one of K groups of episodes, `[K, n]`.

    Each row has the same n simulated episodes; what their number leaves to chance is taken off.
    """
    members, episodes = values.shape
    apart = values - values.mean(0)
    chance = apart.var(1, ddof=1).mean() / episodes
    square = (members - 1) / members * (apart.mean(1) ** 2).sum() - (members - 1) ** 2 / members * chance
    return RefitError(float(np.sqrt(max(square, 0.0))), members - 1)


def spread(values: np.ndarray) -> RefitError:
    """The same, from draws of what the fit might have been, `[B, n]`."""
    draws, episodes = values.shape
    apart = values - values.mean(0)
    chance = apart.var(1, ddof=1).mean() / episodes if episodes > 1 else 0.0
    return RefitError(float(np.sqrt(max(apart.mean(1).var(ddof=1) - chance, 0.0))), draws - 1)


@dataclass(frozen=True)
class TableGrounds:
    """Of a table: its counts."""

    verdict: tuple[Diagnostic, ...]
    model: FittedTable
    counts: Counts
    recipe: TabularFit

    def stands_for(self, log: Log) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing."""
        return ()

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

    def refit_error(self, key: Array, policy: Policy) -> RefitError:
        """By draws of the posterior of all frequencies."""
        keys = jax.random.split(key, REDRAWS + 1)
        drawn = (redrawn(one, self.counts, self.recipe) for one in keys[1:])
        if remembers(policy):
            shared = jax.random.split(keys[0], EPISODES)
            return spread(np.stack([np.asarray(_returns(model, policy, shared), float) for model in drawn]))
        acts = _probabilities(policy, self.model.seen)
        return spread(np.array([[float(values(model, acts))] for model in drawn]))


@dataclass(frozen=True)
class Nearness:
    """Logged steps, and how near to their like they are: what is farther off has no support."""

    steps: np.ndarray
    """Standardized states, and actions times `apart`, `[m, d + k]`."""
    apart: np.ndarray
    """What makes the numbers of a step those that are compared, `[d + k]`: different discrete actions are far apart."""
    reach: float
    """All but a hundredth of the logged steps have `NEIGHBORS` others within it."""

    @staticmethod
    def of(inputs: np.ndarray, states: int, discrete: bool) -> "Nearness":
        """Of all steps of a log, `[n, d + k]`, or a part of them."""
        chosen = np.linspace(0, len(inputs) - 1, min(len(inputs), MOST_NEAR)).astype(int)
        apart = np.where((np.arange(inputs.shape[1]) >= states) & discrete, ANOTHER_ACTION, 1.0)
        steps = apart * np.asarray(inputs, float)[chosen]
        far = KDTree(steps).query(steps, NEIGHBORS + 1)[0][:, -1]
        like = far[far < ANOTHER_ACTION]
        return Nearness(steps, apart, float(np.quantile(like, 0.99)) if len(like) else 0.0)

    def support(self, inputs: np.ndarray) -> Diagnostic:
        """Of a policy's steps `[n, d + k]`."""
        chosen = np.linspace(0, len(inputs) - 1, min(len(inputs), MOST_NEAR)).astype(int)
        far = KDTree(self.steps).query(self.apart * np.asarray(inputs, float)[chosen], NEIGHBORS)[0][:, -1]
        few = float((far > self.reach).mean())
        sentence = (
            f"{few:.0%} of the policy's steps are farther from logged ones with a like action than 99 % of those are "
            "from each other."
        )
        return Diagnostic("support", 1 - few, graded(few, 0.05, 0.25), sentence)


@dataclass(frozen=True)
class VectorGrounds:
    """Of an ensemble: its members."""

    verdict: tuple[Diagnostic, ...]
    model: FittedVectors
    on_log: float
    """The variance between members on the log, in variances of the noise."""
    near: Nearness
    """What the log has of states and actions."""
    folds: Folds
    """The episodes of the log that was fitted to."""

    def stands_for(self, log: Log) -> tuple[str, ...]:
        """The noise of the fitted log is judged by "noise" and "independence", with its consequences."""
        return ("mismatch",) if self.folds.hold(log) else ()

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:
        """Whether members are of one mind where the policy goes, and whether what it does there was done there."""
        found = _between(self.model, policy, jax.random.split(key, EPISODES))
        between, inputs, live = (np.asarray(x) for x in found)
        return disagreement(between[live], self.on_log), self.near.support(inputs[live])

    def refit_error(self, key: Array, policy: Policy) -> RefitError:
        """By the members, each of which left out a fold."""
        return jackknife(np.asarray(_by_member(self.model, policy, jax.random.split(key, EPISODES)), float).T)


@dataclass(frozen=True)
class HiddenGrounds:
    """Of hidden states: fits that each leave out a fold."""

    verdict: tuple[Diagnostic, ...]
    members: tuple[POMDP, ...]

    def stands_for(self, log: Log) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing."""
        return ()

    def on_path(self, key: Array, policy: Policy) -> tuple[Diagnostic, ...]:  # noqa: ARG002
        """Nothing is known of where a policy goes in states that nobody saw."""
        return ()

    def refit_error(self, key: Array, policy: Policy) -> RefitError:
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
    """Of the steps of simulated episodes: how much members differ, state and action, and whether they count."""

    def one(key: Array) -> tuple[Array, Array, Array]:
        episode = rollout(model, policy, model.scenario_prior.sample(key)).episode
        seen = episode.observation
        change = jax.vmap(model.change)(seen[:-1], seen[1:])
        between = jax.vmap(lambda *step: between_members(model, *step))(seen[:-1], episode.action, change)
        return between, jax.vmap(model.inputs)(seen[:-1], episode.action), episode.live

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
