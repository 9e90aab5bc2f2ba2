"""Exogenous noise U: distributions over pytrees of arrays, and `mix` (Corollary 2).

Noise is data. A distribution is sampled once, at the boundary, and everything below is a pure function of
the value that was drawn: `sample` is the only method in the project's core that takes a PRNG key.

A distribution of your own is a subclass of `NoiseDistribution` with `sample`, and, where they exist, `draws` (for
speed), `log_prob` (for importance sampling and NUTS), `atoms` (for enumeration), `from_normal` (for NUTS) and its
inverse `to_normal` (for checks of inferred noise).
"""

import abc
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.scipy.special import ndtr, ndtri

from coulda.errors import CouldaError
from coulda.keys import quick

__all__ = [
    "Bernoulli",
    "Categorical",
    "Empirical",
    "Gumbel",
    "Iid",
    "Independent",
    "Mix",
    "Noise",
    "NoiseDistribution",
    "Normal",
    "Point",
    "Uniform",
    "check_key",
    "effective_sample_size",
    "mix",
]

Noise = Any
"""One draw: a pytree of arrays."""


def check_key(key: Any) -> None:
    """Refuse what is no key: a number is not one, so that nobody draws twice with the same by mistake.

    >>> check_key(0)
    Traceback (most recent call last):
    coulda.errors.CouldaError: key is 0, which is no key of JAX's; give jax.random.key(0)
    """
    if isinstance(key, Array) and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32):
        return
    example = key if isinstance(key, int) else 0
    raise CouldaError(f"key is {str(key)[:60]}, which is no key of JAX's; give jax.random.key({example})")


class NoiseDistribution(eqx.Module):
    """A distribution over a pytree of arrays."""

    @abc.abstractmethod
    def sample(self, key: Array) -> Noise:
        """Draw one value. Consumes `key`."""

    def draws(self, key: Array, n: int) -> Noise:
        """`n` independent draws, stacked `[n, ...]`. Consumes `key`.

        A key for each draw costs as much as several numbers: what can draw many at once overrides this.
        """
        return jax.vmap(self.sample)(jax.random.split(key, n))

    def log_prob(self, value: Noise) -> Array:  # noqa: ARG002
        """Log-density (or log-probability) of one value, summed over its axes: a scalar."""
        raise CouldaError(f"{type(self).__name__} has no log_prob. Define it in your subclass.")

    def atoms(self) -> tuple[Noise, Array]:
        """All values of a finite distribution, stacked `[n, ...]`, and their log-probabilities `[n]`."""
        raise CouldaError(f"{type(self).__name__} is not finite. Define `atoms` where it is.")

    def from_normal(self, value: Array) -> Noise:  # noqa: ARG002
        """Carry standard-normal values to this distribution, so that NUTS can walk in R^d."""
        raise CouldaError(f"{type(self).__name__} has no from_normal. Define it for NUTS.")

    def to_normal(self, value: Noise) -> Array:  # noqa: ARG002
        """The inverse of `from_normal`; optional."""
        raise CouldaError(f"{type(self).__name__} has no to_normal. Define it to have inferred noise checked.")


def has(distribution: NoiseDistribution, method: str) -> bool:
    """Whether `distribution` defines an optional method.

    >>> has(Bernoulli(0.3), "atoms"), has(Normal(), "atoms")
    (True, False)
    """
    if isinstance(distribution, Independent):
        return all(has(part, method) for part in distribution.parts())
    return getattr(type(distribution), method) is not getattr(NoiseDistribution, method)


def drawn(draw: Callable[[Array, tuple[int, ...]], Array], key: Array, shape: tuple[int, ...]) -> Array:
    """`draw(key, shape)`, the same numbers, drawn as one row. Consumes `key`.

    XLA:CPU compiles the index arithmetic of a grid of draws up to ten times longer, and runs it half as fast.
    """
    return draw(quick(key), (math.prod(shape),)).reshape(shape)


