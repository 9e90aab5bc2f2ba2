"""A "same" convolution whose gradient is fast on XLA:CPU, under `vmap`, `scan` and `grad` in any order.

XLA:CPU falls back to a naive loop for the convolutions that JAX's own gradient asks for (20–30 times too slow).
Both gradients can be had otherwise. A `custom_vjp` that does so would be enough for code written in batches, but
not for ours: `vmap` of it computes a kernel gradient for each example and sums them after. So the convolution
is a primitive of its own, bilinear in (x, kernel), whose leading axes are free: `vmap` only adds one, and the
kernel gradient is one contraction over all of them. Its transposes are primitives too, and theirs are these again,

    <ct, convolve(x, kernel)> = <input_gradient(ct, kernel), x> = <kernel_gradient(x, ct), kernel>,

hence derivatives of every order work. On GPU and TPU XLA's own convolutions are used.
"""

from functools import partial
from itertools import compress

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from coulda.errors import CouldaError
from coulda.networks import winograd

_NHWC = ("NHWC", "HWIO", "NHWC")


def convolve(x: Array, kernel: Array) -> Array:
    """Cross-correlation with zero padding that keeps height and width.

    Args:
        x: `[..., H, W, I]`.
        kernel: `[K, K, I, O]`, K odd.

    Returns:
        `[..., H, W, O]`.

    >>> convolve(jnp.ones((3, 3, 1)), jnp.ones((3, 3, 1, 1)))[..., 0]
    Array([[4., 6., 4.],
           [6., 9., 6.],
           [4., 6., 4.]], dtype=float32)
    """
    if kernel.ndim != 4 or kernel.shape[0] != kernel.shape[1] or kernel.shape[0] % 2 == 0:
        raise CouldaError(f"a kernel is [K, K, inputs, outputs] with K odd; got shape {kernel.shape}")
    if x.ndim < 3 or x.shape[-1] != kernel.shape[2]:
        raise CouldaError(f"a kernel of shape {kernel.shape} needs x [..., H, W, {kernel.shape[2]}]; got {x.shape}")
    return _convolve(x, kernel)


@jax.custom_jvp
def convolve_joined(inputs: tuple[Array, ...], kernel: Array) -> Array:
    """`convolve` of inputs that are joined along their channels. Those that are given have no gradient to be computed.

    Of the cells that a network reads and its own memory, only the memory has one; the gradient of `concatenate` knows
    no parts.
    """
    return convolve(jnp.concatenate(inputs, -1), kernel)


@partial(convolve_joined.defjvp, symbolic_zeros=True)
def _convolve_joined_jvp(primals, tangents):
    (inputs, kernel), (changes, kernel_change) = primals, tangents
    x = jnp.concatenate(inputs, -1)
    y = convolve(x, kernel)
    change = jnp.zeros_like(y)
    moves = [not isinstance(part, SymbolicZero) for part in changes]
    if any(moves):
        # All of the kernel where all inputs move: a slice of it would be kept for the backward pass beside it.
        blocks = jnp.split(kernel, np.cumsum([part.shape[-1] for part in inputs])[:-1], axis=2)
        block = kernel if all(moves) else jnp.concatenate(list(compress(blocks, moves)), 2)
        change += convolve(jnp.concatenate(list(compress(changes, moves)), -1), block)
    if not isinstance(kernel_change, SymbolicZero):
        change += convolve(x, kernel_change)
    return y, change


def _convolve(x: Array, kernel: Array) -> Array:
    return _convolve_p.bind(*_equally_varying(x, kernel))


def _input_gradient(ct: Array, kernel: Array) -> Array:
    return _input_gradient_p.bind(*_equally_varying(ct, kernel))


def _kernel_gradient(x: Array, ct: Array, size: int) -> Array:
    return _kernel_gradient_p.bind(*_equally_varying(x, ct), size=size)


def _equally_varying(*arrays: Array) -> list[Array]:
    """Inside `shard_map`, both factors must be known to vary over the same axes of the mesh."""
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    every = frozenset().union(*varying)
    return [
        lax.pcast(array, tuple(every - own), to="varying") if every - own else array
        for array, own in zip(arrays, varying, strict=True)
    ]


def _direct(x: Array, kernel: Array) -> Array:
    padding = kernel.shape[0] // 2
    return lax.conv_general_dilated(x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=_NHWC)


def _direct_input_gradient(ct: Array, kernel: Array) -> Array:
    """A convolution with the kernel flipped in space, inputs and outputs swapped."""
    return _direct(ct, jnp.flip(kernel, (0, 1)).swapaxes(2, 3))


