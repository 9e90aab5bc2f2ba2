"""Coordinates in which noise can be moved without leaving its prior: standard normal where it is continuous.

A move of these coordinates needs `sample` and `from_normal` of a distribution, and no density: a continuous number is
rotated towards a fresh draw (preconditioned Crank–Nicolson), any other is drawn anew. Both leave the prior as it is, so
that such a proposal is accepted by the ratio of likelihoods alone.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.noise import Iid, Independent, NoiseDistribution, Point, drawn, has

Position = list[Any]
"""Of one draw: standard normal numbers for each continuous part, and the value itself for any other."""


class Part(NamedTuple):
    """One distribution of those that a noise is made of."""

    distribution: NoiseDistribution
    times: tuple[int, ...]
    """How many independent draws of it there are."""

    @property
    def continuous(self) -> bool:
        """Whether it has normal coordinates."""
        return has(self.distribution, "from_normal")


class Coordinates(eqx.Module):
    """The noise of one distribution, part by part."""

    distribution: NoiseDistribution

    @property
    def parts(self) -> list[Part]:
        """What it is made of, in tree order."""
        return list(_flat(self.distribution, ()))

    @property
    def continuous(self) -> bool:
        """Whether every part has normal coordinates, or no chance at all."""
        return all(part.continuous or isinstance(part.distribution, Point) for part in self.parts)

    def sample(self, key: Array) -> Position:
        """A draw of the prior. Consumes `key`."""
        parts = self.parts
        # A split is compiled, and one part needs none.
        keys = jax.random.split(key, len(parts)) if len(parts) > 1 else [key]
        return [_sample(part, one) for part, one in zip(parts, keys, strict=False)]

    def times(self, count: int) -> "Coordinates":
        """Of so many independent draws, `[count, ...]`."""
        return Coordinates(Iid(self.distribution, count))

    def noise(self, position: Position) -> Any:
        """The noise at a position."""
        values = iter([_value(part, x) for part, x in zip(self.parts, position, strict=True)])
        return _shaped(self.distribution, values)

    def normals(self, position: Position) -> list[Array]:
        """The standard normal coordinates, of the continuous parts alone."""
        return [x for part, x in zip(self.parts, position, strict=True) if part.continuous]

    def with_normals(self, position: Position, normals: list[Array]) -> Position:
        """The position with other normal coordinates."""
        given = iter(normals)
        return [next(given) if part.continuous else x for part, x in zip(self.parts, position, strict=True)]

    def moved(self, position: Position, fresh: Position, scale: Array, chosen: Array, redrawn: Array) -> Position:
        """A proposal that leaves the prior invariant.

        Args:
            position: of the noise as it is.
            fresh: a draw of the prior.
            scale: how far, in (0, 1]: at 1 what is chosen is drawn anew.
            chosen: what may move: a scalar, or `[times]` for noise over time.
            redrawn: what is drawn anew of what may move, where it is not continuous; of the shape of `chosen`.
        """
        keep = jnp.sqrt(1 - scale**2)

        def one(part: Part, old: Any, new: Any) -> Any:
            if part.continuous:
                return jnp.where(_over(chosen, old), keep * old + scale * new, old)
            return jax.tree.map(lambda a, b: jnp.where(_over(chosen & redrawn, a), b, a), old, new)

        return [one(*three) for three in zip(self.parts, position, fresh, strict=True)]


def _flat(distribution: NoiseDistribution, times: tuple[int, ...]) -> Any:
    if isinstance(distribution, Independent):
        for part in distribution.parts():
            yield from _flat(part, times)
    elif isinstance(distribution, Iid):
        yield from _flat(distribution.distribution, (*times, distribution.times))
    else:
        yield Part(distribution, times)


def _shaped(distribution: NoiseDistribution, values: Any) -> Any:
    if isinstance(distribution, Independent):
        is_leaf = lambda x: isinstance(x, NoiseDistribution)
        return jax.tree.map(lambda part: _shaped(part, values), distribution.components, is_leaf=is_leaf)
    if isinstance(distribution, Iid):
        return _shaped(distribution.distribution, values)
    return next(values)


def _sample(part: Part, key: Array) -> Any:
    if part.continuous:
        shape = jax.eval_shape(part.distribution.sample, key).shape
        return drawn(jax.random.normal, key, (*part.times, *shape))
    draw = part.distribution.sample
    for times in reversed(part.times):
        draw = lambda key, draw=draw, times=times: jax.vmap(draw)(jax.random.split(key, times))
    return draw(key)


def _value(part: Part, position: Any) -> Any:
    if not part.continuous:
        return position
    carry = part.distribution.from_normal
    for _ in part.times:
        carry = jax.vmap(carry)
    return carry(position)


def _over(chosen: Array, leaf: Array) -> Array:
    """`chosen`, shaped to be broadcast over the trailing axes of a leaf."""
    return jnp.broadcast_to(jnp.reshape(chosen, chosen.shape + (1,) * (leaf.ndim - chosen.ndim)), leaf.shape)
