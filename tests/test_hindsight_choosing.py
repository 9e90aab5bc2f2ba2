"""Which source is chosen for a model; and published posteriors, which those that are chosen must meet."""

import json
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import Inventory
from coulda.errors import CouldaError
from coulda.hindsight import Exact, Nuts, ObservedStates, Particles, Tempered, choose
from coulda.hindsight.choosing import _tried
from coulda.noise import Normal
from coulda.policies import AnyAction
from coulda.pomdp import rollout
from tests.inferring import Squared, draws, seen, states
from tests.zoo_pomdps import Plain, linear

KEY = jax.random.key(0)
DATA = Path(__file__).parents[2] / "shared" / "data" / "state_space"


class Drift(Plain):
    """Its state is seen as it is, and moves by noise."""

    @property
    def observation_noise(self):
        return super(Plain, self).observation_noise

    def observe(self, state, u):
        return state


def test_seen_states_are_solved_for_their_noise():
    source, why = choose(Drift())
    assert isinstance(source, ObservedStates)
    assert "exact: no exact posterior is known for Drift" in why
    scenario = source.infer(KEY, seen([1.0, 1.5, 1.0, 0.0, 0.0, 2.0]))
    assert jnp.allclose(scenario.transition, jnp.asarray([0.5, -0.5, -1.0, 0.0, 2.0]))
    assert isinstance(choose(linear(hidden=True)).source, Exact)
    with pytest.raises(CouldaError, match=r"(?s)no source infers the scenarios of Squared.*observation_log_prob"):
        choose(Squared())


class Drawn(Plain):
    """As it is, with something hidden."""


class Biased(Particles):
    """Draws whose first noise is off by a deviation of the prior."""

    def paths(self, key, seen, count):
        path, inference = super().paths(key, seen, count)
        return eqx.tree_at(lambda p: p.initial, path, [path.initial[0] + 1.0]), inference


@pytest.mark.slow
def test_a_pilot_decides_by_ranks():
    source, why = choose(Drawn())
    assert isinstance(source, Particles)
    assert "particles (1,000), since exact: no exact posterior is known for Drawn" in why
    reason = _tried("particles", Biased(Drawn(), particles=1000, moves=2)).reason
    assert re.match("in simulated episodes the ranks of .* are uneven", reason)


@pytest.mark.slow
def test_more_particles_are_tried_before_tempering():
    source, why = choose(Inventory(count_error=1.0))
    assert isinstance(source, Particles)
    assert source.particles == 4000
    assert "of 1,000 first noises survive" in why


class Fixed(Plain):
    """Three numbers that stay unknown: a exp(-t e^b / 30) + c, with 100 observations."""

    horizon: int = eqx.field(static=True, default=99)
    scale: float = 0.1

    @property
    def initial_noise(self):
        return Normal(shape=(3,))

    @property
    def transition_noise(self):
        return super(Plain, self).transition_noise

    def initial(self, u):
        return {"unknown": u, "time": jnp.float32(0)}

    def transition(self, state, action, u):
        return {"unknown": state["unknown"], "time": state["time"] + 1}

    def observe(self, state, u):
        a, b, c = state["unknown"]
        return a * jnp.exp(-jnp.exp(b) * state["time"] / 30) + c + u


@pytest.mark.slow
def test_static_unknowns_are_tempered():
    """Particles leave a handful of first noises there, and say so; tempering and gradients agree."""
    source, why = choose(Fixed())
    assert isinstance(source, Tempered)
    assert "first noises survive" in why
    model = Fixed()
    episode = rollout(model, AnyAction.of(model), model.scenario_prior.sample(jax.random.key(5))).episode
    drawn, _ = draws(Nuts(model, draws=1000), KEY, episode, 4000)
    mean, spread = np.asarray(drawn.initial).mean(0), np.asarray(drawn.initial).std(0)
    found = np.mean(
        [np.asarray(draws(source, jax.random.key(i), episode, 500)[0].initial).mean(0) for i in range(8)], 0
    )
    assert (np.abs(found - mean) < 0.15 * spread).all()
    _, poor = draws(Particles(model), KEY, episode, 1)
    assert poor.effective < 30


# Published posteriors of state-space models.


class Lorenz(Plain):
    horizon: int = eqx.field(static=True, default=29)
    scale: float = 1.0
    step: float = 0.02
    innovation: float = 0.1

    @property
    def initial_noise(self):
        return Normal(shape=(3,))

    @property
    def transition_noise(self):
        return Normal(shape=(3,))

    def transition(self, state, action, u):
        x, y, z = state
        flow = jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
        return state + self.step * flow + jnp.sqrt(self.step) * self.innovation * u

    def observe(self, state, u):
        return state[0] + u


class Brownian(Plain):
    horizon: int = eqx.field(static=True, default=29)
    innovation: float = 0.1

    def initial(self, u):
        return self.innovation * u

    def transition(self, state, action, u):
        return state + self.innovation * u


def bridge(name):
    path = DATA / f"{name}_bridge.json"
    if not path.exists():
        pytest.skip("the published posteriors of state-space models are not here")
    found = json.loads(path.read_text())
    given, posterior = found["data"], found["posterior"]
    if name == "brownian":
        model = Brownian(scale=given["observation_noise"], innovation=given["innovation_noise"])
        values = [np.nan if v is None else v for v in given["observed_loc"]]
    else:
        model = Lorenz(scale=given["observation_scale"], step=given["step_size"], innovation=given["innovation_scale"])
        values = np.where(given["observation_mask"], np.array(given["observed_values"], float), np.nan)
    return model, seen(values), *(np.array(posterior[f"identity_{k}"]) for k in ("mean", "standard_deviation"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "evidence"), [("brownian", 5.613043), ("lorenz", -29.21)])
def test_published_posteriors_are_met(name, evidence):
    """Log evidence within 3 standard errors and .05; smoothed means within twice the floor of independent draws."""
    model, episode, mean, deviation = bridge(name)
    source, errors, found = Tempered(model), [], []
    for seed in range(16):
        drawn, inference = draws(source, jax.random.key(seed), episode, 500)
        path = np.asarray(states(source, drawn, episode)).mean(0).reshape(mean.shape)
        errors.append(np.mean(((path - mean) / deviation) ** 2) ** 0.5)
        found.append(float(inference.log_evidence))
    assert np.median(errors) < 2 / 500**0.5
    assert abs(np.mean(found) - evidence) < max(3 * np.std(found, ddof=1) / 4, 0.05)
