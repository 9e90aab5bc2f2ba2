"""Layers with parameters, for one example: a convolution and a dense layer."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.networks.convolution import convolve_joined


class Convolution(eqx.Module):
    """`convolve` with a kernel and a bias: `[H, W, inputs]`, in parts or as one, -> `[H, W, outputs]`."""

    kernel: Array
    bias: Array

    def __init__(self, key: Array, inputs: int, outputs: int, kernel: int = 3):
        """Weights of variance 1 / (inputs · kernel²), so that the output is of the input's scale; no bias."""
        scale = (inputs * kernel**2) ** -0.5
        self.kernel = scale * _truncated_normal(key, (kernel, kernel, inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, *inputs: Array) -> Array:
        """The convolution of inputs that are joined along their channels, plus the bias."""
        y = convolve_joined(inputs, self.kernel)
        return y + jnp.broadcast_to(self.bias, y.shape)


class Dense(eqx.Module):
    """`[inputs]` -> `[outputs]`."""

    weight: Array
    bias: Array

    def __init__(self, key: Array, inputs: int, outputs: int, scale: float = 1.0):
        """Weights of variance scale² / inputs; no bias. A small scale makes a softmax start near uniform."""
        self.weight = scale * inputs**-0.5 * _truncated_normal(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Array) -> Array:
        """The product, plus the bias."""
        return x @ self.weight + self.bias


def _truncated_normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Within two standard deviations; drawn as one row, which XLA:CPU compiles ten times faster than a grid."""
    return jax.random.truncated_normal(key, -2.0, 2.0, (math.prod(shape),)).reshape(shape)