class Elementwise(NoiseDistribution):
    """Independent numbers of one kind, drawn as one row however many they are; each kind has its `shape` as a field."""

    @abc.abstractmethod
    def row(self, key: Array, n: int) -> Array:
        """`n` draws in one row, `[n · size]`. Consumes `key`."""

    def sample(self, key: Array) -> Array:
        """Draw `[shape]`."""
        return self.row(key, 1).reshape(_shape(self))

    def draws(self, key: Array, n: int) -> Array:
        """Draw `[n, shape]`."""
        return self.row(key, n).reshape(n, *_shape(self))

    def repeated(self, parameter: Array, n: int) -> Array:
        """A parameter for every number of a row."""
        return jnp.broadcast_to(parameter, (n, *_shape(self))).reshape(-1)


def _shape(distribution: Any) -> tuple[int, ...]:
    """An abstract field would be the first argument of each kind, in the eyes of a type checker."""
    return distribution.shape


class Uniform(Elementwise):
    """Uniform on [low, high), elementwise over `shape`."""

    low: Array = eqx.field(converter=jnp.asarray, default=0.0)
    high: Array = eqx.field(converter=jnp.asarray, default=1.0)
    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        _refuse_unless(self.low < self.high, f"Uniform needs low < high; got [{self.low}, {self.high}).")

    def row(self, key: Array, n: int) -> Array:
        """Uniform numbers between the ends."""
        low, high = (self.repeated(end, n) for end in (self.low, self.high))
        return jax.random.uniform(key, low.shape, minval=low, maxval=high)

    def log_prob(self, value: Array) -> Array:
        """-log(high - low) inside the interval, -inf outside."""
        inside = (value >= self.low) & (value < self.high)
        return jnp.sum(jnp.where(inside, -jnp.log(self.high - self.low), -jnp.inf))

    def from_normal(self, value: Array) -> Array:
        """The normal CDF, scaled."""
        return self.low + (self.high - self.low) * ndtr(value)

    def to_normal(self, value: Array) -> Array:
        """The normal quantile; finite at the ends, which float32 reaches."""
        return ndtri(jnp.clip((value - self.low) / (self.high - self.low), 1e-7, 1 - 1e-7))


class Normal(Elementwise):
    """Gaussian, elementwise. `mean` and `scale` broadcast against each other and fill `shape`."""

    mean: Array
    scale: Array
    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, mean: Any = 0.0, scale: Any = 1.0, shape: tuple[int, ...] | None = None):
        self.mean, self.scale = jnp.asarray(mean, float), jnp.asarray(scale, float)
        self.shape = np.broadcast_shapes(self.mean.shape, self.scale.shape) if shape is None else shape

    def __check_init__(self):
        _refuse_unless(self.scale > 0, f"Normal needs scale > 0; got {self.scale}.")

    def row(self, key: Array, n: int) -> Array:
        """Standard normal numbers, shifted and scaled."""
        mean, scale = self.repeated(self.mean, n), self.repeated(self.scale, n)
        return mean + scale * jax.random.normal(key, mean.shape)

    def log_prob(self, value: Array) -> Array:
        """Sum of elementwise Gaussian log-densities."""
        return jnp.sum(jax.scipy.stats.norm.logpdf(value, self.mean, self.scale))

    def from_normal(self, value: Array) -> Array:
        """Shift and scale."""
        return self.mean + self.scale * value

    def to_normal(self, value: Array) -> Array:
        """In deviations from the mean."""
        return (value - self.mean) / self.scale


class Gumbel(Elementwise):
    """Standard Gumbel, elementwise over `shape`: the noise of a Gumbel-max mechanism."""

    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def row(self, key: Array, n: int) -> Array:
        """Standard Gumbels."""
        return jax.random.gumbel(key, (n * math.prod(self.shape),))

    def log_prob(self, value: Array) -> Array:
        """Sum of elementwise Gumbel log-densities."""
        return jnp.sum(-value - jnp.exp(-value))

    def from_normal(self, value: Array) -> Array:
        """-log(-log Φ(z)), computed from log Φ so that both tails survive."""
        return -jnp.log(-jax.scipy.stats.norm.logcdf(value))

    def to_normal(self, value: Array) -> Array:
        """Φ⁻¹(exp(-exp(-g))), from the nearer tail, which is finite in float32."""
        rate = jnp.exp(-value)
        below, above = (jnp.maximum(tail, 1e-30) for tail in (jnp.exp(-rate), -jnp.expm1(-rate)))
        return jnp.where(below < above, ndtri(jnp.minimum(below, 0.5)), -ndtri(jnp.minimum(above, 0.5)))


