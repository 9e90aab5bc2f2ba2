"""A pendulum that is to be swung up and held: a small nonlinear world with a quadratic reward."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from coulda.pomdp.observed import AdditiveNoisePOMDP


class Pendulum(AdditiveNoisePOMDP):
    """A pendulum with friction, driven at its hinge: s = (angle, angular velocity), the angle being 0 upright.

    θ'' = gravity · sin θ - friction · θ' + a, in semi-implicit Euler steps of `time_step`. It begins hanging, at about
    `start`; the reward is -(θ² + 0.1 θ'² + 0.01 a²) · time_step, of an angle that is not wrapped.

    Args:
        horizon: T.
        gravity: over length.
        friction: over mass and length².
        noise: standard deviation of the angular velocity's noise, a step.
        start: the mean first angle.
        spread: standard deviation of the first angle; that of the first angular velocity is half of it.
        time_step: in seconds.
    """

    initial_mean: Array
    initial_scale: Array
    transition_scale: Array
    gravity: Array
    friction: Array
    time_step: Array
    horizon: int = eqx.field(static=True)
    num_controls: int = eqx.field(static=True, default=1)

    def __init__(
        self,
        *,
        horizon: int = 30,
        gravity: float = 6.0,
        friction: float = 0.3,
        noise: float = 0.05,
        start: float = jnp.pi,
        spread: float = 0.3,
        time_step: float = 0.1,
    ):
        self.initial_mean, self.initial_scale = jnp.array([start, 0.0]), jnp.array([spread, spread / 2])
        # The angle follows from the velocity; it has a little noise of its own, so that every noise has a density.
        self.transition_scale = jnp.array([0.1 * time_step * noise, noise])
        self.gravity, self.friction, self.time_step = (jnp.asarray(x, float) for x in (gravity, friction, time_step))
        self.horizon, self.num_controls = horizon, 1

    def predict(self, state: Array, action: Array) -> Array:
        """One Euler step."""
        angle, velocity = state
        acceleration = self.gravity * jnp.sin(angle) - self.friction * velocity + action[0]
        velocity = velocity + self.time_step * acceleration
        return jnp.stack([angle + self.time_step * velocity, velocity])

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """Quadratic in state and action."""
        return -self.time_step * (state[0] ** 2 + 0.1 * state[1] ** 2 + 0.01 * action[0] ** 2)
