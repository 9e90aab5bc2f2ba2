"""Tasks of the simulation-based inference benchmark (Lueckmann et al., 2021) as models of one step.

The unknown θ is the first state, a function of its noise, and the data x the first observation; nothing can be done.
Observations and draws of reference posteriors are read from `../shared/data/sbibm/TASK/NUMBER`, or from
`.cache/sbibm/TASK/NUMBER`, where this puts those that the benchmark's own package has:

    python -m benchmarks.sbibm
"""

import bz2
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Bernoulli, Independent, NoiseDistribution, Normal, Uniform
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "sbibm"
DATA = ROOT.parent / "shared" / "data" / "sbibm", CACHE
PACKAGE, PLACE = "sbibm==1.1.0", re.compile(r"sbibm/tasks/(?P<task>\w+)/files/num_observation_(\d+)/(.+)")
OBSERVATIONS = range(1, 11)
PUBLISHED = {
    "two_moons": {1_000: 0.725, 10_000: 0.606, 100_000: 0.542},
    "gaussian_linear": {1_000: 0.694, 10_000: 0.552, 100_000: 0.506},
    "gaussian_linear_uniform": {1_000: 0.696, 10_000: 0.553, 100_000: 0.509},
    "gaussian_mixture": {1_000: 0.716, 10_000: 0.615, 100_000: 0.548},
    "slcp": {1_000: 0.975, 10_000: 0.901, 100_000: 0.832},
    "sir": {1_000: 0.815, 10_000: 0.680, 100_000: 0.585},
    "lotka_volterra": {1_000: 0.999, 10_000: 0.997, 100_000: 0.981},
}
"""Mean C2ST of NPE in the benchmark, by the number of simulations; of the mixture since it was mended (sbibm 1.1.0)."""


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


class GaussianLinearUniform(GaussianLinear):
    """The same with θ uniform between -1 and 1."""

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Uniform on the cube."""
        return Uniform(-1.0, 1.0, (10,))


class GaussianMixture(OneStep):
    """θ uniform on a square of side 20; x ~ N(θ, I) or N(θ, I / 100), as a coin says."""

    @property
    def size(self) -> tuple[int, ...]:
        """Two numbers."""
        return (2,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Uniform on the square."""
        return Uniform(-10.0, 10.0, (2,))

    @property
    def observation_noise(self) -> NoiseDistribution:
        """The coin, and the error."""
        return Independent({"wide": Bernoulli(0.5), "error": Normal(0.0, 1.0, (2,))})

    def observe(self, state: Array, u: Any) -> Array:
        """θ and noise."""
        return state + jnp.where(u["wide"], 1.0, 0.1) * u["error"]