class Categorical(NoiseDistribution):
    """One of `0 … K-1`, given by `probabilities` or by `logits`, `[K]`.

    >>> [round(float(p), 2) for p in Categorical(probabilities=[0.5, 0.3, 0.2]).probabilities]
    [0.5, 0.3, 0.2]
    """

    logits: Array

    def __init__(self, probabilities: Any = None, *, logits: Any = None):
        if (probabilities is None) == (logits is None):
            raise CouldaError("Categorical takes either probabilities=… or logits=…, not both or neither.")
        if probabilities is not None:
            probabilities = jnp.asarray(probabilities, float)
            close = jnp.abs(probabilities.sum(-1) - 1) < 1e-4
            message = f"must be ≥ 0 and sum to 1; got {probabilities} (sum {probabilities.sum(-1)})"
            _refuse_unless((probabilities >= 0).all(-1) & close, f"Categorical probabilities {message}.")
            logits = jnp.log(probabilities)
        self.logits = jnp.asarray(logits)

    @property
    def probabilities(self) -> Array:
        """Normalized probabilities `[K]`."""
        return jax.nn.softmax(self.logits)

    def sample(self, key: Array) -> Array:
        """Draw a scalar int32."""
        return jax.random.categorical(quick(key), self.logits).astype(jnp.int32)

    def draws(self, key: Array, n: int) -> Array:
        """Draw `[n]`, by the inverse CDF: one number each, and not one a category."""
        return _chosen(key, self.logits, n)

    def log_prob(self, value: Array) -> Array:
        """Log-probability of one category; -inf outside `0 … K-1`."""
        inside = (value >= 0) & (value < self.logits.shape[-1])
        return jnp.where(inside, jnp.take(jax.nn.log_softmax(self.logits), value, mode="clip"), -jnp.inf)

    def atoms(self) -> tuple[Array, Array]:
        """The K categories."""
        return jnp.arange(self.logits.shape[-1], dtype=jnp.int32), jax.nn.log_softmax(self.logits)


class Bernoulli(Elementwise):
    """A coin, elementwise over `shape`: True with `probability`."""

    probability: Array = eqx.field(converter=jnp.asarray)
    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        inside = (self.probability >= 0) & (self.probability <= 1)
        _refuse_unless(inside, f"Bernoulli needs 0 ≤ probability ≤ 1; got {self.probability}.")

    def row(self, key: Array, n: int) -> Array:
        """Booleans."""
        return jax.random.bernoulli(key, self.repeated(self.probability, n))

    def log_prob(self, value: Array) -> Array:
        """Sum of elementwise log-probabilities."""
        return jnp.sum(jnp.log(jnp.where(value, self.probability, 1 - self.probability)))

    def atoms(self) -> tuple[Array, Array]:
        """All 2^size assignments."""
        size = int(np.prod(self.shape))
        bits = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
        values = jnp.asarray(bits.astype(bool).reshape(-1, *self.shape))
        return values, jax.vmap(self.log_prob)(values)


class Point(NoiseDistribution):
    """All mass on one value: δ(u - û) of Algorithm 1. `Point()` is the noise of a node that has none."""

    value: Noise = eqx.field(converter=lambda v: jax.tree.map(jnp.asarray, v), default=0.0)

    def sample(self, key: Array) -> Noise:  # noqa: ARG002 (a point needs no randomness)
        """The value, whatever the key."""
        return self.value

    def draws(self, key: Array, n: int) -> Noise:  # noqa: ARG002
        """The value, `n` times."""
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)), self.value)

    def log_prob(self, value: Noise) -> Array:
        """0 at the value, -inf elsewhere."""
        same = jax.tree.map(lambda a, b: jnp.all(a == b), self.value, value)
        return jnp.where(jnp.stack(jax.tree.leaves(same)).all(), 0.0, -jnp.inf)

    def atoms(self) -> tuple[Noise, Array]:
        """The one value."""
        return jax.tree.map(lambda v: v[None], self.value), jnp.zeros(1)


