"""Guided Policy Search as a special case (section 5, Observations 1 and 2).

S_{t+1} is linear in (S_t, A_t, 1) and its coefficients are the noise U_st, independent over time, with a prior that is
a mixture of Gaussians. States are seen, so the coefficients are inferred from pairs of them; given these the model is
a linear-quadratic regulator, and the planner is its optimal feedback. With this model and planner `PolicySearch` is
GPS when its scenarios come from `ObservedStates(model)`, and its MB-PS when they come from `Prior(model)`.
"""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import solve_triangular

from coulda.errors import CouldaError
from coulda.mechanisms import category_at
from coulda.noise import Independent, Normal, Uniform
from coulda.planners.mixture import PlanningProblem
from coulda.planners.time_varying_lqr import AffinePlanner, time_varying_lqr
from coulda.pomdp import ActionMechanism, LocationScaleAction
from coulda.pomdp.observed import ObservedPOMDP

INSIDE = 1e-4
"""How far from the ends of its interval a uniform number is kept, relative to it: float32 has room for it."""


class CoefficientPrior(eqx.Module):
    """A mixture of C matrix-normal distributions of coefficients W `[n, d]`, d = n + k + 1.

    W = M_c + L_c Z diag(v) with standard normal Z: rows have covariance L_c L_cᵀ, columns v².
    """

    log_weights: Array
    """`[C]`."""
    mean: Array
    """M, `[C, n, d]`."""
    scale: Array
    """L, lower triangular, `[C, n, n]`."""
    columns: Array
    """v, `[d]`: how uncertain the coefficients of (s, a, 1) are, relative to each other."""


class CoefficientNoisePOMDP(ObservedPOMDP):
    """s_{t+1} = W_t (s_t, a_t, 1), its coefficients W_t being noise, with reward -(sᵀQs + aᵀRa).

    U_st is a uniform number that chooses the component of the prior (inverse-CDF), and the matrix Z.
    """

    prior: CoefficientPrior
    Q: Array
    R: Array
    initial_mean: Array
    initial_scale: Array
    """`[n]`, elementwise."""
    horizon: int = eqx.field(static=True)
    action_mechanism: ActionMechanism

    def __init__(self, prior: CoefficientPrior, *, Q: Any, R: Any, initial_mean: Any, initial_scale: Any, horizon: int):
        self.Q, self.R = jnp.asarray(Q, float), jnp.asarray(R, float)
        self.initial_mean, self.initial_scale = jnp.asarray(initial_mean, float), jnp.asarray(initial_scale, float)
        n, k = self.Q.shape[0], self.R.shape[0]
        if prior.mean.shape[1:] != (n, n + k + 1):
            raise CouldaError(
                f"with {n} states and {k} controls, means are [C, {n}, {n + k + 1}]; got {prior.mean.shape}."
            )
        self.prior, self.horizon, self.action_mechanism = prior, horizon, LocationScaleAction((k,))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^n."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self.initial_mean.shape, np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """R^k."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self.R.shape[:1], np.float32)

    @property
    def initial_noise(self) -> Normal:
        """Standard normal `[n]`."""
        return Normal(shape=self.initial_mean.shape)

    @property
    def transition_noise(self) -> Independent:
        """Which component, and where in it."""
        return Independent({"component": Uniform(), "normal": Normal(shape=self.prior.mean.shape[1:])})

    def initial(self, u: Array) -> Array:
        """The first state."""
        return self.initial_mean + self.initial_scale * u

    def initial_posterior(self, state: Array, fresh: Array) -> Array:  # noqa: ARG002
        """The standardized residual."""
        return (state - self.initial_mean) / self.initial_scale

    def coefficients(self, u: dict[str, Array]) -> Array:
        """W, `[n, d]`."""
        component = category_at(jax.nn.softmax(self.prior.log_weights), u["component"])
        return self._at(component, u["normal"])

    def transition(self, state: Array, action: Array, u: dict[str, Array]) -> Array:
        """W (s, a, 1)."""
        return self.coefficients(u) @ _inputs(state, action)

    def transition_posterior(self, state: Array, action: Array, next_state: Array, fresh: Any) -> dict[str, Array]:
        """A draw of p(W | s, a, s'): the component by its evidence, then Z by Matheron's rule.

        Given the component, W x = s' is a linear condition, and W = W⁺ + (s' - W⁺x) xᵀV / xᵀVx with V = diag(v²).
        """
        x, prior = _inputs(state, action), self.prior
        spread = prior.columns**2 * x
        weights = jax.nn.softmax(prior.log_weights)
        evidence = jax.nn.softmax(prior.log_weights + self._log_evidence(x, jnp.sqrt(x @ spread), next_state))
        component = category_at(evidence, fresh["component"])
        drawn = self._at(component, fresh["normal"])
        correction = jnp.outer(next_state - drawn @ x, spread / (x @ spread))
        normal = solve_triangular(prior.scale[component], correction / prior.columns[None, :], lower=True)
        # The place of the uniform within the component's interval of the posterior becomes that of the prior.
        before, after = (jnp.cumsum(p)[component] - p[component] for p in (evidence, weights))
        place = (fresh["component"] - before) / evidence[component]
        # A little inside of it, so that rounding does not choose its neighbor; squeezed and not clipped, so that no
        # two draws become one.
        place = INSIDE + (1 - 2 * INSIDE) * jnp.clip(place, 0.0, 1.0)
        return {"component": after + place * weights[component], "normal": fresh["normal"] + normal}

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """-(sᵀQs + aᵀRa)."""
        return -(state @ self.Q @ state + action @ self.R @ action)

    def _at(self, component: Array, normal: Array) -> Array:
        prior = self.prior
        return prior.mean[component] + prior.scale[component] @ normal * prior.columns[None, :]

    def _log_evidence(self, x: Array, spread: Array, next_state: Array) -> Array:
        """Log p(s' | s, a, component), `[C]`: Gaussian with mean M x and square root L · spread."""

        def one(mean: Array, scale: Array) -> Array:
            whitened = solve_triangular(scale * spread, next_state - mean @ x, lower=True)
            return -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(scale) * spread))

        return jax.vmap(one)(self.prior.mean, self.prior.scale)


