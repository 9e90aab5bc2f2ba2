"""`fit_behavior`: behavior probabilities for a log that has none."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from scipy.optimize import minimize

from coulda.episodes.log import EpisodeLog, spans
from coulda.episodes.spaces import features
from coulda.errors import CouldaError


def fit_behavior(log: EpisodeLog, penalty: float = 1.0) -> EpisodeLog:
    """The log with log μ(a | o) of a multinomial logistic regression of actions on observations.

    Categories of a discrete observation enter as one-hot, numbers standardized. The result is marked as fitted:
    estimates that use it inherit the regression's error, and a behavior policy with memory is not captured.

    Args:
        log: a log of discrete actions.
        penalty: that on squared weights, as if that many observations had spoken for uniform actions. It keeps
            actions that were never taken in some place at a probability above zero.
    """
    space = log.schema.action_space
    if not isinstance(space, spaces.Discrete):
        raise CouldaError(f"fit_behavior needs discrete actions; this log's are {space}")
    starts = np.cumsum(log.lengths) - log.lengths + np.arange(len(log))
    rows = spans(starts, log.lengths)
    observations = jax.tree.map(lambda x: jnp.asarray(x[rows]), log.observation)
    inputs = jax.vmap(partial(features, log.schema.observation_space))(observations)
    inputs = jnp.concatenate([_standardized(inputs), jnp.ones((len(inputs), 1))], axis=1)
    actions = jnp.asarray(log.action - int(space.start), jnp.int32)
    weights = _fit(inputs, actions, int(space.n), penalty)
    log_probs = jax.nn.log_softmax(inputs @ weights)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
    return log.with_log_prob(np.asarray(taken), behavior="fitted")


def _standardized(inputs: Array) -> Array:
    """Numbers to mean 0 and scale 1; columns of zeros and ones, among them all one-hot ones, as they are."""
    keep = ((inputs == 0) | (inputs == 1)).all(axis=0, keepdims=True) | (jnp.std(inputs, 0, keepdims=True) == 0)
    scaled = (inputs - jnp.mean(inputs, 0, keepdims=True)) / jnp.std(inputs, 0, keepdims=True)
    return jnp.where(keep, inputs, scaled)


def _fit(inputs: Array, actions: Array, num_actions: int, penalty: float) -> Array:
    """Weights `[features + 1, K]` that maximize the penalized likelihood: convex, so L-BFGS finds them."""
    shape = inputs.shape[1], num_actions
    count = inputs.shape[0]

    @jax.jit
    @jax.value_and_grad
    def loss(weights: Array) -> Array:
        log_probs = jax.nn.log_softmax(inputs @ weights.reshape(shape))
        likelihood = jnp.mean(jnp.take_along_axis(log_probs, actions[:, None], axis=1))
        return -likelihood + 0.5 * penalty / count * jnp.sum(weights[:-num_actions] ** 2)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(jnp.asarray(flat, jnp.float32))
        return float(value), np.asarray(gradient, float)

    result = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return jnp.asarray(result.x, jnp.float32).reshape(shape)
