"""The return-weighted regression of equation 1, on counterfactual trajectories.

π^{k+1} = argmax_π Σ_i w_i log p^π(τ^i),   w_i ∝ exp(G(τ^i) / temperature) p^{π^k}(τ^i) / p^λ(τ^i),   τ^i ~ p^λ.

Model and scenario cancel in the ratio of p^{π^k} and p^λ, so that only the probabilities of actions remain. A batch is
S scenarios with n trajectories each, `[S, n, ...]`. Weights live in log space until they are normalized, and their
normalization is named: "batch" is the equation as written, up to a constant; "scenario" compares a scenario's
trajectories with each other, so that a scenario in which every return is high does not drown the others.
"""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.devices import num_devices
from coulda.errors import CouldaError
from coulda.noise import effective_sample_size, merge
from coulda.pomdp import POMDP, Actor, Episode, Policy, Scenario, batched, rollout, sum_over_batch
from coulda.pomdp.rollout import taken_log_probs

Normalization = Literal["scenario", "batch"]
NORMALIZATIONS = ("scenario", "batch")

INFERRED = frozenset({"initial", "transition", "observation"})
"""What a counterfactual trajectory takes from its scenario; its action noise is fresh (Corollary 2)."""

AT_ONCE = 8
"""Trajectories of which a device takes the gradient at once; those without weight are last, and left out."""


class ReturnWeightedInfo(eqx.Module):
    """What a person wants to know of one regression; scalars."""

    planner_return: Array
    """Mean return of the trajectories under λ, in scenarios that are not dead."""
    log_likelihood: Array
    """Σ_i w_i log p^π(τ^i), before the update."""
    effective_sample_size: Array
    """That of the weights in the group that is normalized: a scenario's (their mean; at most n) or the batch's."""
    dead: Array
    """The share of scenarios that are over at once."""
    unsupported: Array
    """The share of trajectories in other scenarios without weight: π^k never acts so, or G is not finite."""


