"""The convolution against JAX's own, in every order of the transformations; the conv-LSTM against plain code."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from coulda.errors import CouldaError
from coulda.networks import ConvLSTM, Convolution, Dense, convolve
from coulda.networks.convolution import convolve_joined


def reference(x, kernel):
    flat = x.reshape(-1, *x.shape[-3:])
    y = jax.lax.conv_general_dilated(
        flat, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
    )
    return y.reshape(*x.shape[:-1], -1)


def inputs(kernel, height=5, width=8, channels=(6, 4), leading=(3,)):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (*leading, height, width, channels[0]))
    weight = jax.random.normal(keys[1], (kernel, kernel, *channels))
    return x, weight, jax.random.normal(keys[2], (*leading, height, width, channels[1]))


def close(a, b, tolerance=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance * float(abs(b).max())), a, b)


@pytest.mark.parametrize(("kernel", "shape"), [(1, (5, 8)), (3, (8, 8)), (3, (5, 8)), (3, (1, 2)), (5, (5, 8))])
def test_convolution_and_gradients_equal_jax_own(kernel, shape):
    x, weight, ct = inputs(kernel, *shape)
    close(*(value_and_gradients(convolution, x, weight, ct) for convolution in (convolve, reference)))


@partial(jax.jit, static_argnums=0)
def value_and_gradients(convolution, x, weight, ct):
    value, pull = jax.vjp(convolution, x, weight)
    return value, pull(ct)


def losses(convolution):
    """Programs that batch and differentiate in different orders."""
    single = lambda weight, x, ct: jnp.sum(jnp.tanh(convolution(x, weight)) * ct)
    batched = lambda weight, x, ct: jnp.sum(jax.vmap(single, (None, 0, 0))(weight, x, ct))
    scanned = lambda weight, x, ct: jax.lax.scan(
        lambda total, pair: (total + single(weight, *pair), None), jnp.float32(0), (x, ct)
    )[0]
    return {
        "gradient of vmap": jax.grad(batched),
        "vmap of gradient": jax.vmap(jax.grad(single), (None, 0, 0)),
        "vmap of gradient by x": jax.vmap(jax.grad(single, 1), (None, 0, 0)),
        "gradient of scan": jax.grad(scanned),
        "vmap of kernels": jax.vmap(lambda scale, *rest: single(scale * rest[0], *rest[1:]), (0, None, None, None)),
        "vmap of kernels, gradient by x": jax.vmap(
            lambda scale, *rest: jax.grad(single, 1)(scale * rest[0], *rest[1:]), (0, None, None, None)
        ),
        "forward mode": lambda weight, x, _: jax.jvp(jax.vmap(convolution, (0, None)), (x, weight), (x[::-1], weight)),
        "second order": jax.grad(lambda weight, *rest: jnp.sum(jax.grad(batched, 1)(weight, *rest) ** 2)),
        "second order by kernels": jax.grad(lambda *args: jnp.sum(jax.grad(batched)(*args) ** 2), 1),
    }


@pytest.mark.parametrize("order", losses(convolve))
def test_transformations_commute(order):
    x, weight, ct = inputs(3)
    args = (weight, x, ct)
    if order.startswith("vmap of kernels"):
        args = (jnp.arange(2.0), *args)
    close(*(jax.jit(losses(convolution)[order])(*args) for convolution in (convolve, reference)))


def test_leading_axes_are_a_batch():
    x, weight, _ = inputs(3, leading=(2, 3))
    loop = jnp.stack([jnp.stack([convolve(one, weight) for one in row]) for row in x])
    close(convolve(x, weight), loop)


def test_of_no_examples_the_gradient_is_zero():
    nothing = jnp.zeros((0, 4, 4, 2))
    total = lambda kernel: jnp.sum(jax.vmap(lambda x: convolve(x, kernel))(nothing))
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.ones((3, 3, 2, 3))), jnp.zeros((3, 3, 2, 3)))


def test_a_batch_is_one_product():
    """`vmap` must not leave a loop, nor a kernel gradient for each example."""
    x, weight, ct = inputs(3, channels=(16, 16), leading=(32,))
    gradient = jax.grad(lambda weight: jnp.sum(jax.vmap(convolve, (0, None))(x, weight) * ct))
    primitives = [equation.primitive.name for equation in jax.make_jaxpr(gradient)(weight).eqns]
    assert primitives.count("coulda_kernel_gradient") == 1
    assert not {"conv_general_dilated", "scan", "while"} & set(primitives)


@pytest.mark.parametrize("moved", [(0,), (1,), (0, 2), (3,), (1, 3), (0, 1, 2, 3)])
def test_joined_inputs_have_the_gradients_of_their_concatenation(moved):
    x, weight, ct = inputs(3)
    parts = [*jnp.split(x, [1, 3], -1), weight]

    @partial(jax.jit, static_argnums=0)
    def values(convolution, *moving):
        """The value, its change along what moves, and the gradient."""

        def call(*moving):
            every = [moving[moved.index(i)] if i in moved else part for i, part in enumerate(parts)]
            return convolution(tuple(every[:3]), every[3])

        return *jax.jvp(call, moving, moving), jax.vjp(call, *moving)[1](ct)

    moving = [parts[i] for i in moved]
    by_hand = lambda parts, kernel: reference(jnp.concatenate(parts, -1), kernel)
    close(*(values(convolution, *moving) for convolution in (convolve_joined, by_hand)))


@pytest.mark.parametrize(("given", "channels"), [(True, 4), (False, 7)])
def test_what_a_memory_reads_has_no_gradient_computed(given, channels):
    """Nor where it has one is it left out: the first layer's own 4 channels, or with the 3 of its input."""
    network = ConvLSTM(jax.random.key(0), 3, channels=4)
    gradient = jax.grad(unroll(ConvLSTM.__call__), 0 if given else (0, 1))
    program = jax.make_jaxpr(gradient)(network, jnp.ones((2, 5, 6, 3)))
    assert set(outputs_of("coulda_input_gradient", program.jaxpr)) == {(5, 6, channels)}


