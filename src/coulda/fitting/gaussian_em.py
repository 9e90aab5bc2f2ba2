"""Expectation maximization of linear-Gaussian hidden states (Shumway & Stoffer, 1982; Ghahramani & Hinton, 1996)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp import Episode, batched

LEAST_VARIANCE = 1e-5
"""Of standardized observations, so that covariances stay positive."""


class HiddenSystem(eqx.Module):
    """s_1 ~ N(m, V), s' = A s + B a + w, o = C s + v, with w ~ N(0, Q) and v ~ N(0, R), all in standardized numbers."""

    A: Array
    B: Array
    C: Array
    Q: Array
    R: Array
    mean: Array
    covariance: Array


class Moments(eqx.Module):
    """Sums over the steps of an episode of expected products."""

    first: Array
    """E[s_1], `[n]`."""
    first_square: Array
    before: Array
    """Σ E[z z'] of z = (s, a), `[n + k, n + k]`."""
    cross: Array
    """Σ E[s_{t+1} z'], `[n, n + k]`."""
    after: Array
    """Σ E[s_{t+1} s_{t+1}'], `[n, n]`."""
    seen: Array
    """Σ o o', `[m, m]`."""
    seen_state: Array
    """Σ o E[s]', `[m, n]`."""
    state: Array
    """Σ E[s s'] over observations, `[n, n]`."""
    moves: Array
    """How many transitions."""
    sights: Array
    """How many observations."""
    log_evidence: Array


def guess(key: Array, states: int, controls: int, sights: int) -> HiddenSystem:
    """A system to start from: slow, and seen from random sides."""
    key_c, key_a = jax.random.split(key)
    A = 0.8 * jnp.eye(states) + 0.1 * jax.random.normal(key_a, (states, states))
    C = jax.random.normal(key_c, (sights, states)) / jnp.sqrt(states)
    eye = jnp.eye(states)
    return HiddenSystem(A, jnp.zeros((states, controls)), C, 0.3 * eye, 0.3 * jnp.eye(sights), jnp.zeros(states), eye)


class Smoothed(eqx.Module):
    """Of one episode: means and covariances of states given all of it, `[T + 1, ...]`, and of neighbors."""

    mean: Array
    covariance: Array
    lagged: Array
    """E[s_{t+1} s_t'] less the means' product, `[T, n, n]`."""
    there: Array
    innovation: Array
    """What was seen less what was foreseen, whitened, `[T + 1, m]`."""
    log_evidence: Array


def smooth(system: HiddenSystem, episode: Episode, closing: Array) -> Smoothed:
    """A Kalman filter forward and Rauch, Tung and Striebel's smoother backward."""
    length = jnp.sum(episode.live)
    there = jnp.arange(episode.live.shape[0] + 1) < length + closing

    def forward(carry: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], Any]:
        mean, covariance = carry
        o, action, known = inputs
        spread = system.C @ covariance @ system.C.T + system.R
        root = jnp.linalg.cholesky(spread)
        white = jax.scipy.linalg.solve_triangular(root, o - system.C @ mean, lower=True)
        gain = jax.scipy.linalg.cho_solve((root, True), system.C @ covariance).T
        gain = jnp.where(known, gain, 0.0)
        updated = mean + gain @ (o - system.C @ mean)
        shrink = jnp.eye(mean.shape[0]) - gain @ system.C
        left = shrink @ covariance @ shrink.T + gain @ system.R @ gain.T
        density = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diag(root))) - 0.5 * o.shape[0] * jnp.log(2 * jnp.pi)
        onward = system.A @ updated + system.B @ action
        ahead = system.A @ left @ system.A.T + system.Q
        return (onward, ahead), (updated, left, onward, ahead, white, jnp.where(known, density, 0.0))

    actions = jnp.concatenate([episode.action, episode.action[-1:]])
    inputs = episode.observation, actions, there
    _, (mean, covariance, onward, ahead, white, density) = jax.lax.scan(
        forward, (system.mean, system.covariance), inputs
    )

    def backward(carry: tuple[Array, Array], inputs: Any) -> tuple[tuple[Array, Array], Any]:
        later_mean, later_covariance = carry
        m, p, predicted, spread = inputs
        gain = jnp.linalg.solve(spread, system.A @ p).T
        smoothed = m + gain @ (later_mean - predicted)
        shrunk = p + gain @ (later_covariance - spread) @ gain.T
        return (smoothed, shrunk), (smoothed, shrunk, later_covariance @ gain.T)

    inputs = mean[:-1], covariance[:-1], onward[:-1], ahead[:-1]
    _, (means, covariances, lagged) = jax.lax.scan(backward, (mean[-1], covariance[-1]), inputs, reverse=True)
    return Smoothed(
        jnp.concatenate([means, mean[-1:]]),
        jnp.concatenate([covariances, covariance[-1:]]),
        lagged,
        there,
        jnp.where(there[:, None], white, jnp.nan),
        jnp.sum(density),
    )


