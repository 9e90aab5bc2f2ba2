"""How much of a counterfactual value is the model's, and how much only the reparameterization's?

Mechanisms with the same distributions may disagree on counterfactuals. For an observed finite model, `coupling_bounds`
gives the least and the largest mean counterfactual return over *all* SCMs that have its transition probabilities and
noise that is independent over time; Gumbel-max and inverse-CDF lie between them. If the bounds are far apart, single
episodes cannot be answered for, whatever the sample size.

Given that (s, a) led to y, and were p = P(· | s, a) and q = P(· | s', a'), a compatible SCM may send (s', a') to any
distribution r with r(k) ≤ q(k) / p(y) that sums to 1; and (s, a) itself to y again (consistency). The largest r · V
fills the best states first, so that backward induction over the logged episode gives the bounds, both attained.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.reading import Log, over_log
from coulda.pomdp import Episode, FinitePOMDP


class Bounds(NamedTuple):
    """Of the counterfactual return, `[N]` an episode."""

    low: np.ndarray
    high: np.ndarray

    @property
    def mean(self) -> tuple[float, float]:
        """Of the mean over the log."""
        return float(self.low.mean()), float(self.high.mean())


def coupling_bounds(model: FinitePOMDP, policy: Array, log: Log, discount: float = 1.0) -> Bounds:
    """Bounds of each episode's counterfactual return over all compatible SCMs.

    Args:
        model: whose states are observed: the log's observations are their numbers.
        policy: π(a | s), `[S, A]`; its action noise is drawn afresh.
        log: of the model's observations, the one after the last action included.
        discount: γ of the return.
    """
    if log.schema.last_observation == "repeated":
        raise CouldaError("the bounds need the observation after each last action, which this log lacks")
    transition, reward, terminal = model.tables()
    function = eqx.Partial(_bounds, transition, reward, terminal, jnp.asarray(policy, float), discount)
    parts = list(over_log(function, log, model.horizon))
    return Bounds(*(np.concatenate(side).astype(float) for side in zip(*parts, strict=True)))


def _bounds(
    transition: Array,
    reward: Array,
    terminal: Array,
    policy: Array,
    discount: float,
    episode: Episode,
    index: Array,  # noqa: ARG001
) -> tuple[Array, Array]:
    steps = (episode.observation[:-1], episode.action, episode.observation[1:], episode.live)

    def bound(sign: float) -> Array:
        def step(value: Array, logged: tuple[Array, ...]) -> tuple[Array, None]:
            state, action, after, live = logged
            worth = sign * reward + jnp.where(terminal, 0.0, discount * value)[None, None, :]
            p = jnp.where(live, transition[action, state, after], 1.0)
            best = jax.vmap(jax.vmap(lambda q, w: fill(q / p, w)))(transition, worth)
            # The same state and action lead to the same state again.
            same = live & (jnp.arange(policy.shape[1])[:, None] == action) & (jnp.arange(len(terminal))[None] == state)
            best = jnp.where(same, worth[action, state, after], best)
            return jnp.sum(policy.T * best, axis=0), None

        value, _ = jax.lax.scan(step, jnp.zeros(len(terminal)), steps, reverse=True)
        return sign * jnp.where(terminal, 0.0, value)[episode.observation[0]]

    return bound(-1.0), bound(1.0)


def fill(capacity: Array, worth: Array) -> Array:
    """Max r · worth over distributions r ≤ capacity, `[S]` each: the best places are filled first.

    >>> float(fill(jnp.array([0.7, 0.5, 1.0]), jnp.array([0.0, 2.0, 1.0])))
    1.5
    """
    order = jnp.argsort(-worth)
    ordered = capacity[order]
    before = jnp.cumsum(ordered) - ordered
    return jnp.sum(jnp.clip(1 - before, 0.0, ordered) * worth[order])


def reparameterization_diagnostic(estimate: Estimate, name: str, other: Estimate) -> Diagnostic:
    """Whether the value depends on the reparameterization: in a right model its mean does not, only single episodes."""
    assert estimate.value is not None
    assert estimate.interval is not None
    assert other.value is not None
    apart = abs(other.value - estimate.value)
    return Diagnostic(
        "reparameterization",
        apart,
        # Two estimates of one number by independent noise are a width of their intervals apart once in 200 times.
        graded(apart / max(estimate.interval.width, 1e-12), 1.0, 2.0),
        f"With the reparameterization {name} the value is {other.value:.4g} instead of {estimate.value:.4g}.",
    )
