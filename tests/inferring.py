"""Draws of samplers, compiled once for all tests that ask for them."""

import equinox as eqx
import jax
import jax.numpy as jnp

from coulda.pomdp import Episode
from tests.zoo_pomdps import Plain


def seen(observations):
    steps = len(observations) - 1
    return Episode(
        jnp.asarray(observations, jnp.float32),
        jnp.zeros(steps, jnp.int32),
        jnp.zeros(steps),
        jnp.ones(steps, bool),
        jnp.zeros(steps),
    )


@eqx.filter_jit
def draws(source, key, episode, count):
    return source.infer_many(key, episode, count)


@eqx.filter_jit
def states(source, scenarios, episode):
    """`[n, T + 1, ...]`, under the logged actions."""
    return jax.vmap(lambda u: source._states(u.initial, u.transition, episode))(scenarios)


class Squared(Plain):
    """Has no density that could be derived."""

    def observe(self, state, u):
        return state + u**2
