"""A gated recurrent unit (Cho et al., 2014), for one example."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.networks.layers import Dense


class GRU(eqx.Module):
    """`[inputs]` at each step, `[width]` remembered.

    What does not depend on the memory is `prepared` for all steps at once: one product of matrices in the place of T.
    """

    arriving: Dense
    remembered: Dense

    def __init__(self, key: Array, inputs: int, width: int):
        key_arriving, key_remembered = jax.random.split(key)
        self.arriving, self.remembered = Dense(key_arriving, inputs, 3 * width), Dense(key_remembered, width, 3 * width)

    @property
    def width(self) -> int:
        """Of the memory."""
        return self.remembered.weight.shape[0]

    def prepared(self, inputs: Array) -> Array:
        """Of inputs `[..., inputs]`, what a step needs of them, `[..., 3 width]`."""
        return inputs @ self.arriving.weight + jnp.broadcast_to(
            self.arriving.bias, (*inputs.shape[:-1], 3 * self.width)
        )

    def __call__(self, memory: Array, prepared: Array) -> Array:
        """The memory `[width]` after a step."""
        reset_a, update_a, candidate_a = jnp.split(prepared, 3)
        reset_r, update_r, candidate_r = jnp.split(self.remembered(memory), 3)
        update = jax.nn.sigmoid(update_a + update_r)
        candidate = jnp.tanh(candidate_a + jax.nn.sigmoid(reset_a + reset_r) * candidate_r)
        return update * memory + (1 - update) * candidate