class Empirical(NoiseDistribution):
    """Weighted draws: a pytree with a leading axis `[n, ...]` and log-weights `[n]` (uniform by default).

    This is what abduction returns. Weights stay in log space and need not be normalized.
    """

    values: Noise
    log_weights: Array

    def __init__(self, values: Noise, log_weights: Array | None = None):
        self.values = jax.tree.map(jnp.asarray, values)
        sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(self.values)}
        if len(sizes) != 1 or None in sizes:
            raise CouldaError(f"Empirical values must share one leading axis; got leading sizes {sizes}.")
        (size,) = sizes
        self.log_weights = jnp.zeros(size) if log_weights is None else jnp.asarray(log_weights)
        if self.log_weights.shape != (size,):
            raise CouldaError(f"Empirical got {size} values and log_weights of shape {self.log_weights.shape}.")

    @property
    def weights(self) -> Array:
        """Normalized weights `[n]`."""
        return jax.nn.softmax(self.log_weights)

    @property
    def effective_sample_size(self) -> Array:
        """Kish's (Σw)² / Σw², between 1 and n."""
        return effective_sample_size(self.weights)

    def sample(self, key: Array) -> Noise:
        """Draw one of the values by weight."""
        index = jax.random.categorical(quick(key), self.log_weights)
        return jax.tree.map(lambda v: v[index], self.values)

    def draws(self, key: Array, n: int) -> Noise:
        """Draw `n` of the values by weight, in n log n steps."""
        index = _chosen(key, self.log_weights, n)
        return jax.tree.map(lambda v: v[index], self.values)

    def atoms(self) -> tuple[Noise, Array]:
        """The values and their normalized log-weights."""
        return self.values, jax.nn.log_softmax(self.log_weights)


class Independent(NoiseDistribution):
    """A product of distributions: any pytree (a dict, a dataclass) whose leaves are distributions.

    A component's draw depends on its own name and the key alone, so adding or replacing one component
    leaves the others' draws as they were.
    """

    components: Any

    def parts(self) -> list[NoiseDistribution]:
        """The component distributions, in tree order."""
        return jax.tree.leaves(self.components, is_leaf=_is_distribution)

    def sample(self, key: Array) -> Noise:
        """Draw every component."""
        return self._each(quick(key), lambda part, key: part.sample(key))

    def draws(self, key: Array, n: int) -> Noise:
        """`n` draws of every component."""
        # Long rows are drawn as fast with the plain key: 4.5 ms against 5.1 for 10^5 draws of seven coins.
        return self._each(key, lambda part, key: part.draws(key, n))

    def _each(self, key: Array, draw: Callable[[NoiseDistribution, Array], Noise]) -> Noise:
        """What is drawn of every component with a key of its name's own."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.components, is_leaf=_is_distribution)
        names = np.array([zlib.crc32(jax.tree_util.keystr(path).encode()) for path, _ in paths], np.uint32)
        # All at once, since every hash that is written out is compiled.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, names)
        return jax.tree.unflatten(structure, [draw(part, keys[i]) for i, (_, part) in enumerate(paths)])

    def log_prob(self, value: Noise) -> Array:
        """Sum over components."""
        structure = jax.tree.structure(self.components, is_leaf=_is_distribution)
        values = structure.flatten_up_to(value)
        return sum((p.log_prob(v) for p, v in zip(self.parts(), values, strict=True)), jnp.zeros(()))

    def atoms(self) -> tuple[Noise, Array]:
        """The product of the components' atoms, `[n_1 · n_2 · …, ...]`."""
        parts = [part.atoms() for part in self.parts()]
        grid = np.indices([len(log_p) for _, log_p in parts]).reshape(len(parts), -1)
        values = [jax.tree.map(lambda leaf, i=i: leaf[i], v) for (v, _), i in zip(parts, grid, strict=True)]
        log_probs = [log_p[i] for (_, log_p), i in zip(parts, grid, strict=True)]
        structure = jax.tree.structure(self.components, is_leaf=_is_distribution)
        return jax.tree.unflatten(structure, values), sum(log_probs, jnp.zeros(grid.shape[1]))


