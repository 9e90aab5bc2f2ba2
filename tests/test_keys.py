"""Quick keys: the same draws as JAX's own, of every kind, shape and width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.keys import apart, folded, quick

KEY = jax.random.key(12345)


def same(a, b):
    return np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("shape", [(), (7,), (3, 5)])
def test_draws_are_those_of_the_key(shape):
    for draw in (jax.random.normal, jax.random.uniform, jax.random.gumbel, jax.random.bits):
        assert same(draw(quick(KEY), shape), draw(KEY, shape))
    assert same(jax.random.bits(quick(KEY), shape, jnp.uint8), jax.random.bits(KEY, shape, jnp.uint8))
    assert not same(jax.random.bits(quick(KEY), shape), jax.random.bits(jax.random.key(1), shape))


def test_so_are_keys_that_are_made_of_it():
    data = jax.random.key_data
    assert same(data(jax.random.split(quick(KEY), 5)), data(jax.random.split(KEY, 5)))
    assert same(data(jax.random.split(quick(KEY), (2, 3))), data(jax.random.split(KEY, (2, 3))))
    for number in (0, 7, 2**32 - 1):
        assert same(data(jax.random.fold_in(quick(KEY), number)), data(jax.random.fold_in(KEY, number)))


def test_under_vmap_and_of_other_kinds():
    keys = jax.random.split(KEY, 4)
    draw = lambda key: jax.random.normal(key, (3,))
    assert same(jax.vmap(lambda key: draw(quick(key)))(keys), jax.vmap(draw)(keys))
    assert quick(quick(KEY)).dtype == quick(KEY).dtype
    other = jax.random.key(0, impl="rbg")
    assert quick(other) is other


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_made_on_the_host_are_those_of_jax(impl):
    key = jax.random.key(12345, impl=impl)
    data = lambda keys: [jax.random.key_data(one) for one in keys]
    assert same(data(apart(key, 5)), data(jax.random.split(key, 5)))
    for number in (0, 7, 2**32 - 1):
        assert same(*data((folded(key, number), jax.random.fold_in(key, number))))
        assert not same(*data((folded(key, number), jax.random.fold_in(key, 8))))
