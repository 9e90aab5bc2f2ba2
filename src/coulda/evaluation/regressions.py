"""Families of functions Q(o, a) that can be fitted to targets at logged steps.

| family            | sees                                  | how it is fitted                             |
|-------------------|---------------------------------------|----------------------------------------------|
| `TableQ`          | discrete observations                 | means of cells                               |
| `LinearQ`         | features of observations, and a one   | least squares with a small ridge, per action |
| `QuadraticQ`      | the same, and their products          | the same                                     |
| `RandomFeaturesQ` | a hidden layer with random weights    | the same, so that it is solved for exactly   |
| `NetworkQ`        | features                              | a trained network                            |
"""

import abc
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import Array

from coulda.episodes.spaces import features
from coulda.scales import RESOLUTION
from coulda.trainer import descend


class QFunction(eqx.Module):
    """A family of functions. What depends on the steps and their weights alone is `prepare`d once for all targets."""

    @abc.abstractmethod
    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """What it sees of one observation."""

    @abc.abstractmethod
    def prepare(self, inputs: Array, action: Array, weight: Array, num_actions: int) -> Any:
        """For fits to steps with `inputs` `[N, T, ...]`, `action` `[N, T]` and `weight` `[N, T]`."""

    @abc.abstractmethod
    def fit(self, prepared: Any, targets: Array, previous: Any) -> Any:
        """Parameters that fit `targets` `[N, T]`; `previous` are those with one step less to go, None at first."""

    @abc.abstractmethod
    def predict(self, parameters: Any, inputs: Array) -> Array:
        """Q of every action, `[..., A]`."""


class Cells(eqx.Module):
    """Which cell (o, a) each step is in, and how much weight each cell has."""

    cell: Array
    weight: Array
    total: Array
    num_actions: int = eqx.field(static=True)


class TableQ(QFunction):
    """A number for each discrete observation and action: the mean of its targets, and 0 where there are none."""

    num_observations: int = eqx.field(static=True)

    def inputs(self, space: spaces.Space, observation: Array) -> Array:
        """The observation's number."""
        assert isinstance(space, spaces.Discrete)
        return observation - int(space.start)

    def prepare(self, inputs: Array, action: Array, weight: Array, num_actions: int) -> Cells:
        """The steps' cells."""
        cell = inputs * num_actions + action
        total = jax.ops.segment_sum(weight.ravel(), cell.ravel(), self.num_observations * num_actions)
        return Cells(cell, weight, total, num_actions)

    def fit(self, prepared: Cells, targets: Array, previous: Any) -> Array:  # noqa: ARG002
        """Means of cells `[O, A]`."""
        size = self.num_observations * prepared.num_actions
        sums = jax.ops.segment_sum((prepared.weight * targets).ravel(), prepared.cell.ravel(), size)
        mean = sums / jnp.where(prepared.total > 0, prepared.total, 1.0)
        return mean.reshape(self.num_observations, prepared.num_actions)

    def predict(self, parameters: Array, inputs: Array) -> Array:
        """Look up."""
        return parameters[inputs]


class Normal(eqx.Module):
    """The normal equations of each action, solved but for their right side."""

    basis: Array
    """`[N, T, d]`."""
    chosen: Array
    """Weight of each step under its own action, `[A, N, T]`."""
    inverse: Array
    """`[A, d, d]`."""
    center: Array
    scale: Array


def _standard(inputs: Array, weight: Array) -> tuple[Array, Array]:
    """Center and scale of features `[N, T, d]`; what does not vary is nothing in a scale that has no end."""
    total, some = jnp.maximum(jnp.sum(weight), 1e-9), inputs[0, 0]
    # From one of them on: the sum of a thousand large numbers that are alike has lost their last digits.
    center = some + jnp.einsum("nt,ntd->d", weight, inputs - some[None, None]) / total
    spread = jnp.sqrt(jnp.einsum("nt,ntd->d", weight, (inputs - center[None, None]) ** 2) / total)
    largest = jnp.max(jnp.where(weight[..., None] > 0, jnp.abs(inputs), 0.0), (0, 1))
    return center, jnp.where(spread > RESOLUTION * largest, spread, jnp.inf)


class LinearQ(QFunction):
    """A linear function of the standardized features for each action."""

    ridge: float = 1e-4
    """Of the standardized weights, relative to the number of steps."""

    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """Its features."""
        return features(space, observation)

    def expand(self, x: Array) -> Array:
        """The basis of standardized features `[..., d]`, without the one."""
        return x

    def prepare(self, inputs: Array, action: Array, weight: Array, num_actions: int) -> Normal:
        """The inverse of each action's Gram matrix."""
        center, scale = _standard(inputs, weight)
        basis = self._basis(inputs, center, scale)
        taken = action[None] == jnp.arange(num_actions, dtype=action.dtype)[:, None, None]
        chosen = jnp.where(taken, weight[None], 0.0)
        gram = jnp.einsum("ntd,ant,nte->ade", basis, chosen, basis)
        floor = self.ridge * jnp.maximum(chosen.sum((1, 2)), 1.0)
        return Normal(
            basis,
            chosen,
            jax.vmap(inverse)(gram + floor[:, None, None] * jnp.eye(basis.shape[-1])[None]),
            center,
            scale,
        )

    def fit(self, prepared: Normal, targets: Array, previous: Any) -> tuple[Array, Array, Array]:  # noqa: ARG002
        """Weights `[A, d]`, with what standardizes the features."""
        right = jnp.einsum("ntd,ant,nt->ad", prepared.basis, prepared.chosen, targets)
        return jnp.einsum("ade,ae->ad", prepared.inverse, right), prepared.center, prepared.scale

    def predict(self, parameters: tuple[Array, Array, Array], inputs: Array) -> Array:
        """One function per action."""
        weights, center, scale = parameters
        return self._basis(inputs, center, scale) @ weights.T

    def _basis(self, inputs: Array, center: Array, scale: Array) -> Array:
        shape = (1,) * (inputs.ndim - 1) + center.shape
        expanded = self.expand((inputs - center.reshape(shape)) / scale.reshape(shape))
        return jnp.concatenate([expanded, jnp.ones((*expanded.shape[:-1], 1))], -1)