def _direct_kernel_gradient(x: Array, ct: Array, size: int) -> Array:
    """A forward convolution of x and ct, with the batch in the place of the channels."""
    # Without the barriers XLA folds the transposes into the convolution, and takes its slow path.
    x, ct = lax.optimization_barrier((x.transpose(3, 1, 2, 0), ct.transpose(1, 2, 0, 3)))
    gradient = lax.conv_general_dilated(x, ct, (1, 1), [(size // 2, size // 2)] * 2, dimension_numbers=_NHWC)
    return gradient.transpose(1, 2, 0, 3)


def _xla_kernel_gradient(x: Array, ct: Array, size: int) -> Array:
    kernel = jax.ShapeDtypeStruct((size, size, x.shape[-1], ct.shape[-1]), x.dtype)
    return jax.linear_transpose(lambda kernel: _direct(x, kernel), kernel)(ct)[0]


def _flat(x: Array) -> Array:
    return x.reshape(-1, *x.shape[-3:])


def _cpu_convolve(x: Array, kernel: Array) -> Array:
    method = winograd.convolve if kernel.shape[0] == 3 else _direct
    return method(_flat(x), lax.optimization_barrier(kernel)).reshape(*x.shape[:-1], kernel.shape[3])


def _cpu_input_gradient(ct: Array, kernel: Array) -> Array:
    method = winograd.input_gradient if kernel.shape[0] == 3 else _direct_input_gradient
    return method(_flat(ct), lax.optimization_barrier(kernel)).reshape(*ct.shape[:-1], kernel.shape[2])


def _cpu_kernel_gradient(x: Array, ct: Array, *, size: int) -> Array:
    if size == 3:
        return winograd.kernel_gradient(_flat(x), _flat(ct))
    return _direct_kernel_gradient(_flat(x), _flat(ct), size)


def _other_convolve(x: Array, kernel: Array) -> Array:
    return _direct(_flat(x), kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _other_input_gradient(ct: Array, kernel: Array) -> Array:
    return _direct_input_gradient(_flat(ct), kernel).reshape(*ct.shape[:-1], kernel.shape[2])


def _other_kernel_gradient(x: Array, ct: Array, *, size: int) -> Array:
    return _xla_kernel_gradient(_flat(x), _flat(ct), size)


def _batch_convolve(args, axes):
    """One more leading axis of x; only a batch of kernels (an ensemble) asks for more."""
    (x, kernel), (x_axis, kernel_axis) = args, axes
    if kernel_axis is None:
        return _convolve(jnp.moveaxis(x, x_axis, 0), kernel), 0
    return jax.vmap(_other_convolve, in_axes=axes)(x, kernel), 0


def _batch_input_gradient(args, axes):
    """Likewise."""
    (ct, kernel), (ct_axis, kernel_axis) = args, axes
    if kernel_axis is None:
        return _input_gradient(jnp.moveaxis(ct, ct_axis, 0), kernel), 0
    return jax.vmap(_other_input_gradient, in_axes=axes)(ct, kernel), 0


def _batch_kernel_gradient(args, axes, *, size):
    """One kernel gradient an example, as asked for."""
    return jax.vmap(lambda x, ct: _other_kernel_gradient(x, ct, size=size), in_axes=axes)(*args), 0


def _primitive(name, shape, cpu, other, batch, transposes) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(jax.jit(primitive.bind, static_argnames="size"))
    primitive.def_abstract_eval(lambda a, b, **params: a.update(shape=shape(a, b, **params)))
    mlir.register_lowering(primitive, mlir.lower_fun(other, multiple_results=False))
    mlir.register_lowering(primitive, mlir.lower_fun(cpu, multiple_results=False), platform="cpu")
    batching.primitive_batchers[primitive] = batch
    ad.defbilinear(primitive, *transposes)
    return primitive


_convolve_p = _primitive(
    "coulda_convolve",
    lambda x, kernel: (*x.shape[:-1], kernel.shape[-1]),
    _cpu_convolve,
    _other_convolve,
    _batch_convolve,
    (
        lambda ct, _, kernel: _input_gradient(ct, kernel),
        lambda ct, x, kernel: _kernel_gradient(x, ct, kernel.aval.shape[0]),
    ),
)
_input_gradient_p = _primitive(
    "coulda_input_gradient",
    lambda ct, kernel: (*ct.shape[:-1], kernel.shape[2]),
    _cpu_input_gradient,
    _other_input_gradient,
    _batch_input_gradient,
    (
        lambda x, _, kernel: _convolve(x, kernel),
        lambda x, ct, kernel: _kernel_gradient(x, ct, kernel.aval.shape[0]),
    ),
)
_kernel_gradient_p = _primitive(
    "coulda_kernel_gradient",
    lambda x, ct, size: (size, size, x.shape[-1], ct.shape[-1]),
    _cpu_kernel_gradient,
    _other_kernel_gradient,
    _batch_kernel_gradient,
    (
        lambda kernel, _, ct, **__: _input_gradient(ct, kernel),
        lambda kernel, x, _, **__: _convolve(x, kernel),
    ),
)
