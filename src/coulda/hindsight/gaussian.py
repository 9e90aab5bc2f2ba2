"""p(U | h_t) in a linear-Gaussian model: by inversion where the state is observed, else by Kalman smoothing.

A draw from the posterior is made of a draw from the prior (Durbin & Koopman, 2002): simulate observations o⁺ from
fresh noise u⁺, and correct it by what the smoother makes of the difference, u = u⁺ + E[u | o] - E[u | o⁺].
Everything is linear, so that this is u⁺ + E[u | o - o⁺], with the known actions and the mean cancelling.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp import Episode, LinearGaussianPOMDP, Scenario


def gaussian_noise(
    model: LinearGaussianPOMDP, episode: Episode, length: Array, noise: Scenario
) -> tuple[Scenario, Array]:
    """A draw of the noise of states and observations given the first `length` of these, and its states `[T + 1, n]`."""
    if model.C is None:
        return _invert(model, episode, noise)
    return _smooth(model, episode, length, noise)


def _invert(model: LinearGaussianPOMDP, episode: Episode, noise: Scenario) -> tuple[Scenario, Array]:
    """U = L^{-1} (s_{t+1} - A s_t - B a_t): the state is observed, so there is no choice."""
    states = episode.observation
    predicted = states[:-1] @ model.A.T + episode.action @ model.B.T
    transition = jnp.linalg.solve(model.transition_scale, (states[1:] - predicted).T).T
    initial = jnp.linalg.solve(model.initial_scale, states[0] - model.initial_mean)
    return Scenario(initial, transition, noise.observation, noise.action), states


def _smooth(model: LinearGaussianPOMDP, episode: Episode, length: Array, noise: Scenario) -> tuple[Scenario, Array]:
    simulated = _observations(model, episode.action, noise)
    correction = smoothed_noise(model, episode.observation - simulated, _seen(episode, length))
    inferred = Scenario(
        initial=noise.initial + correction.initial,
        transition=noise.transition + correction.transition,
        observation=noise.observation + correction.observation,
        action=noise.action,
    )
    return inferred, _states(model, episode.action, inferred)


def smoothed_noise(model: LinearGaussianPOMDP, residual: Array, seen: Array) -> Scenario:
    """E[u | o] for zero-mean observations `residual` `[T + 1, m]` of which those in `seen` `[T + 1]` are known.

    The disturbance smoother: a Kalman filter forward, then r_{i-1} = C'F⁻¹v_i + (A - A K_i C)' r_i backward.
    """
    assert model.C is not None
    assert model.observation_scale is not None
    C, covariance = model.C, model.transition_scale @ model.transition_scale.T
    observation_covariance = model.observation_scale @ model.observation_scale.T

    def forward(belief: _Belief, inputs: tuple[Array, Array]) -> tuple["_Belief", tuple[Array, Array]]:
        o, known = inputs
        precision = jnp.where(known, jnp.linalg.inv(C @ belief.covariance @ C.T + observation_covariance), 0.0)
        innovation = precision @ (o - C @ belief.mean)
        gain = belief.covariance @ C.T @ precision
        mean = belief.mean + belief.covariance @ C.T @ innovation
        updated = belief.covariance - gain @ C @ belief.covariance
        predicted = _Belief(model.A @ mean, model.A @ updated @ model.A.T + covariance)
        return predicted, (innovation, gain)

    start = _Belief(jnp.zeros_like(model.initial_mean), model.initial_scale @ model.initial_scale.T)
    _, (innovations, gains) = jax.lax.scan(forward, start, (jnp.where(seen[:, None], residual, 0.0), seen))

    def backward(later: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        innovation, gain = inputs
        # `later` is the gradient of log p(o) by the predicted s_{i+1}; L' times it is the mean of the noise there.
        pulled = model.A.T @ later
        error = innovation - gain.T @ pulled
        return pulled + C.T @ error, (later, error)

    first, (later, errors) = jax.lax.scan(
        backward, jnp.zeros_like(model.initial_mean), (innovations, gains), reverse=True
    )
    return Scenario(
        initial=model.initial_scale.T @ first,
        transition=later[:-1] @ model.transition_scale,
        observation=errors @ model.observation_scale,
        action=(),
    )


def gaussian_log_evidence(model: LinearGaussianPOMDP, episode: Episode, length: Array) -> Array:
    """Log p(o_1 … o_t | a_1 …), for t = `length`: the Kalman filter's, or of the residuals where the state is seen."""
    means, spreads, seen = gaussian_predictions(model, episode, length)
    observations = jnp.where(seen[:, None], episode.observation, 0.0)
    densities = jax.vmap(jax.scipy.stats.multivariate_normal.logpdf)(observations, means, spreads)
    return jnp.sum(jnp.where(seen, densities, 0.0))


def gaussian_predictions(model: LinearGaussianPOMDP, episode: Episode, length: Array) -> tuple[Array, Array, Array]:
    """Of each observation given those before it: mean `[T + 1, m]`, covariance `[T + 1, m, m]`, and which are known."""
    seen = _seen(episode, length)
    zero = jnp.zeros_like(model.initial_mean)
    C, scale = (jnp.eye(len(zero)), 0.0 * jnp.eye(len(zero))) if model.C is None else (model.C, model.observation_scale)
    assert scale is not None

    def forward(belief: _Belief, inputs: tuple[Array, Array, Array]) -> tuple["_Belief", tuple[Array, Array]]:
        o, known, action = inputs
        foreseen, spread = C @ belief.mean, C @ belief.covariance @ C.T + scale @ scale.T
        gain = jnp.where(known, belief.covariance @ C.T @ jnp.linalg.inv(spread), 0.0)
        mean = belief.mean + gain @ (o - foreseen)
        updated = belief.covariance - gain @ C @ belief.covariance
        onward = model.transition(mean, action, zero)
        covariance = model.A @ updated @ model.A.T + model.transition_scale @ model.transition_scale.T
        return _Belief(onward, covariance), (foreseen, spread)

    start = _Belief(model.initial(zero), model.initial_scale @ model.initial_scale.T)
    actions = jnp.concatenate([episode.action, episode.action[-1:]])
    observations = jnp.where(seen[:, None], episode.observation, 0.0)
    return *jax.lax.scan(forward, start, (observations, seen, actions))[1], seen


def _seen(episode: Episode, length: Array) -> Array:
    """Which observations are known, `[T + 1]`: those of the history in which no number is missing."""
    return (jnp.arange(episode.observation.shape[0]) < length) & ~jnp.isnan(episode.observation).any(1)


class _Belief(NamedTuple):
    mean: Array
    covariance: Array


def _states(model: LinearGaussianPOMDP, actions: Array, noise: Scenario) -> Array:
    def step(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        state = model.transition(state, *inputs)
        return state, state

    first = model.initial(noise.initial)
    return jnp.concatenate([first[None], jax.lax.scan(step, first, (actions, noise.transition))[1]])


def _observations(model: LinearGaussianPOMDP, actions: Array, noise: Scenario) -> Array:
    return jax.vmap(model.observe)(_states(model, actions, noise), noise.observation)