class RegulatorPlanner(eqx.Module):
    """λ of GPS: the optimal linear feedback for the coefficients of each scenario, by dynamic programming.

    Args:
        model: the linear SCM.
        scale: standard deviation of the planner's actions.
    """

    model: CoefficientNoisePOMDP
    scale: Array = eqx.field(converter=lambda value: jnp.asarray(value, float))

    def __call__(self, problem: PlanningProblem) -> AffinePlanner:
        """The regulator of the problem's scenario, whatever the policy."""
        W = jax.vmap(self.model.coefficients)(problem.scenario.transition)
        n = self.model.Q.shape[0]
        A, B, c = W[..., :n], W[..., n:-1], W[..., -1]
        return time_varying_lqr(A, B, c, self.model.Q, self.model.R, scale=self.scale)


def fit_coefficients(
    state: Any, action: Any, next_state: Any, *, num_components: int, columns: Any, iterations: int = 50
) -> CoefficientPrior:
    """The prior that makes logged transitions likely: expectation maximization for a mixture of linear regressions.

    Args:
        state: `[N, n]`.
        action: `[N, k]`.
        next_state: `[N, n]`.
        num_components: C. They begin as slices of equal size along the first coordinate of the state.
        columns: v, `[n + k + 1]`, kept as given.
        iterations: how many iterations of expectation maximization.
    """
    x = np.concatenate([np.asarray(state), np.asarray(action), np.ones((len(state), 1))], axis=1)
    y, columns = np.asarray(next_state, float), np.asarray(columns, float)
    spread = x**2 @ columns**2
    rank = np.argsort(np.argsort(x[:, 0]))
    share = np.eye(num_components)[rank * num_components // len(x)]
    weights, mean, scale = _maximize(x, y, spread, share)
    for _ in range(iterations):
        share = _expect(x, y, spread, weights, mean, scale)
        weights, mean, scale = _maximize(x, y, spread, share)
    return CoefficientPrior(*(jnp.asarray(a, float) for a in (np.log(weights), mean, scale, columns)))


def _maximize(x: np.ndarray, y: np.ndarray, spread: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mixture weights, and each component's weighted regression and residual scale."""
    means, scales = [], []
    for part in share.T:
        weighted = x * (part / spread)[:, None]
        mean = np.linalg.solve(x.T @ weighted + 1e-6 * np.eye(x.shape[1]), weighted.T @ y).T
        residual = (y - x @ mean.T) * np.sqrt(part / spread)[:, None]
        # A floor for components that fit exactly, relative to the size of what is predicted.
        covariance = residual.T @ residual / part.sum() + 1e-8 * np.eye(y.shape[1])
        means.append(mean)
        scales.append(np.linalg.cholesky(covariance))
    return share.mean(0), np.stack(means), np.stack(scales)


def _expect(
    x: np.ndarray, y: np.ndarray, spread: np.ndarray, weights: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Responsibilities `[N, C]`, with a little for everyone so that no component dies."""
    log_share = []
    for weight, M, L in zip(weights, mean, scale, strict=True):
        whitened = np.linalg.solve(L, (y - x @ M.T).T) / np.sqrt(spread)
        log_share.append(np.log(weight) - 0.5 * (whitened**2).sum(0) - np.log(np.diagonal(L)).sum())
    share = np.exp(np.stack(log_share, 1) - np.max(log_share, 0)[:, None]) + 1e-6
    return share / share.sum(1, keepdims=True)


def _inputs(state: Array, action: Array) -> Array:
    return jnp.concatenate([state, action, jnp.ones(1)])
