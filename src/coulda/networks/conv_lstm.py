"""Convolutional LSTMs (Shi et al., 2015): the memory of the policies and the reader of histories."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from coulda.networks.layers import Convolution

Carry = tuple[tuple[Array, Array], ...]
"""(cell, hidden) of each layer, `[H, W, channels]` each."""


class ConvLSTM(eqx.Module):
    """A stack of conv-LSTM layers that ticks several times for each input.

    The first layer sees the input and every other the hidden state of the layer below, each along with its own:
    i, f, o, g = convolution([input, hidden]); cell' = σ(f) cell + σ(i) tanh(g); hidden' = σ(o) tanh(cell').
    The paper's policy has 3 layers of 32 channels, kernel size 3, and 2 ticks per step.
    """

    layers: tuple[Convolution, ...]
    channels: int = eqx.field(static=True)
    ticks: int = eqx.field(static=True)

    def __init__(
        self, key: Array, inputs: int, *, layers: int = 1, channels: int = 32, kernel: int = 3, ticks: int = 1
    ):
        sizes = [inputs + channels] + [2 * channels] * (layers - 1)
        keys = jax.random.split(key, layers)
        make = lambda key, size: _with_open_forget_gates(Convolution(key, size, 4 * channels, kernel))
        self.layers = tuple(make(key, size) for key, size in zip(keys, sizes, strict=True))
        self.channels, self.ticks = channels, ticks

    def initial_carry(self, height: int, width: int) -> Carry:
        """Zeros, `[height, width, channels]` each."""
        zeros = jnp.zeros((height, width, self.channels))
        return tuple((zeros, zeros) for _ in self.layers)

    def __call__(self, carry: Carry, x: Array) -> tuple[Carry, Array]:
        """All ticks on one input `x [H, W, inputs]`; returns the carry and the top hidden state."""
        hidden = x
        for _ in range(self.ticks):
            hidden, cells = x, []
            for layer, (cell, own) in zip(self.layers, carry, strict=True):
                cell, hidden = _gates(layer(hidden, own), cell)
                cells.append((cell, hidden))
            carry = tuple(cells)
        return carry, hidden


def _with_open_forget_gates(convolution: Convolution) -> Convolution:
    """Forget gates start at σ(1): a network that forgets at once learns to remember slowly (Jozefowicz, 2015)."""
    channels = convolution.bias.shape[0] // 4
    return eqx.tree_at(lambda layer: layer.bias, convolution, convolution.bias.at[channels : 2 * channels].set(1.0))


@jax.custom_vjp
def _gates(z: Array, cell: Array) -> tuple[Array, Array]:
    """(cell', hidden') from the four gates before their activations, `z [..., 4 channels]`."""
    return _gates_forward(z, cell)[0]


# One tanh over all four gates, kept for a backward pass by hand: XLA:CPU fuses what autodiff writes into loops that
# compute each tanh several times. A barrier keeps what was computed once from being fused away.
def _gates_forward(z: Array, cell: Array):
    scale, offset = _activation(z.shape)
    gates = lax.optimization_barrier(scale * jnp.tanh(scale * z) + offset)
    i, f, o, g = jnp.split(gates, 4, -1)
    new_cell = f * cell + i * g
    squashed = lax.optimization_barrier(jnp.tanh(new_cell))
    return (new_cell, o * squashed), (gates, cell, squashed)


def _gates_backward(residuals, ct):
    gates, cell, squashed = residuals
    ct_cell, ct_hidden = ct
    i, f, o, g = jnp.split(gates, 4, -1)
    ct_cell = ct_cell + ct_hidden * o * (1 - squashed * squashed)
    ct_i, ct_f = ct_cell * g * i * (1 - i), ct_cell * cell * f * (1 - f)
    ct_o, ct_g = ct_hidden * squashed * o * (1 - o), ct_cell * i * (1 - g * g)
    return lax.optimization_barrier(jnp.concatenate([ct_i, ct_f, ct_o, ct_g], -1)), ct_cell * f


_gates.defvjp(_gates_forward, _gates_backward)


def _activation(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """(s, b) with s tanh(s z) + b equal to σ(z) = ½ + ½ tanh(z / 2) for three gates, and to tanh(z) for the last."""
    channels = shape[-1] // 4
    spread = lambda sigmoid, tanh: jnp.broadcast_to(
        jnp.asarray(np.repeat([sigmoid, sigmoid, sigmoid, tanh], channels), jnp.float32), shape
    )
    return spread(0.5, 1.0), spread(0.5, 0.0)
