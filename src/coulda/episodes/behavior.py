"""The policy that made a log, fitted to it; and `fit_behavior`: behavior probabilities for a log that has none."""

from functools import partial
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from scipy.optimize import minimize

from coulda.episodes.log import EpisodeLog, spans
from coulda.episodes.spaces import HashableSpace, features
from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution, Normal
from coulda.pomdp import Policy

LEAST_SCALE = 1e-6
"""Of a continuous action, where the observation says exactly what is done: a density needs a scale above zero."""


class FittedBehavior(Policy):
    """μ(a | o) of a regression: softmax of a linear function of the observation, or Gaussian round one."""

    space: HashableSpace = eqx.field(static=True)
    """Of observations: their categories enter as one-hot, their numbers standardized."""
    center: Array
    """`[F]`."""
    scale: Array
    """`[F]`."""
    weights: Array
    """`[F + 1, K]`, the intercepts last; K actions, or K numbers of a continuous one."""
    spread: Array | None = None
    """Standard deviations of a continuous action, of its shape."""

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, NoiseDistribution]:
        """Of the observation alone."""
        outputs = self.inputs(observation) @ self.weights
        if self.spread is None:
            return carry, Categorical(logits=outputs)
        return carry, Normal(outputs.reshape(self.spread.shape), self.spread)

    def inputs(self, observation: Any) -> Array:
        """What the regression sees, `[F + 1]`."""
        seen = (features(self.space.value, observation) - self.center) / self.scale
        return jnp.concatenate([seen, jnp.ones(1)])


def fitted_behavior(log: EpisodeLog, penalty: float = 1.0) -> FittedBehavior:
    """The policy that made the log, as far as it is a function of the observation: a regression of actions on it.

    Multinomial logistic for discrete actions, linear with Gaussian residuals for continuous ones.

    Args:
        log: of discrete or of continuous actions.
        penalty: of the squared weights, as if that many observations had spoken for uniform actions. It keeps
            actions that were never taken in some place at a probability above zero.
    """
    actions, space = log.schema.action_space, HashableSpace(log.schema.observation_space)
    if not isinstance(actions, spaces.Discrete | spaces.Box):
        raise CouldaError(f"a behavior is fitted to discrete or continuous actions; this log's are {actions}")
    acted_on = _acted_on(log)
    if isinstance(actions, spaces.Discrete):
        # Equal numbered observations are one row of counts, however many they are.
        seen, row = acted_on, np.arange(log.num_steps)
        if isinstance(space.value, spaces.Discrete):
            seen, row = np.unique(acted_on, return_inverse=True)
        start = _unfitted(space, seen)
        counts = np.zeros((row.max() + 1, int(actions.n)), np.float32)
        np.add.at(counts, (row, log.action - int(actions.start)), 1)
        weights = _logistic(_inputs(start, seen), jnp.asarray(counts), penalty)
        return eqx.tree_at(lambda policy: policy.weights, start, weights)
    start = _unfitted(space, acted_on)
    return _linear(start, _inputs(start, acted_on), log.action, actions, penalty)


def fit_behavior(log: EpisodeLog, penalty: float = 1.0) -> EpisodeLog:
    """The log with log μ(a | o) of a multinomial logistic regression of actions on observations.

    Categories of a discrete observation enter as one-hot, numbers standardized. The result is marked as fitted:
    estimates that use it inherit the regression's error, and a behavior policy with memory is not captured.

    Args:
        log: of discrete actions.
        penalty: see `fitted_behavior`.
    """
    space = log.schema.action_space
    if not isinstance(space, spaces.Discrete):
        raise CouldaError(f"fit_behavior needs discrete actions; this log's are {space}")
    policy = fitted_behavior(log, penalty)
    log_probs = jax.nn.log_softmax(_inputs(policy, _acted_on(log)) @ policy.weights)
    actions = jnp.asarray(log.action - int(space.start), jnp.int32)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
    return log.with_log_prob(np.asarray(taken), behavior="fitted")


def _acted_on(log: EpisodeLog) -> Any:
    """All observations but those after the last actions, `[ΣT_i, ...]`."""
    rows = spans(log.starts + np.arange(len(log)), log.lengths)
    return jax.tree.map(lambda x: x[rows], log.observation)


def _unfitted(space: HashableSpace, observations: Any) -> FittedBehavior:
    """Numbers to mean 0 and scale 1; columns of zeros and ones, among them all one-hot ones, as they are."""
    seen = np.asarray(_features(space, jax.tree.map(jnp.asarray, observations)))
    mean, deviation = seen.mean(0, dtype=float), seen.std(0, dtype=float)
    keep = ((seen == 0) | (seen == 1)).all(0) | (deviation == 0)
    center, scale = (np.where(keep, *pair).astype(np.float32) for pair in ((0.0, mean), (1.0, deviation)))
    return FittedBehavior(space, jnp.asarray(center), jnp.asarray(scale), jnp.zeros((len(center) + 1, 0)))


@eqx.filter_jit
def _features(space: HashableSpace, observations: Any) -> Array:
    return jax.vmap(partial(features, space.value))(observations)


@eqx.filter_jit
def _inputs(policy: FittedBehavior, observations: Any) -> Array:
    return jax.vmap(policy.inputs)(observations)


def _logistic(inputs: Array, counts: Array, penalty: float) -> Array:
    """Weights `[F + 1, K]` that maximize the penalized likelihood of the counts `[rows, K]`: convex, so L-BFGS."""
    shape = inputs.shape[1], counts.shape[1]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _loss(jnp.asarray(flat.reshape(shape), jnp.float32), inputs, counts, penalty)
        return float(value), np.asarray(gradient, float).ravel()

    result = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return jnp.asarray(result.x.reshape(shape), jnp.float32)


@jax.jit
@jax.value_and_grad
def _loss(weights: Array, inputs: Array, counts: Array, penalty: float) -> Array:
    total = jnp.sum(counts)
    likelihood = jnp.sum(counts * jax.nn.log_softmax(inputs @ weights)) / total
    return -likelihood + 0.5 * penalty / total * jnp.sum(weights[:-1] ** 2)


def _linear(
    start: FittedBehavior, inputs: Array, actions: np.ndarray, space: gymnasium.spaces.Box, penalty: float
) -> FittedBehavior:
    """Penalized least squares of the numbers of an action, and the scale of what is left of each."""
    x, y = np.asarray(inputs, float), np.asarray(actions, float).reshape(len(actions), -1)
    ridge = np.diag([penalty] * (x.shape[1] - 1) + [0.0])
    weights = np.linalg.lstsq(x.T @ x + ridge, x.T @ y, rcond=None)[0]
    spread = np.maximum((y - x @ weights).std(0), LEAST_SCALE).reshape(space.shape)
    found = jnp.asarray(weights, jnp.float32), jnp.asarray(spread, jnp.float32)
    return FittedBehavior(start.space, start.center, start.scale, *found)
