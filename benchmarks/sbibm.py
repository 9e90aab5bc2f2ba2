"""Two tasks of the simulation-based inference benchmark (Lueckmann et al., 2021) as models of one step.

The unknown θ is the noise of the first state, and the data x the first observation; nothing can be done.
"""

import bz2
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Independent, NoiseDistribution, Normal, Uniform
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice

DATA = Path(__file__).parents[2] / "shared" / "data" / "sbibm"
OBSERVATIONS = range(1, 11)
PUBLISHED = {"two_moons": {10_000: 0.606, 100_000: 0.542}, "gaussian_linear": {10_000: 0.552, 100_000: 0.506}}
"""Mean C2ST of NPE in the benchmark, by the number of simulations."""


class OneStep(POMDP):
    """θ stays as it is, and is seen through noise."""

    horizon: int = eqx.field(static=True, default=1)
    action_mechanism: ActionMechanism = GumbelMaxChoice(1)

    @property
    def observation_space(self) -> gymnasium.Space:
        """The data."""
        return gymnasium.spaces.Box(-np.inf, np.inf, self.size, np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """There is nothing to do."""
        return gymnasium.spaces.Discrete(1)

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of the data."""
        raise NotImplementedError

    def initial(self, u: Array) -> Array:
        """θ."""
        return u

    def transition(self, state: Array, action: Array, u: Any) -> Array:  # noqa: ARG002
        """It stays."""
        return state

    def reward(self, state: Array, action: Array, next_state: Array) -> Array:  # noqa: ARG002
        """Nothing is paid."""
        return jnp.zeros(())


class TwoMoons(OneStep):
    """Two crescents: x = (r cos a + 1/4, r sin a) + (-|θ₁ + θ₂|, θ₂ - θ₁) / √2."""

    @property
    def size(self) -> tuple[int, ...]:
        """Two numbers."""
        return (2,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Uniform on the square."""
        return Uniform(-1.0, 1.0, (2,))

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Angle and radius."""
        return Independent({"angle": Uniform(-np.pi / 2, np.pi / 2), "radius": Normal(0.1, 0.01)})

    def observe(self, state: Array, u: Any) -> Array:
        """A point of the crescent."""
        crescent = u["radius"] * jnp.stack([jnp.cos(u["angle"]), jnp.sin(u["angle"])]) + jnp.array([0.25, 0.0])
        return crescent + jnp.stack([-jnp.abs(state[0] + state[1]), state[1] - state[0]]) / np.sqrt(2)


class GaussianLinear(OneStep):
    """θ ~ N(0, I / 10) in ten dimensions, x ~ N(θ, I / 10)."""

    @property
    def size(self) -> tuple[int, ...]:
        """Ten numbers."""
        return (10,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Of variance 1/10."""
        return Normal(0.0, np.sqrt(0.1), (10,))

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Of variance 1/10."""
        return Normal(0.0, np.sqrt(0.1), (10,))

    def observe(self, state: Array, u: Array) -> Array:
        """θ and noise."""
        return state + u


TASKS: dict[str, type[OneStep]] = {"two_moons": TwoMoons, "gaussian_linear": GaussianLinear}


def observed(task: str) -> np.ndarray:
    """The ten observations, `[10, d]`."""
    return np.concatenate([_read(task, number, "observation.csv") for number in OBSERVATIONS])


def reference(task: str) -> np.ndarray:
    """Their posteriors' draws, `[10, 10,000, d]`."""
    return np.stack([_read(task, number, "reference_posterior_samples.csv.bz2") for number in OBSERVATIONS])


def _read(task: str, number: int, name: str) -> np.ndarray:
    path = DATA / task / str(number) / name
    if path.suffix == ".bz2":
        with bz2.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