class SLCP(OneStep):
    """Simple likelihood, complex posterior: four points of N(m, S); θ says mean, deviations and correlation."""

    @property
    def size(self) -> tuple[int, ...]:
        """Four points of the plane."""
        return (8,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Uniform on the cube."""
        return Uniform(-3.0, 3.0, (5,))

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Of four points."""
        return Normal(0.0, 1.0, (4, 2))

    def observe(self, state: Array, u: Array) -> Array:
        """The points, one after the other."""
        one, two, correlation = state[2] ** 2, state[3] ** 2, jnp.tanh(state[4])
        first = one * u[:, 0]
        second = two * (correlation * u[:, 0] + jnp.sqrt(1 - correlation**2) * u[:, 1])
        return (state[:2] + jnp.stack([first, second], 1)).ravel()


class SIR(OneStep):
    """An epidemic in a million people, of unknown contact and recovery rates: ten tests of 1,000 people each."""

    @property
    def size(self) -> tuple[int, ...]:
        """One number for each test, seventeen days apart."""
        return (10,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Logarithms of the rates."""
        return Normal(jnp.log(jnp.array([0.4, 0.125])), jnp.array([0.5, 0.2]), (2,))

    def initial(self, u: Array) -> Array:
        """The rates."""
        return jnp.exp(u)

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Of each person tested."""
        return Uniform(0.0, 1.0, (10, 1000))

    def observe(self, state: Array, u: Array) -> Array:
        """How many of the tested are infected."""
        contact, recovery = state

        def flow(y: Array) -> Array:
            new = contact * y[0] * y[1]
            return jnp.stack([-new, new - recovery * y[1]])

        path = _solved(flow, jnp.array([1 - 1e-6, 1e-6]), 0.1, 1531)[::170, 1]
        return jnp.sum(u < path[:, None], 1).astype(jnp.float32)


class LotkaVolterra(OneStep):
    """Prey and predators, of unknown rates, counted at ten times with an error of a tenth."""

    @property
    def size(self) -> tuple[int, ...]:
        """Prey at ten times, then predators."""
        return (20,)

    @property
    def initial_noise(self) -> NoiseDistribution:
        """Logarithms of the rates."""
        return Normal(jnp.array([-0.125, -3.0, -0.125, -3.0]), 0.5, (4,))

    def initial(self, u: Array) -> Array:
        """The rates."""
        return jnp.exp(u)

    @property
    def observation_noise(self) -> NoiseDistribution:
        """Of the logarithms of what is counted."""
        return Normal(0.0, 0.1, (2, 10))

    def observe(self, state: Array, u: Array) -> Array:
        """What is counted."""

        def flow(y: Array) -> Array:
            prey, predators = jnp.exp(y)
            return jnp.stack([state[0] - state[1] * predators, state[3] * prey - state[2]])

        path = _solved(flow, jnp.log(jnp.array([30.0, 1.0])), 0.01, 1891)[::210]
        return jnp.exp(jnp.clip(path.T, np.log(1e-10), np.log(1e4)) + u).ravel()


def _solved(flow: Callable[[Array], Array], start: Array, step: float, count: int) -> Array:
    """The path of dy = flow(y) dt by Runge and Kutta's method of fourth order, `[count, d]`."""

    def onward(y: Array, _: None) -> tuple[Array, Array]:
        one = flow(y)
        two = flow(y + step / 2 * one)
        three = flow(y + step / 2 * two)
        four = flow(y + step * three)
        return y + step / 6 * (one + 2 * two + 2 * three + four), y

    return jax.lax.scan(onward, start, None, count)[1]


TASKS: dict[str, type[OneStep]] = {
    "two_moons": TwoMoons,
    "gaussian_linear": GaussianLinear,
    "gaussian_linear_uniform": GaussianLinearUniform,
    "gaussian_mixture": GaussianMixture,
    "slcp": SLCP,
    "sir": SIR,
    "lotka_volterra": LotkaVolterra,
}


def has_data(task: str) -> bool:
    """Whether its observations and references are here."""
    return any((folder / task).is_dir() for folder in DATA)


def observed(task: str) -> np.ndarray:
    """The ten observations, `[10, d]`."""
    return np.concatenate([_read(task, number, "observation.csv") for number in OBSERVATIONS])


def reference(task: str) -> np.ndarray:
    """Their posteriors' draws, `[10, 10,000, d]`."""
    return np.stack([_read(task, number, "reference_posterior_samples.csv.bz2") for number in OBSERVATIONS])


def _read(task: str, number: int, name: str) -> np.ndarray:
    path = next((folder / task / str(number) / name for folder in DATA if (folder / task).is_dir()), None)
    if path is None:
        raise FileNotFoundError(f"no data of {task}; `python -m benchmarks.sbibm` brings them")
    if path.suffix == ".bz2":
        with bz2.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",", skiprows=1, ndmin=2)
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


def bring() -> None:
    """Take observations and references of all tasks out of the benchmark's package, which itself is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(asked, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as package:
            for name in package.namelist():
                if (found := PLACE.fullmatch(name)) and found["task"] in TASKS:
                    place = CACHE.joinpath(*found.groups())
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(package.read(name))


if __name__ == "__main__":
    bring()