class Iid(NoiseDistribution):
    """`times` independent draws of one distribution, stacked `[times, ...]`: noise over time."""

    distribution: NoiseDistribution
    times: int = eqx.field(static=True)

    def sample(self, key: Array) -> Noise:
        """Draw `[times, ...]`."""
        return jax.vmap(self.distribution.sample)(jax.random.split(quick(key), self.times))

    def log_prob(self, value: Noise) -> Array:
        """Sum over the draws."""
        return jnp.sum(jax.vmap(self.distribution.log_prob)(value))


class Mix(NoiseDistribution):
    """Some named noise from one distribution, the rest from another; see `mix`."""

    posterior: NoiseDistribution
    prior: NoiseDistribution
    inferred: frozenset[str] = eqx.field(static=True)

    def sample(self, key: Array) -> Noise:
        """Draw from both and merge by name."""
        key_posterior, key_prior = jax.random.split(key)
        return merge(self.posterior.sample(key_posterior), self.prior.sample(key_prior), self.inferred)


def mix(posterior: NoiseDistribution, prior: NoiseDistribution, inferred: Iterable[str]) -> Mix:
    """Corollary 2: the noise named in `inferred` from the posterior, everything else afresh from the prior.

    Both distributions are over the same named noise: a dict, or a dataclass such as `Scenario`.

    >>> prior = Independent({"U_s": Normal(), "U_a": Normal()})
    >>> sorted(mix(Point({"U_s": 1.0, "U_a": 2.0}), prior, inferred=["U_s"]).sample(jax.random.key(0)))
    ['U_a', 'U_s']
    """
    return Mix(posterior, prior, frozenset(inferred))


def merge(inferred_noise: Noise, fresh_noise: Noise, inferred: frozenset[str]) -> Noise:
    """Take the fields named in `inferred` from the first value and the others from the second."""
    fresh = _fields(fresh_noise)
    if unknown := sorted(inferred - fresh.keys()):
        raise CouldaError(f"mix: unknown noise {unknown}; the model's noise is {sorted(fresh)}.")
    source = _fields(inferred_noise)
    merged = {name: source[name] if name in inferred else value for name, value in fresh.items()}
    return merged if isinstance(fresh_noise, dict) else type(fresh_noise)(**merged)


def _fields(noise: Noise) -> dict[str, Any]:
    if isinstance(noise, dict):
        return noise
    return {name: getattr(noise, name) for name in type(noise).__dataclass_fields__}


def _chosen(key: Array, logits: Array, n: int) -> Array:
    """`n` indices by the inverse CDF; one of probability nil is never chosen."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits))
    # The sum may fall short of 1 by rounding, and a uniform number is always below its upper end.
    where = jax.random.uniform(key, (n,), cumulative.dtype, maxval=cumulative[-1])
    return jnp.searchsorted(cumulative, where, side="right").astype(jnp.int32)


def _is_distribution(node: Any) -> bool:
    return isinstance(node, NoiseDistribution)


def _refuse_unless(condition: Array, message: str) -> None:
    """Raise where the values are known; inside a trace the types are trusted."""
    if not isinstance(condition, Tracer) and not bool(jnp.all(condition)):
        raise CouldaError(message)


def effective_sample_size(weights: Any, axis: int | None = None) -> Any:
    """Kish's (Σw)² / Σw², over all weights or along an axis: between 1 and n, and 0 where every weight is zero.

    Weights need not be normalized. NumPy stays NumPy, in its own precision.

    >>> float(effective_sample_size(np.array([1.0, 1.0, 0.0])))
    2.0
    """
    xp = jnp if isinstance(weights, jax.Array) else np
    top = weights.max(axis=axis, keepdims=True)
    # Scaled, so that squares neither overflow nor vanish.
    scaled = weights / xp.where(top > 0, top, 1.0)
    squares = (scaled**2).sum(axis=axis)
    return scaled.sum(axis=axis) ** 2 / xp.where(squares > 0, squares, 1.0)
