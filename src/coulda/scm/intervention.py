"""Interventions (Definition 2): replace some mechanisms, keep everything else.

The grammar of what a node may be given:

| written                          | meaning                                                               |
|----------------------------------|-----------------------------------------------------------------------|
| `do(H=2.0)`                      | atomic: H is this value                                               |
| `do(H=Mechanism(("X", "Z"), f))` | mechanism change: new function, new parents, the same noise U_H       |
| `do(H=Normal(2.0, 0.1))`         | stochastic: H is a fresh draw, whatever its parents and its old noise |
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer

from coulda.noise import NoiseDistribution
from coulda.scm.model import SCM, Mechanism, SCMError


class Constant(eqx.Module):
    """A function of anything that returns `value`."""

    value: Any

    def __call__(self, *_: Any) -> Any:
        """The value."""
        return self.value


def _identity(noise: Any) -> Any:
    return noise


class Intervention(eqx.Module):
    """An intervention I; call it on an SCM to get M^do(I). Made by `do`."""

    targets: dict[str, Any]

    def __call__(self, scm: SCM) -> SCM:
        """The SCM with the targets' mechanisms replaced (and the noise of stochastic targets)."""
        if unknown := [name for name in self.targets if name not in scm.mechanisms]:
            raise SCMError(f"do: unknown node {unknown}; the nodes are {list(scm.order)}.")
        shapes = scm.shapes
        mechanisms = {name: _mechanism(name, t, shapes[name]) for name, t in self.targets.items()}
        intervened = SCM(
            noise=scm.noise | self.fresh_noise,
            mechanisms=scm.mechanisms | mechanisms,
            intervened=dict(scm.intervened) | {name: _label(name, t) for name, t in self.targets.items()},
        )
        after = intervened.shapes
        for name in self.targets:
            if after[name] != shapes[name]:
                raise SCMError(f"do({name}=…) gives {after[name]}, but '{name}' is {shapes[name]}.")
        return intervened

    @property
    def fresh_noise(self) -> dict[str, NoiseDistribution]:
        """Noise that stochastic targets bring with them; their old noise has no effect any more."""
        return {name: t for name, t in self.targets.items() if isinstance(t, NoiseDistribution)}


def do(targets: Mapping[str, Any] | None = None, /, **named: Any) -> Intervention:
    """An intervention; see this module's table for what a node may be given.

    >>> sorted(do(H=2.0, X=Mechanism((), lambda u: -u)).targets)
    ['H', 'X']
    """
    targets = dict(targets or {}) | named
    for name, target in targets.items():
        if callable(target) and not isinstance(target, Mechanism | NoiseDistribution):
            raise SCMError(
                f"do({name}=…) was given a bare function; write do({name}=Mechanism(parents, function)) "
                "so that its parents are named."
            )
    return Intervention({name: _as_arrays(target) for name, target in targets.items()})


def _as_arrays(target: Any) -> Any:
    """Values become arrays, so that do(H=2.0) and do(H=3.0) are one compiled program."""
    if isinstance(target, Mechanism | NoiseDistribution):
        return target
    return jax.tree.map(jnp.asarray, target)


def _mechanism(name: str, target: Any, shape: Any) -> Mechanism:
    if isinstance(target, Mechanism):
        return target
    if isinstance(target, NoiseDistribution):
        return Mechanism((), _identity)
    try:
        value = jax.tree.map(_cast, target, shape)
    except (ValueError, TypeError) as error:
        raise SCMError(f"do({name}={target!r}) does not fit '{name}', which is {shape}: {error}") from error
    return Mechanism((), Constant(value))


def _cast(value: jax.Array, shape: Any) -> jax.Array:
    if not jnp.can_cast(value.dtype, shape.dtype, casting="same_kind"):
        raise TypeError(f"{value.dtype} is not {shape.dtype}")
    return value.astype(shape.dtype)


def _label(name: str, target: Any) -> str:
    if isinstance(target, Mechanism):
        return f"do({name} := f({', '.join(target.parents)}))"
    if isinstance(target, NoiseDistribution):
        return f"do({name} ~ {type(target).__name__})"
    scalar = isinstance(target, jax.Array) and target.ndim == 0 and not isinstance(target, Tracer)
    return f"do({name} = {target:g})" if scalar else f"do({name} = …)"
