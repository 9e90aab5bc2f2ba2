"""Gymnasium spaces as a log needs them: bounds and dtypes of their arrays, and a form for the manifest."""

import math
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from gymnasium import spaces

from coulda.errors import CouldaError

LARGEST = 2**24
"""Numbers of one observation, of which bounds are kept: more would fill the memory before anything is read."""

MOST_VALUES = 2**22
"""Of a number that counts: estimators have a row for each, and a manifest can say anything."""


class Leaf(msgspec.Struct, frozen=True):
    """What any array of one elementary space must satisfy."""

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype


class HashableSpace:
    """A space as a static part of a compiled program: spaces cannot be hashed, their descriptions can."""

    def __init__(self, value: gymnasium.Space):
        self.value = value

    def __hash__(self) -> int:
        return hash(str(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableSpace) and self.value == other.value


def space_tree(space: gymnasium.Space) -> Any:
    """The space as a pytree of elementary spaces: `Dict` as a dict, `Tuple` as a tuple."""
    if isinstance(space, spaces.Dict):
        return {name: space_tree(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(part) for part in space.spaces)
    return space


def leaf(space: gymnasium.Space) -> Leaf:
    """Bounds, shape and dtype of an elementary space, 64-bit types as JAX's 32-bit ones.

    >>> leaf(spaces.Discrete(3)).high.item(), leaf(spaces.Box(0, 1, (2,))).dtype
    (2, dtype('float32'))
    """
    if isinstance(space, spaces.Discrete):
        return _whole(space, np.asarray(space.start), int(space.n), ())
    if isinstance(space, spaces.MultiDiscrete):
        return _whole(space, space.start, space.nvec, space.shape)
    if isinstance(space, spaces.MultiBinary):
        check_size(space.shape)
        ones = np.ones(space.shape, np.int8)
        return Leaf(0 * ones, ones, space.shape, np.dtype(np.int8))
    if isinstance(space, spaces.Box):
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(space.dtype))
        return Leaf(space.low, space.high, space.shape, dtype)
    raise CouldaError(
        f"a log cannot hold {space}; use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of them"
    )


def _whole(space: gymnasium.Space, low: np.ndarray, count: Any, shape: tuple[int, ...]) -> Leaf:
    """Of whole numbers, which JAX holds in 32 bits."""
    limits = np.iinfo(np.int32)
    if np.max(count, initial=0) > MOST_VALUES:
        raise CouldaError(f"{space} has more than {MOST_VALUES:,} values, of which no table can be made; use a Box")
    high = low.astype(object) + count - 1
    if np.any(low < limits.min) or np.any(high > limits.max):
        raise CouldaError(f"{space} has numbers beyond {limits.max:,}, which 32 bits do not hold; number them from 0")
    return Leaf(low, np.asarray(high, np.int64), shape, np.dtype(np.int32))


def check_size(shape: Any) -> None:
    """Refuse a shape that no observation has."""
    sizes = [int(size) for size in np.atleast_1d(np.asarray(shape, object))]
    if min(sizes, default=0) < 0 or math.prod(sizes) > LARGEST:
        raise CouldaError(f"a space of shape {sizes} holds no observation; the most are {LARGEST:,} numbers")


def check_leaves(space: gymnasium.Space) -> None:
    """Refuse a space of which a log cannot hold values."""
    for _, part in named_leaves(space, ""):
        leaf(part)


def named_leaves(space: gymnasium.Space, field: str) -> list[tuple[str, gymnasium.Space]]:
    """The elementary spaces in tree order, each with its name: `observation` or `observation['grid']`."""
    paths = jax.tree_util.tree_leaves_with_path(space_tree(space))
    return [(field + jax.tree_util.keystr(path), part) for path, part in paths]


def features(space: gymnasium.Space, value: Any) -> jax.Array:
    """One value of the space as a flat float vector: categories as one-hot, everything else as it is.

    >>> features(spaces.Discrete(3), jnp.int32(1)).tolist()
    [0.0, 1.0, 0.0]
    """
    parts = jax.tree.map(_leaf_features, space_tree(space), value)
    return jnp.concatenate(jax.tree.leaves(parts))


def _leaf_features(space: gymnasium.Space, value: Any) -> jax.Array:
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(value - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        shifted = jnp.ravel(value).astype(jnp.int32) - jnp.asarray(space.start.ravel(), jnp.int32)
        each = [jax.nn.one_hot(shifted[i], int(n)) for i, n in enumerate(space.nvec.ravel())]
        return jnp.concatenate(each)
    return jnp.ravel(value).astype(float)


class DiscreteSpec(msgspec.Struct, tag="discrete", frozen=True, forbid_unknown_fields=True):
    """`Discrete(n, start)`."""

    n: int
    start: int

    def space(self) -> spaces.Discrete:
        """The space itself."""
        return spaces.Discrete(self.n, start=self.start)


class MultiDiscreteSpec(msgspec.Struct, tag="multi-discrete", frozen=True, forbid_unknown_fields=True):
    """`MultiDiscrete(nvec, start)`, flattened."""

    nvec: list[int]
    start: list[int]
    shape: tuple[int, ...]

    def space(self) -> spaces.MultiDiscrete:
        """The space itself."""
        nvec, start = np.array(self.nvec).reshape(self.shape), np.array(self.start).reshape(self.shape)
        return spaces.MultiDiscrete(nvec, start=start)


class MultiBinarySpec(msgspec.Struct, tag="multi-binary", frozen=True, forbid_unknown_fields=True):
    """`MultiBinary(n)`."""

    n: int | tuple[int, ...]

    def space(self) -> spaces.MultiBinary:
        """The space itself."""
        check_size(self.n)
        return spaces.MultiBinary(self.n)


class BoxSpec(msgspec.Struct, tag="box", frozen=True, forbid_unknown_fields=True):
    """`Box`; bounds as text, since JSON has no infinity, and one entry where all are the same."""

    low: list[str]
    high: list[str]
    shape: tuple[int, ...]
    dtype: str

    def space(self) -> spaces.Box:
        """The space itself."""
        check_size(self.shape)
        dtype = np.dtype(self.dtype)
        bounds = [np.array([float(x) for x in bound]) for bound in (self.low, self.high)]
        full = [np.full(self.shape, b[0]) if len(b) == 1 else b.reshape(self.shape) for b in bounds]
        low, high = (bound.astype(dtype) for bound in full)
        return spaces.Box(low, high, self.shape, dtype.type)


class DictSpec(msgspec.Struct, tag="dict", frozen=True, forbid_unknown_fields=True):
    """`Dict`."""

    parts: dict[str, "Spec"]

    def space(self) -> spaces.Dict:
        """The space itself."""
        return spaces.Dict({name: part.space() for name, part in self.parts.items()})


class TupleSpec(msgspec.Struct, tag="tuple", frozen=True, forbid_unknown_fields=True):
    """`Tuple`."""

    parts: list["Spec"]

    def space(self) -> spaces.Tuple:
        """The space itself."""
        return spaces.Tuple([part.space() for part in self.parts])


Spec = DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec | BoxSpec | DictSpec | TupleSpec
"""A space as it is written in a manifest."""


def spec_of(space: gymnasium.Space) -> Spec:
    """The form of a space that JSON can hold.

    >>> spec_of(spaces.Discrete(3)).space()
    Discrete(3)
    >>> spec_of(spaces.Box(-1, 1, ())).space()
    Box(-1.0, 1.0, (), float32)
    """
    if isinstance(space, spaces.Dict):
        return DictSpec({name: spec_of(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return TupleSpec([spec_of(part) for part in space.spaces])
    if isinstance(space, spaces.Discrete):
        return DiscreteSpec(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteSpec(space.nvec.ravel().tolist(), space.start.ravel().tolist(), space.shape)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinarySpec(space.n if isinstance(space.n, int) else space.shape)
    box = leaf(space)
    return BoxSpec(_bound(box.low), _bound(box.high), box.shape, str(space.dtype))


def _bound(values: np.ndarray) -> list[str]:
    """As text; `repr` of a float is exact."""
    flat = [repr(float(x)) for x in np.ravel(values)]
    return flat[:1] if len(set(flat)) == 1 else flat