def moments(system: HiddenSystem, episode: Episode, closing: Array) -> Moments:
    """Of one episode."""
    found = smooth(system, episode, closing)
    s, seen = found.mean, found.there.astype(jnp.float32)
    moved = seen[1:]
    square = found.covariance + s[:, :, None] * s[:, None, :]
    a, o = episode.action, jnp.where(found.there[:, None], episode.observation, 0.0)
    sa = jnp.einsum("t,ti,tj->ij", moved, s[:-1], a)
    before = jnp.block(
        [
            [jnp.einsum("t,tij->ij", moved, square[:-1]), sa],
            [sa.T, jnp.einsum("t,ti,tj->ij", moved, a, a)],
        ]
    )
    lagged = found.lagged + s[1:, :, None] * s[:-1, None, :]
    cross = jnp.concatenate([jnp.einsum("t,tij->ij", moved, lagged), jnp.einsum("t,ti,tj->ij", moved, s[1:], a)], 1)
    return Moments(
        s[0],
        square[0],
        before,
        cross,
        jnp.einsum("t,tij->ij", moved, square[1:]),
        jnp.einsum("ti,tj->ij", o, o),
        jnp.einsum("ti,tj->ij", o, s),
        jnp.einsum("t,tij->ij", seen, square),
        moved.sum(),
        seen.sum(),
        found.log_evidence,
    )


def maximize(found: Moments, weight: Array) -> HiddenSystem:
    """The system that makes the expected products likeliest; `weight` is the number of episodes."""
    n = found.first.shape[0]
    ridge = lambda matrix: (
        matrix + 1e-6 * jnp.trace(matrix) / matrix.shape[0] * jnp.eye(matrix.shape[0]) + 1e-6 * jnp.eye(matrix.shape[0])
    )
    both = jnp.linalg.solve(ridge(found.before), found.cross.T).T
    C = jnp.linalg.solve(ridge(found.state), found.seen_state.T).T
    Q = (found.after - both @ found.cross.T) / found.moves
    R = (found.seen - C @ found.seen_state.T) / found.sights
    mean = found.first / weight
    V = found.first_square / weight - jnp.outer(mean, mean)
    return HiddenSystem(both[:, :n], both[:, n:], C, _proper(Q), _proper(R), mean, _proper(V))


def _proper(matrix: Array) -> Array:
    """Symmetric, and positive."""
    return 0.5 * (matrix + matrix.T) + LEAST_VARIANCE * jnp.eye(matrix.shape[0])


@eqx.filter_jit
def run_em(system: HiddenSystem, episodes: Episode, weight: Array, closing: Array, rounds: int) -> Any:
    """The system after so many rounds, and the log evidence of the weighted episodes before each, `[rounds]`."""

    def once(system: HiddenSystem, _: None) -> tuple[HiddenSystem, Array]:
        each = batched(lambda episode: moments(system, episode, closing), episodes)
        found = jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), each)
        return maximize(found, jnp.sum(weight)), found.log_evidence

    return jax.lax.scan(once, system, length=rounds)


@eqx.filter_jit
def smoothed_all(system: HiddenSystem, episodes: Episode, closing: Array) -> Smoothed:
    """Of all episodes."""
    return batched(lambda episode: smooth(system, episode, closing), episodes)
