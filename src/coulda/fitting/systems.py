"""`FittedSystem`: a hidden linear-Gaussian state that was fitted to a log, in the log's own units."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.fitting.gaussian_em import HiddenSystem
from coulda.pomdp import Episode, LinearGaussianPOMDP, LocationScaleAction
from coulda.scales import spread_of


class FittedSystem(LinearGaussianPOMDP):
    """A linear-Gaussian system with a reward that is quadratic in state and action.

    The last number of the state is always 1, so that what is seen may have a mean.
    """

    payoff: Array
    """Of (s, a), the 1 included, `[n + 1 + k, n + 1 + k]`."""

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """zᵀ M z of z = (s, a)."""
        z = jnp.concatenate([state, action])
        return z @ self.payoff @ z


class Units(eqx.Module):
    """What makes observations and actions of size one."""

    seen_center: Array
    seen_spread: Array
    done_center: Array
    done_spread: Array

    def standardized(self, episodes: Episode) -> Episode:
        """The episodes in these units."""
        flat = episodes.action.reshape(*episodes.action.shape[:2], -1)
        observation = (episodes.observation - self.seen_center[None, None]) / self.seen_spread[None, None]
        action = (flat - self.done_center[None, None]) / self.done_spread[None, None]
        return Episode(observation, action, episodes.reward, episodes.live, episodes.log_prob)


def units_of(log: EpisodeLog) -> Units:
    """Means and deviations of a log; what does not vary keeps its scale."""

    def pair(values: np.ndarray) -> tuple[Array, Array]:
        return jnp.asarray(values.mean(0, dtype=float), jnp.float32), jnp.asarray(spread_of(values), jnp.float32)

    return Units(*pair(np.asarray(log.observation)), *pair(np.asarray(log.action).reshape(log.num_steps, -1)))


def rewarded(mean: Array, covariance: Array, episodes: Episode) -> np.ndarray:
    """M of the reward zᵀ M z, z = (s, 1, a), by a regression on what is expected of z zᵀ given all of an episode."""
    n, live = mean.shape[-1], np.asarray(episodes.live)
    s, a = np.asarray(mean, float)[:, :-1], np.asarray(episodes.action, float)
    z = np.concatenate([s, np.ones((*s.shape[:2], 1)), a], -1)[live]
    square = z[:, :, None] * z[:, None, :]
    square[:, :n, :n] += np.asarray(covariance, float)[:, :-1][live]
    rows, columns = np.triu_indices(z.shape[1])
    x, y = square[:, rows, columns], np.asarray(episodes.reward, float)[live]
    weights = np.linalg.solve(x.T @ x + 1e-6 * len(x) * np.eye(x.shape[1]), x.T @ y)
    found = np.zeros((z.shape[1], z.shape[1]))
    found[rows, columns] = weights
    return found


def system_model(system: HiddenSystem, payoff: np.ndarray, units: Units, horizon: int) -> FittedSystem:
    """The system in the log's units, its state with a 1 at the end."""
    n, k = system.B.shape
    root = lambda matrix: np.linalg.cholesky(np.asarray(matrix, float) + 1e-9 * np.eye(len(matrix)))
    wide = lambda matrix: np.pad(matrix, ((0, 1), (0, 1)))
    spread, center = np.asarray(units.done_spread, float), np.asarray(units.done_center, float)
    B = np.asarray(system.B, float) / spread[None]
    A = wide(np.asarray(system.A, float))
    A[:n, n], A[n, n] = -B @ center, 1.0
    seen = np.asarray(units.seen_spread, float)[:, None]
    C = np.concatenate([seen * np.asarray(system.C, float), np.asarray(units.seen_center, float)[:, None]], 1)
    # z in standardized units is L z in the log's.
    L = np.eye(n + 1 + k)
    L[n + 1 :, n + 1 :] = np.diag(1 / spread)
    L[n + 1 :, n] = -center / spread
    arrays = {
        "A": A,
        "B": np.concatenate([B, np.zeros((1, k))]),
        "C": C,
        "initial_mean": np.append(np.asarray(system.mean, float), 1.0),
        "initial_scale": wide(root(system.covariance)),
        "transition_scale": wide(root(system.Q)),
        "observation_scale": seen * root(system.R),
        "payoff": L.T @ payoff @ L,
    }
    numbers: Any = {name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()}
    return FittedSystem(**numbers, horizon=horizon, action_mechanism=LocationScaleAction((k,)))


def template(states: int, sights: int, controls: int, horizon: int) -> FittedSystem:
    """A system of the right shapes."""
    n = states + 1
    shapes = {"A": (n, n), "B": (n, controls), "C": (sights, n), "initial_mean": (n,), "initial_scale": (n, n)}
    both = n + controls
    shapes |= {"transition_scale": (n, n), "observation_scale": (sights, sights), "payoff": (both, both)}
    numbers: Any = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    return FittedSystem(**numbers, horizon=horizon, action_mechanism=LocationScaleAction((controls,)))