class ReturnWeightedRegression(eqx.Module):
    """Policy improvement by equation 1: roll out λ in each scenario, weigh, and climb log p^π.

    Args:
        num_rollouts: n, trajectories per scenario (paper: 10).
        temperature: the temperature of the return (paper: 1).
        normalization: "scenario" or "batch".
        ratio: whether the weights have the factor p^{π^k} / p^λ. Without it π imitates the planner's better
            trajectories, however unlikely they are under π.
        num_resampled: take the gradient on this many trajectories, drawn by weight, instead of on all.
    """

    num_rollouts: int = eqx.field(static=True, default=10)
    temperature: Array = eqx.field(converter=lambda value: jnp.asarray(value, float), default=1.0)
    normalization: Normalization = eqx.field(static=True, default="scenario")
    ratio: bool = eqx.field(static=True, default=True)
    num_resampled: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.normalization not in NORMALIZATIONS:
            raise CouldaError(f"normalization is {self.normalization!r}; name one of {NORMALIZATIONS}.")
        if not self.temperature > 0:
            raise CouldaError(f"temperature must be positive; got {self.temperature}.")

    def ascent(
        self,
        key: Array,
        model: POMDP,
        policy: Policy,
        planner: Callable[[Array, Scenario], Actor],
        scenarios: Scenario,
        discount: float = 1.0,
    ) -> Callable[[Policy, Array], tuple[Policy, ReturnWeightedInfo]]:
        """The ascent direction of equation 1 in scenarios `[S, ...]`, at any π: trajectories and weights are of π^k.

        Args:
            key: for fresh action noise. Consumed.
            model: the SCM we believe in.
            policy: π^k.
            planner: λ for one scenario, a function of its place in the batch and of it.
            scenarios: `[S, ...]`.
            discount: γ of the return.

        Returns:
            (π, uniform noise) -> the direction, on trajectories that are resampled by the noise, and what it tells.
        """
        count = jax.tree.leaves(scenarios)[0].shape[0]
        keys = jax.vmap(lambda key: jax.random.split(key, self.num_rollouts))(jax.random.split(key, count))
        numbers = jnp.repeat(jnp.arange(count), self.num_rollouts)

        def run(pair: tuple[Array, Array]) -> Episode:
            key, number = pair
            scenario = jax.tree.map(lambda leaf: leaf[number], scenarios)
            fresh = model.scenario_prior.sample(key)
            return rollout(model, planner(number, scenario), merge(scenario, fresh, INFERRED)).episode

        # All trajectories under one vmap, which conv-LSTMs like better than rollouts within scenarios.
        flat = batched(run, (keys.reshape(-1), numbers))
        trajectories = jax.tree.map(lambda leaf: leaf.reshape(count, self.num_rollouts, *leaf.shape[1:]), flat)
        return self.ascent_on(policy, trajectories, discount)

    def ascent_on(
        self, policy: Policy, trajectories: Episode, discount: float = 1.0
    ) -> Callable[[Policy, Array], tuple[Policy, ReturnWeightedInfo]]:
        """The same on given trajectories of λ, `[S, n, ...]`."""
        usable = trajectories.live[:, :, 0].any(1)
        log_weights = self.log_weights(policy, trajectories, discount)
        weights = normalize(log_weights, usable, self.normalization)
        returns = trajectories.discounted_return(discount)

        def ascend(policy: Policy, noise: Array) -> tuple[Policy, ReturnWeightedInfo]:
            chosen = self._chosen(noise, trajectories, weights)
            log_likelihood, gradient = sum_over_batch(climb, policy, chosen)
            return gradient, self._info(returns, log_weights, weights, usable, log_likelihood)

        return ascend

    def log_weights(self, policy: Policy, trajectories: Episode, discount: float = 1.0) -> Array:
        """Log w of trajectories `[S, n, ...]`, before normalization: `[S, n]`."""
        weigh = lambda episode: _log_weight(policy, episode, discount, self.temperature, ratio=self.ratio)
        return batched(jax.vmap(weigh), trajectories)

    def _chosen(self, noise: Array, trajectories: Episode, weights: Array) -> tuple[Episode, Array]:
        """The trajectories on which the gradient is taken, `[m, ...]`, and their weights `[m]`."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), trajectories)
        index, share = jnp.arange(weights.size), weights.reshape(-1)
        if self.num_resampled is not None:
            index = resample(noise, share, self.num_resampled)
            # Nothing can be resampled where every weight is zero; then nothing is to be learned either.
            share = multiplicity(index).astype(share.dtype) * (jnp.sum(share) / self.num_resampled)
        order = heaviest_first(share, num_devices())
        # What is made up has no weight.
        share = jnp.where(order < share.size, share[order], 0.0)
        return jax.tree.map(lambda leaf: leaf[index[order]], flat), share

    def _info(
        self, returns: Array, log_weights: Array, weights: Array, usable: Array, log_likelihood: Array
    ) -> ReturnWeightedInfo:
        count = jnp.maximum(jnp.sum(usable), 1).astype(float)
        axis = 1 if self.normalization == "scenario" else None
        sizes = effective_sample_size(weights, axis=axis)
        lost = ~jnp.isfinite(log_weights) & usable[:, None]
        return ReturnWeightedInfo(
            planner_return=jnp.sum(jnp.where(usable, returns.mean(1), 0.0)) / count,
            log_likelihood=log_likelihood,
            effective_sample_size=jnp.sum(sizes) / (count if axis == 1 else 1.0),
            dead=jnp.mean(~usable),
            unsupported=jnp.sum(lost.mean(1)) / count,
        )


def _log_weight(policy: Policy, trajectory: Episode, discount: float, temperature: Array, *, ratio: bool) -> Array:
    """Log w = G / temperature + Σ_t log π^k(a_t | h_t) - log λ(a_t | s_t, h_t), over live steps of one trajectory."""
    scaled = trajectory.discounted_return(discount) / temperature
    if not ratio:
        return scaled
    log_ratio = taken_log_probs(policy, trajectory) - trajectory.log_prob
    return scaled + jnp.sum(jnp.where(trajectory.live, log_ratio, 0.0))


def normalize(log_weights: Array, usable: Array, normalization: Normalization) -> Array:
    """Weights `[S, n]` that sum to one over all usable scenarios `[S]`; all zero where nothing has any weight.

    >>> weights = normalize(jnp.log(jnp.asarray([[1.0, 3.0], [40.0, 40.0]])), jnp.ones(2, bool), "scenario")
    >>> [[round(float(weight), 3) for weight in row] for row in weights]
    [[0.125, 0.375], [0.25, 0.25]]
    """
    log_weights = jnp.where(usable[:, None] & jnp.isfinite(log_weights), log_weights, -jnp.inf)
    axis = 1 if normalization == "scenario" else None
    top = jnp.max(log_weights, axis=axis, keepdims=True)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    weights = _divide(weights, jnp.sum(weights, axis=axis, keepdims=True))
    return _divide(weights, jnp.sum(weights))


def resample(noise: Array, weights: Array, size: int) -> Array:
    """Indices `[size]` of trajectories drawn by weight `[N]`, systematically, from one uniform number.

    Index i comes up w_i · size times in expectation, and never differs from that by one or more.

    >>> resample(jnp.asarray(0.5), jnp.asarray([0.5, 0.0, 0.25, 0.25]), 4).tolist()
    [0, 0, 2, 3]
    """
    cumulative = jnp.cumsum(weights)
    places = (jnp.arange(size, dtype=weights.dtype) + noise) / size * cumulative[-1]
    return jnp.clip(jnp.searchsorted(cumulative, places, side="right"), 0, weights.shape[0] - 1)


def multiplicity(index: Array) -> Array:
    """How often each of `index [m]` comes up, told at its first place and zero at the others.

    >>> multiplicity(jnp.asarray([4, 4, 4, 7])).tolist()
    [3, 0, 0, 1]
    """
    equal = index[:, None] == index[None, :]
    return jnp.where(jnp.argmax(equal, axis=1) == jnp.arange(index.size), jnp.sum(equal, axis=1), 0)


def heaviest_first(weights: Array, devices: int) -> Array:
    """An order of weights `[m]` in which each device's share begins with its heaviest, and all have as many of them.

    It is filled up with m, which is no place, to whole chunks of every device, where there is more than one chunk.
    """
    size = weights.size
    chunk = devices * AT_ONCE
    missing = -size % chunk if size > chunk else 0
    order = jnp.concatenate([jnp.argsort(-weights), jnp.full(missing, size)])
    return order.reshape(-1, devices).T.reshape(-1) if order.size % devices == 0 else order


def climb(policy: Policy, batch: tuple[Episode, Array]) -> tuple[Array, Policy]:
    """`weighted_log_likelihood` and its gradient, in chunks; where nothing has any weight no network is run."""
    ascend = eqx.filter_value_and_grad(weighted_log_likelihood)
    size = batch[1].size
    if size <= AT_ONCE or size % AT_ONCE:
        return ascend(policy, *batch)
    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, eqx.filter(policy, eqx.is_inexact_array))

    def add(total: Any, chunk: tuple[Episode, Array]) -> tuple[Any, None]:
        found = jax.lax.cond(jnp.any(chunk[1] > 0), lambda: ascend(policy, *chunk), lambda: nothing)
        return jax.tree.map(jnp.add, total, found), None

    chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, AT_ONCE, *leaf.shape[1:]), batch)
    return jax.lax.scan(add, nothing, chunks)[0]


def weighted_log_likelihood(policy: Policy, trajectories: Episode, weights: Array) -> Array:
    """Σ_i w_i log p^π(τ^i) of trajectories `[N, ...]`, without what does not depend on π."""
    log_probs = jax.vmap(lambda episode: jnp.sum(taken_log_probs(policy, episode)))(trajectories)
    # A trajectory that π excludes has log-probability -inf and no weight; it shall not make a NaN.
    return jnp.sum(jnp.where(weights > 0, weights * log_probs, 0.0))


def _divide(a: Array, b: Array) -> Array:
    """The quotient, and 0 for 0 / 0."""
    return a / jnp.where(b > 0, b, 1.0)
