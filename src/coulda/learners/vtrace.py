"""V-trace (Espeholt et al., 2018, section 4.1): what a policy is worth, from episodes of a slightly older one.

With ρ_t = min(ρ̄, π/μ), c_t = λ min(c̄, π/μ) and δ_t = ρ_t (r_t + γ V_{t+1} - V_t), the target of the value at t is

    v_t = V_t + Σ_{s ≥ t} γ^{s-t} (Π_{t ≤ i < s} c_i) δ_s,

computed backwards as v_t - V_t = δ_t + γ c_t (v_{t+1} - V_{t+1}). The advantage of the action that was taken is
ρ_t (r_t + γ q_{t+1} - V_t) with q = λ v + (1 - λ) V, which is the paper's for λ = 1 and rlax's for any. On the policy's
own episodes, with γ = λ = 1, v_t is the return from t on.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class VTrace(eqx.Module):
    """Targets for one episode, `[T]` each; zero after its end."""

    target: Array
    """v_t, for the value."""
    advantage: Array
    """ρ_t (r_t + γ q_{t+1} - V_t), for the policy."""


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    live: Array,
    *,
    discount: float = 1.0,
    decay: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """V-trace targets and advantages of one episode.

    Episodes end with a terminal state or at the horizon, and nothing is earned after either: V = 0 there, and there is
    no bootstrap. (An episode that somebody cut off would need the value of its last observation.)

    Args:
        log_ratio: log π(a_t | h_t) - log μ(a_t | h_t), `[T]`.
        reward: `[T]`.
        value: V(h_t), `[T]`.
        live: `[T]`, False after the end; what the others hold there does not matter.
        discount: γ.
        decay: λ.
        clip_rho: ρ̄: which policy is valued, from μ (0) to π (∞).
        clip_c: c̄: how far corrections reach back.

    >>> vtrace(jnp.zeros(3), jnp.array([0.0, 1.0, 9.0]), jnp.zeros(3), jnp.array([True, True, False])).target.tolist()
    [1.0, 1.0, 0.0]
    """
    reward, value = jnp.where(live, reward, 0.0), jnp.where(live, value, 0.0)
    ratio = jnp.exp(jnp.where(live, log_ratio, 0.0))
    rho, c = jnp.minimum(ratio, clip_rho), decay * jnp.minimum(ratio, clip_c)
    error = rho * (reward + discount * _next(value) - value)

    def back(correction: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        error, c = step
        correction = error + discount * c * correction
        return correction, correction

    _, correction = jax.lax.scan(back, jnp.zeros(()), (error, c), reverse=True)
    following = _next(value + decay * correction)
    return VTrace(value + correction, rho * (reward + discount * following - value))


def _next(x: Array) -> Array:
    """x_{t+1}, `[T]`, with 0 after the last."""
    return jnp.append(x[1:], 0.0)
