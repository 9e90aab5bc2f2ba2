"""What an observation says of the state that made it, and of its own noise: derived where `observe` is affine in U_o.

O = f(s, U_o) with f affine in the noise has a density that follows from the noise's own and the Jacobian, and so has
the posterior of U_o. A user then writes neither. Where the noise is Gaussian, numbers of an observation may be missing
(NaN): they carry no weight, and their noise keeps its prior.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from coulda.abduction import affine_in, invert_affine
from coulda.errors import CouldaError
from coulda.noise import Independent, NoiseDistribution, Normal, Point, has

if TYPE_CHECKING:
    from coulda.pomdp.model import POMDP

EXAMPLE = """
    def observation_log_prob(self, observation, state):  # log p(o | s), such as
        return Normal(state, 0.2).log_prob(observation)"""


def state_shapes(model: "POMDP") -> Any:
    """Shapes and dtypes of a state."""
    return jax.eval_shape(lambda key: model.initial(model.initial_noise.sample(key)), jax.random.key(0))


def no_density(model: "POMDP") -> str | None:
    """Why log p(o | s) cannot be derived, and what to write; None where it can, or stands in the model."""
    from coulda.pomdp.model import POMDP

    if type(model).observation_log_prob is not POMDP.observation_log_prob or _is_derived(model):
        return None
    name, noise = type(model).__name__, type(model.observation_noise).__name__
    if isinstance(model.observation_noise, Point):
        if not any(_is_float(leaf) for leaf in jax.tree.leaves(_observation_shapes(model))):
            return None  # equal or not
        return (
            f"{name} observes numbers without noise, so that hardly any state could have made what was seen. Add "
            f"`observation_noise`, or write{EXAMPLE}"
        )
    return f"{name} has observation noise ({noise}) in which `observe` is not affine, so write{EXAMPLE}"


def log_density(model: "POMDP", observation: Any, state: Any) -> Array:
    """Log p(o | s), with U_o integrated out; what is missing says nothing."""
    if isinstance(model.observation_noise, Point):
        expected = model.observe(state, model.observation_noise.value)
        same = jax.tree.map(lambda a, b: jnp.all((a == b) | _missing(b)), expected, observation)
        return jnp.where(jnp.stack(jax.tree.leaves(same)).all(), 0.0, -jnp.inf)
    if reason := no_density(model):
        raise CouldaError(reason)
    return _affine(model, observation, state, None)[1]


def noise_given(model: "POMDP", state: Any, observation: Any, fresh: Any) -> Any:
    """A draw of p(U_o | s, o), carried there from `fresh`; `fresh` itself where it cannot be derived."""
    return _affine(model, observation, state, fresh)[0] if _is_derived(model) else fresh


def infers_noise(model: "POMDP") -> bool:
    """Whether the posterior of U_o is known, so that inferred scenarios give the logged observations back."""
    from coulda.pomdp.model import POMDP

    written = type(model).observation_posterior is not POMDP.observation_posterior
    return written or isinstance(model.observation_noise, Point) or _is_derived(model)


def weight_of(model: "POMDP", observation: Any, state: Any) -> Array:
    """Log p(o | s) as evidence: what a density that the user wrote says, or nothing where any number is missing."""
    if not any(_is_float(leaf) for leaf in jax.tree.leaves(observation)) or _is_derived(model):
        return model.observation_log_prob(observation, state)
    gone = jnp.stack([_missing(leaf).any() for leaf in jax.tree.leaves(observation)]).any()
    there = jax.tree.map(lambda leaf: jnp.where(_missing(leaf), jnp.zeros_like(leaf), leaf), observation)
    return jnp.where(gone, 0.0, model.observation_log_prob(there, state))


def _is_derived(model: "POMDP") -> bool:
    """Whether `observe` is affine in noise whose density is known, and can be solved for it."""
    from coulda.pomdp.model import POMDP

    noise = model.observation_noise
    if isinstance(noise, Point) or not has(noise, "log_prob"):
        return False
    if type(model).observation_posterior is not POMDP.observation_posterior:
        return False
    u, seen = jax.eval_shape(noise.sample, jax.random.key(0)), _observation_shapes(model)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (u, seen)]
    single = len(jax.tree.leaves(u)) == 1 and sizes[0] == sizes[1]
    if not all(_is_float(leaf) for leaf in jax.tree.leaves((u, seen))):
        return False
    if not (single or (_gaussian(noise) is not None and sizes[0] >= sizes[1])):
        return False
    return affine_in(lambda u, state: model.observe(state, u), u, state_shapes(model))


def _observation_shapes(model: "POMDP") -> Any:
    def first(key: Array) -> Any:
        return model.observe(model.initial(model.initial_noise.sample(key)), model.observation_noise.sample(key))

    return jax.eval_shape(first, jax.random.key(0))


def _affine(model: "POMDP", observation: Any, state: Any, fresh: Any | None) -> tuple[Any, Array]:
    """The posterior of U_o, carried from `fresh`, and log p(o | s)."""
    prior = model.observation_noise
    start = prior.sample(jax.random.key(0)) if fresh is None else fresh
    noise, unravel = ravel_pytree(start)
    seen = ravel_pytree(observation)[0]
    predict = lambda u: ravel_pytree(model.observe(state, unravel(u)))[0]
    if (gaussian := _gaussian(prior)) is not None:
        inferred, density = _given_gaussian(predict, *gaussian, seen, noise)
        return unravel(inferred), density
    gone = jnp.isnan(seen).any()
    there = jnp.where(jnp.isnan(seen), 0.0, seen)
    shape = jax.tree.leaves(start)[0].shape
    inferred, density = invert_affine(lambda u: predict(u.ravel()), prior, there, noise.reshape(shape))
    return unravel(jnp.where(gone, noise, inferred.ravel())), jnp.where(gone, 0.0, density)


def _given_gaussian(
    predict: Callable[[Array], Array], mean: Array, scale: Array, seen: Array, fresh: Array
) -> tuple[Array, Array]:
    """The same for Gaussian noise, by conditioning (Matheron's rule): any matrix, and any number may be missing.

    Where the matrix does not depend on the state, neither does its factor, so that particles share one.
    """
    there = ~jnp.isnan(seen)
    seen = jnp.where(there, seen, 0.0)
    matrix = jax.jacfwd(predict)(jnp.zeros_like(fresh)) * jnp.where(there, 1.0, 0.0)[:, None]  # [m, n]
    spread = (matrix * scale[None, :] ** 2) @ matrix.T
    center = jnp.where(there, seen - predict(mean), 0.0)
    residual = jnp.where(there, seen - predict(fresh), 0.0)
    count = jnp.sum(jnp.where(there, 1.0, 0.0))
    if seen.size == 1:
        variance = jnp.where(there[0], spread[0, 0], 1.0)
        density = -0.5 * (center[0] ** 2 / variance + count * jnp.log(2 * jnp.pi * variance))
        inferred = fresh + scale**2 * matrix[0] * residual[0] / variance
        return inferred, density
    spread = spread + jnp.diag(jnp.where(there, 0.0, 1.0))
    factor = jnp.linalg.cholesky(spread)
    white = jax.scipy.linalg.solve_triangular(factor, center, lower=True)
    density = -0.5 * (white @ white + count * jnp.log(2 * jnp.pi)) - jnp.sum(jnp.log(jnp.diag(factor)))
    return fresh + scale**2 * (matrix.T @ jax.scipy.linalg.cho_solve((factor, True), residual)), density


def _gaussian(distribution: NoiseDistribution) -> tuple[Array, Array] | None:
    """Mean and scale of Gaussian noise, flat in tree order; None of any other."""
    if isinstance(distribution, Normal):
        return tuple(jnp.broadcast_to(x, distribution.shape).ravel() for x in (distribution.mean, distribution.scale))
    if isinstance(distribution, Independent):
        parts = [_gaussian(part) for part in distribution.parts()]
        if all(part is not None for part in parts):
            means, scales = zip(*parts, strict=True)  # pyright: ignore[reportArgumentType]
            return jnp.concatenate(means), jnp.concatenate(scales)
    return None


def _missing(leaf: Array) -> Array:
    return jnp.isnan(leaf) if _is_float(leaf) else jnp.zeros(leaf.shape, bool)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