def outputs_of(name, jaxpr):
    """The shapes that a primitive makes, in loops too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation.outvars[0].aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from outputs_of(name, inner)


@pytest.mark.parametrize(
    ("x", "kernel", "message"),
    [
        ((4, 4, 2), (2, 2, 2, 3), "K odd"),
        ((4, 4, 2), (3, 3, 5, 3), r"needs x \[..., H, W, 5\]; got \(4, 4, 2\)"),
        ((4, 2), (3, 3, 2, 3), "needs x"),
    ],
)
def test_wrong_shapes_are_refused(x, kernel, message):
    with pytest.raises(CouldaError, match=message):
        convolve(jnp.zeros(x), jnp.zeros(kernel))


def plain_lstm(network: ConvLSTM, carry, x):
    for _ in range(network.ticks):
        hidden, new = x, []
        for layer, (cell, own) in zip(network.layers, carry, strict=True):
            z = reference(jnp.concatenate([hidden, own], -1), layer.kernel) + layer.bias[None, None]
            i, f, o, g = jnp.split(z, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            new.append((cell, hidden))
        carry = tuple(new)
    return carry, hidden


def unroll(call):
    """Loss of one sequence `[T, H, W, inputs]`."""

    def loss(network, xs):
        step = lambda carry, x: call(network, carry, x)
        carry, outputs = jax.lax.scan(step, network.initial_carry(*xs.shape[1:3]), xs)
        return jnp.mean(outputs**2) + sum(jnp.mean(cell) for cell, _ in carry)

    return loss


@pytest.mark.parametrize(("layers", "channels", "kernel", "ticks"), [(1, 4, 3, 1), (2, 3, 5, 2)])
def test_conv_lstm_and_gradient_equal_plain_code(layers, channels, kernel, ticks):
    network = ConvLSTM(jax.random.key(1), 5, layers=layers, channels=channels, kernel=kernel, ticks=ticks)
    xs = jax.random.normal(jax.random.key(2), (2, 3, 4, 6, 5))
    mean = lambda loss: lambda network, xs: jnp.mean(jax.vmap(loss, (None, 0))(network, xs))
    ours = jax.jit(jax.value_and_grad(mean(unroll(ConvLSTM.__call__)), (0, 1)))(network, xs)
    plain = jax.jit(jax.value_and_grad(mean(unroll(plain_lstm)), (0, 1)))(network, xs)
    close(ours, plain)


def test_conv_lstm_jit_is_eager_and_vmap_is_a_loop():
    network = ConvLSTM(jax.random.key(1), 3, layers=2, channels=3, ticks=2)
    xs = jax.random.normal(jax.random.key(2), (2, 4, 4, 3))
    carry = network.initial_carry(4, 4)
    loop = [network(carry, x) for x in xs]
    close(eqx.filter_jit(network)(carry, xs[0]), loop[0])
    close(jax.vmap(network, (None, 0))(carry, xs), jax.tree.map(lambda *leaves: jnp.stack(leaves), *loop))


def test_layers_keep_the_scale_of_their_input():
    """Variance of the outputs between 0.5 and 1: truncation at two deviations takes a fifth of it."""
    x = jax.random.normal(jax.random.key(0), (16, 16, 32))
    y = Convolution(jax.random.key(1), 32, 64)(x)[1:-1, 1:-1]
    assert 0.5 < float(jnp.var(y)) < 1.0
    z = Dense(jax.random.key(1), 512, 2048)(x.reshape(-1)[:512])
    assert 0.5 < float(jnp.var(z)) < 1.0
