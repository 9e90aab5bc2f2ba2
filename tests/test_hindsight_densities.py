"""Densities of observations that nobody wrote: derived from the model, or asked for by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from coulda.errors import CouldaError
from coulda.hindsight import Particles
from coulda.noise import Independent, Normal
from coulda.pomdp.observing import no_density
from tests.inferring import Squared
from tests.zoo_pomdps import Plain


class Dense(Plain):
    """Two numbers through a dense matrix that depends on the state."""

    @property
    def observation_noise(self):
        return Independent({"a": Normal(0.3, 0.5), "b": Normal(0.0, 2.0, (2,))})

    def observe(self, state, u):
        return jnp.stack([state + u["a"] + u["b"][0], 2 * state - u["a"] + (1 + state**2) * u["b"][1]])


def test_the_density_of_affine_observations_is_derived():
    """Against SciPy, for a number and for two of which one may be missing."""
    assert jnp.allclose(Plain().observation_log_prob(1.2, 0.7), stats.norm.logpdf(1.2, 0.7, 0.5), atol=1e-5)
    model, state, seen = Dense(), jnp.float32(0.7), np.array([1.0, -2.0])
    matrix = np.array([[1.0, 1.0, 0.0], [-1.0, 0.0, 1.49]])
    mean = np.array([0.7, 1.4]) + matrix @ [0.3, 0, 0]
    spread = matrix @ np.diag([0.25, 4, 4]) @ matrix.T
    whole = model.observation_log_prob(jnp.asarray(seen, jnp.float32), state)
    assert np.isclose(whole, stats.multivariate_normal.logpdf(seen, mean, spread), atol=1e-4)
    second = model.observation_log_prob(jnp.asarray([np.nan, -2.0], jnp.float32), state)
    assert np.isclose(second, stats.norm.logpdf(-2.0, mean[1], spread[1, 1] ** 0.5), atol=1e-4)
    nothing = model.observation_log_prob(jnp.full(2, jnp.nan), state)
    assert np.isclose(nothing, 0.0, atol=1e-6)


def test_derived_noise_gives_the_observation_back():
    """And keeps the prior where a number is missing."""
    model, state, fresh = Dense(), jnp.float32(0.7), {"a": jnp.float32(0.1), "b": jnp.asarray([0.5, -1.0])}
    seen = jnp.asarray([1.0, -2.0])
    assert jnp.allclose(model.observe(state, model.observation_posterior(state, seen, fresh)), seen, atol=1e-4)
    missing = model.observation_posterior(state, jnp.full(2, jnp.nan), fresh)
    assert jax.tree.all(jax.tree.map(jnp.allclose, missing, fresh))


class Silent(Plain):
    def observe(self, state, u):
        return state

    @property
    def observation_noise(self):
        return super(Plain, self).observation_noise


def test_what_has_no_density_is_asked_for_it_by_name():
    for model in (Squared(), Silent()):
        assert "def observation_log_prob(self, observation, state)" in str(no_density(model))
        with pytest.raises(CouldaError, match=f"(?s){type(model).__name__}.*observation_log_prob"):
            Particles(model)
    with pytest.raises(CouldaError, match="particles is 0"):
        Particles(Plain(), particles=0)
    with pytest.raises(CouldaError, match=r"particles is 10,000,000,000.*or fewer"):
        Particles(Plain(), particles=10**10)
    with pytest.raises(CouldaError, match="reward_scale is -1"):
        Particles(Plain(), reward_scale=-1)
