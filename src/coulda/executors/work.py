"""`Work`: what is done for one batch, and `WorkSpec`: the recipe that a worker elsewhere builds it from.

Workers are sent neither closures nor pickles: a recipe is the name of a function and settings in JSON, and
parameters and results travel as safetensors.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.naming import named


@dataclass(frozen=True)
class Work:
    """Batch i of a version is `run(parameters, inputs(i))`.

    Args:
        parameters: arrays or shapes, in the structure of what will be published.
        inputs: index -> a pytree of arrays, of the same shapes for each: the key of a batch (`seeded`), or its batch
            of a log. Called on the host, and need not be traceable. The same index gives the same inputs.
        run: (parameters, inputs) -> a pytree of arrays. Pure and traceable. It splits its batch over all local devices
            if it says so (`shard_batch`, `batched`).
        jit: whether to compile `run` as one program; not where it calls compiled programs of its own.
        made_of: fingerprints of what it was built from, for a caller that must know.
    """

    parameters: Any
    inputs: Callable[[int], Any]
    run: Callable[[Any, Any], Any]
    jit: bool = True
    made_of: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what the work was built from, by name: see `check_made_of`."""

    @cached_property
    def compiled(self) -> Callable[[Any, Any], Any]:
        """`run`, jitted if that is wanted."""
        return eqx.filter_jit(self.run) if self.jit else self.run

    @cached_property
    def value(self) -> Any:
        """The shapes of a batch."""
        return eqx.filter_eval_shape(self.run, self.parameters, self.inputs(0))

    def __call__(self, parameters: Any, index: int) -> Any:
        """Batch `index` of the version that has these parameters."""
        return self.compiled(parameters, self.inputs(index))


class WorkSpec(msgspec.Struct, frozen=True):
    """A recipe: `function` is named `package.module:function` and returns the `Work` for these settings."""

    function: str
    settings: dict[str, Any] = {}
    """Keyword arguments, of types that JSON has."""

    def build(self) -> Work:
        """The work; raises where there is no such function, or where it returns something else."""
        work = named(self.function)(**self.settings)
        if not isinstance(work, Work):
            raise CouldaError(f"recipe '{self.function}' returned a {type(work).__name__}; it must return a Work")
        return work


def seeded(seed: int) -> Callable[[int], Array]:
    """The inputs of work that draws: batch i has the key `fold_in(key(seed), i)`."""
    key = jax.random.key(seed)
    return lambda index: jax.random.fold_in(key, index)


def fingerprint(tree: Any) -> str:
    """A digest of a tree's arrays, numbers and structure; trees that were built alike have the same.

    >>> fingerprint({"a": 1.0}) == fingerprint({"a": 1.0}), fingerprint({"a": 1.0}) == fingerprint({"a": 2.0})
    (True, False)
    """
    leaves, structure = jax.tree.flatten(tree)
    # Functions and objects that show their place in memory are told apart by their names alone.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", str(structure)).encode())
    for leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray | np.generic):
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        else:
            digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(leaf)).encode())
    return digest.hexdigest()
