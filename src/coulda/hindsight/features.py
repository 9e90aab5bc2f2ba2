"""What a network is shown of observations, actions, rewards and states: numbers of one size, whatever they were.

Sizes are learned from simulated pairs, from what is within their histories and nothing else. A number is centered and
scaled by quantiles, and grows by its logarithm beyond all that was simulated; one with a heavy tail is shown by its
rank. An integer of few values is shown by ones and zeros.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.scales import normal_quantile

MOST_VALUES = 128
"""Of an integer that is shown by ones and zeros."""
KNOTS = 65
HEAVY = 4.0
"""How many times as far from the median the quantile of 99.5 % lies as that of 84 %: 2.6 for a normal distribution, 4
for an exponential one."""
BEYOND = 0.25
"""Of the range of what was simulated, by which a number may lie outside of it before it is called far."""


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one array is shown: by ones and zeros for `first`, `first` + 1, …, or, where `count` is 0, as numbers."""

    size: Annotated[int, msgspec.Meta(ge=0, le=2**24)]
    first: int = 0
    count: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0

    @property
    def width(self) -> int:
        """How many features there are."""
        return self.size * (self.count or 1)


class Numbers(eqx.Module):
    """Floating-point numbers `[d]` as as many features."""

    center: Array
    scale: Array
    heavy: Array
    """Whether a number is shown by its rank."""
    knots: Array
    """Quantiles, `[KNOTS, d]`; the first and the last are the least and the greatest that were seen."""

    @classmethod
    def blank(cls, size: int) -> "Numbers":
        """Before they are fitted."""
        return cls(jnp.zeros(size), jnp.ones(size), jnp.zeros(size, bool), jnp.zeros((KNOTS, size)))

    @classmethod
    def fitted(cls, values: np.ndarray) -> "Numbers":
        """To what was seen, `[n, d]`."""
        values = values.astype(float)
        low, center, high = np.quantile(values, [0.16, 0.5, 0.84], axis=0)
        scale = np.where(high > low, (high - low) / 2, values.std(0))
        tails = np.quantile(values, [0.005, 0.995], axis=0)
        far = np.maximum(
            (center - tails[0]) / np.maximum(center - low, 1e-12),
            (tails[1] - center) / np.maximum(high - center, 1e-12),
        )
        heavy = (far > HEAVY) & (high > low)
        knots = np.quantile(values, np.linspace(0, 1, KNOTS), axis=0)
        center, scale, knots = (jnp.asarray(x, jnp.float32) for x in (center, np.where(scale > 0, scale, 1.0), knots))
        return cls(center, scale, jnp.asarray(heavy), knots)

    def __call__(self, values: Array) -> Array:
        """The features `[d]`; a number that is missing is zero, and `far` says so."""
        values = jnp.where(jnp.isnan(values), self.center, values.astype(jnp.float32))
        # What is seen often tells by how little it differs from a state: large numbers are as exact as small ones.
        low, high = ((edge - self.center) / self.scale for edge in (self.knots[0], self.knots[-1]))
        plain = (values - self.center) / self.scale
        beyond = plain - jnp.clip(plain, low, high)
        plain = plain - beyond + jnp.sign(beyond) * jnp.log1p(jnp.abs(beyond))
        ranked = jax.vmap(jnp.interp, (0, 1, None))(values, self.knots, jnp.asarray(_SCORES, jnp.float32))
        return jnp.where(self.heavy, ranked, plain)

    def far(self, values: Array) -> Array:
        """Whether any lies far from all that was simulated, or is missing."""
        low, high = self.knots[0], self.knots[-1]
        margin = BEYOND * (high - low) + 1e-6
        return (~((values >= low - margin) & (values <= high + margin))).any()


_SCORES = normal_quantile((np.arange(KNOTS) + 0.5) / KNOTS)


class Features(eqx.Module):
    """A pytree of arrays as one row of features."""

    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    numbers: tuple[Numbers, ...]
    """Of those leaves that are shown as numbers."""

    @classmethod
    def blank(cls, leaves: Sequence[Leaf]) -> "Features":
        """Before they are fitted."""
        return cls(tuple(leaves), tuple(Numbers.blank(leaf.size) for leaf in leaves if not leaf.count))

    @classmethod
    def fitted(cls, tree: Any, seen: np.ndarray) -> "Features":
        """To those of a tree of arrays `[*seen.shape, ...]` that were `seen`, and to no other."""
        leaves, numbers = [], []
        for array in jax.tree.leaves(tree):
            values = np.asarray(array).reshape(*seen.shape, -1)[seen]
            leaf = _shown(values)
            leaves.append(leaf)
            if not leaf.count:
                numbers.append(Numbers.fitted(values))
        return cls(tuple(leaves), tuple(numbers))

    @property
    def width(self) -> int:
        """How many features there are."""
        return sum(leaf.width for leaf in self.leaves)

    def __call__(self, tree: Any) -> Array:
        """The features of one tree, `[width]`."""
        numbers, found = iter(self.numbers), [jnp.zeros(0)]
        for leaf, array in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            values = jnp.ravel(array)
            if leaf.count:
                found.append(jax.nn.one_hot(values.astype(jnp.int32) - leaf.first, leaf.count).ravel())
            else:
                found.append(next(numbers)(values))
        return jnp.concatenate(found)

    def far(self, tree: Any) -> Array:
        """Whether any number of a tree lies far from all that was simulated, or is missing."""
        numbers, found = iter(self.numbers), jnp.zeros((), bool)
        for leaf, array in zip(self.leaves, jax.tree.leaves(tree), strict=True):
            values = jnp.ravel(array)
            if leaf.count:
                place = values.astype(jnp.int32) - leaf.first
                found |= ((place < 0) | (place >= leaf.count)).any()
            else:
                found |= next(numbers).far(values.astype(jnp.float32))
        return found


def _shown(values: np.ndarray) -> Leaf:
    size = values.shape[1]
    if values.dtype == bool:
        return Leaf(size, 0, 2)
    if np.issubdtype(values.dtype, np.integer) and values.size and int(np.ptp(values)) < MOST_VALUES:
        return Leaf(size, int(values.min()), int(np.ptp(values)) + 1)
    return Leaf(size)
