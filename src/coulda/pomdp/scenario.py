"""`Scenario`: all the noise of one episode, everything that the agent cannot influence."""

import abc
from functools import partial
from typing import Any

import equinox as eqx
import jax
from jax import Array


class Scenario(eqx.Module):
    """The noise U of one episode of T steps.

    Fields are pytrees of arrays with time leading, or `LazyNoise`. `noise.mix` works on a scenario by field
    name: `mix(posterior, prior, inferred=("initial", "transition"))` draws the action noise afresh.
    """

    initial: Any
    """U_s1: what the first state is made of."""
    transition: Any
    """U_s2 … U_s(T+1), `[T, ...]`."""
    observation: Any
    """U_o1 … U_o(T+1), `[T + 1, ...]`."""
    action: Any
    """U_a1 … U_aT, `[T, ...]`."""


class LazyNoise(eqx.Module):
    """Noise over time that is computed when it is needed, from a small seed that is its whole state.

    For noise that is never inferred and would be large to store. It is still data: the same value always
    gives the same noise, and mechanisms see only the slice u_t.
    """

    @abc.abstractmethod
    def at(self, step: Array | int) -> Any:
        """The slice u_t."""


def at_step(noise: Any, step: Array | int) -> Any:
    """The slice u_t of one field of a scenario."""
    if isinstance(noise, LazyNoise):
        return noise.at(step)
    return entry(noise, step)


def entry(tree: Any, index: Array | int) -> Any:
    """Entry `index` of every leaf, counted from the front: `leaf[index]` traces what it would be from the end, too."""
    at = partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False, allow_negative_indices=False)
    return jax.tree.map(at, tree)