def inverse(matrix: Array) -> Array:
    """Of a positive definite matrix `[d, d]`, by Gauss–Jordan elimination, which needs no pivots there.

    Many of LAPACK's inverses at once, inside of a loop, were seen to wait for ever for threads of their own (XLA:CPU).
    """

    def eliminate(k: Any, rest: Array) -> Array:
        pivot, here = rest[k, k], jnp.arange(rest.shape[0]) == k
        row = jnp.where(here, 1.0, rest[k]) / pivot
        column = jnp.where(here, 0.0, rest[:, k])
        reduced = jnp.where(here[None], 0.0, rest) - column[:, None] * row[None]
        return jnp.where(here[:, None], row[None], reduced)

    return jax.lax.fori_loop(0, matrix.shape[0], eliminate, matrix)


class QuadraticQ(LinearQ):
    """A quadratic function of the standardized features for each action."""

    def expand(self, x: Array) -> Array:
        """The features and their products."""
        first, second = jnp.triu_indices(x.shape[-1])
        return jnp.concatenate([x, x[..., first] * x[..., second]], -1)


class RandomFeaturesQ(LinearQ):
    """A network with one hidden layer of random weights (Rahimi & Recht, 2007), whose last layer is solved for."""

    ridge: float = 1e-3
    width: int = eqx.field(static=True, default=48)
    seed: int = eqx.field(static=True, default=0)

    def expand(self, x: Array) -> Array:
        """The features, and cosines of random directions of them at two lengths."""
        key_direction, key_phase = jax.random.split(jax.random.key(self.seed))
        lengths = jnp.where(jnp.arange(self.width) % 2 == 0, 1.0, 0.4)
        directions = jax.random.normal(key_direction, (x.shape[-1], self.width)) * lengths[None, :]
        phase = jax.random.uniform(key_phase, (self.width,), maxval=2 * jnp.pi)
        angles = x @ directions
        waves = jnp.cos(angles + phase.reshape((1,) * (angles.ndim - 1) + phase.shape))
        return jnp.concatenate([x, waves], -1)


class NetworkQ(QFunction):
    """A small multilayer perceptron, trained by Adam on all steps at once, starting from one step less to go."""

    width: int = eqx.field(static=True, default=64)
    updates: int = eqx.field(static=True, default=300)
    learning_rate: float = eqx.field(static=True, default=3e-3)
    seed: int = eqx.field(static=True, default=0)

    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """Its features."""
        return features(space, observation)

    def prepare(self, inputs: Array, action: Array, weight: Array, num_actions: int) -> tuple[Any, ...]:
        """A network of the right shape, and the steps."""
        make = partial(eqx.nn.MLP, inputs.shape[-1], num_actions, self.width, 2, jnp.tanh)
        start, static = eqx.partition(make(key=jax.random.key(self.seed)), eqx.is_array)
        return start, static, _standard(inputs, weight), inputs, action, weight

    def fit(self, prepared: tuple[Any, ...], targets: Array, previous: Any) -> Any:
        """Parameters of the network, what standardizes its inputs, and the size of the targets, in which it counts."""
        import optax

        start, static, standard, inputs, action, weight = prepared
        start, total = start if previous is None else previous[0], jnp.maximum(jnp.sum(weight), 1e-9)
        size = jnp.sqrt(jnp.sum(weight * targets**2) / total)
        size = jnp.where(size > 0, size, 1.0)
        optimizer = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.updates))

        def loss(parameters: Any) -> Array:
            q = self.predict((parameters, static, standard, size), inputs)
            taken = jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]
            return jnp.sum(weight * ((taken - targets) / size) ** 2) / total

        def update(carry: Any, _: None) -> tuple[Any, None]:
            parameters, state = carry
            return descend(optimizer, jax.grad(loss)(parameters), state, parameters), None

        (parameters, _), _ = jax.lax.scan(update, (start, optimizer.init(start)), length=self.updates)
        return parameters, static, standard, size

    def predict(self, parameters: Any, inputs: Array) -> Array:
        """The network at each input."""
        *network, (center, scale), size = parameters
        flat = (inputs.reshape(-1, inputs.shape[-1]) - center[None]) / scale[None]
        return size * jax.vmap(eqx.combine(*network))(flat).reshape(*inputs.shape[:-1], -1)
