"""Abduction: p(U | evidence) for any SCM, with evidence on any subset of its nodes.

An engine is anything with the two methods of `Abduction`. All engines share one pass through the graph,
`_ancestral_pass`: where a node is observed, its noise is drawn from the exact posterior given its parents
and its value, and log p(value | parents) is kept; where it is not, its noise comes from the prior.

- `Inversion`: every observed node has known parents, so the log-likelihoods are constant: exact.
- `ImportanceSampling`: they are not, so they are the weights.
- `NUTS`: they are not, so they are the target of a Markov chain over the unobserved noise.
- `Enumeration`: all noise is finite, so every value is tried: exact.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.extras import require
from coulda.mechanisms import Reparameterization
from coulda.noise import Empirical, Independent, Noise, Normal, Point, has
from coulda.scm import SCM, SCMError
from coulda.scm.graph import ancestors

__all__ = ["ENGINES", "NUTS", "Abduction", "Enumeration", "Evidence", "ImportanceSampling", "Inversion", "Posterior"]

Evidence = Mapping[str, Any]
"""What was seen: values of some of the nodes, by name."""


class Posterior(eqx.Module):
    """p(U | evidence) as weighted draws of all nodes' noise."""

    noise: Empirical
    exact: bool = eqx.field(static=True)
    """Whether the draws and weights *are* the posterior, with no Monte Carlo error."""


class Abduction(Protocol):
    """An engine. One of your own may be a learned posterior."""

    def refuses(self, scm: SCM, observed: Collection[str]) -> str | None:
        """Why this engine cannot infer the noise from evidence on `observed`, or None when it can."""
        ...

    def __call__(self, key: Array, scm: SCM, evidence: Evidence, num_samples: int) -> Posterior:
        """Infer the noise of one row of evidence. Pure: it is jitted and vmapped. Consumes `key`."""
        ...


class Inversion(eqx.Module):
    """Exact, node by node: additive noise is solved for, Gumbel-max noise drawn top-down, and so on.

    It needs evidence that is complete where it matters: the parents of every observed node are observed,
    or follow without noise from observed ones. Nodes below all evidence keep their prior.
    """

    def refuses(self, scm: SCM, observed: Collection[str]) -> str | None:
        """Names the first observed node whose parents are open, or whose mechanism cannot be inverted."""
        known = _known(scm, observed)
        for name in observed:
            if reason := _cannot_invert(scm, name):
                return reason
            if open_parents := [parent for parent in scm.graph[name] if parent not in known]:
                return f"'{name}' is observed but its parents {open_parents} are not"
        return None

    def __call__(self, key: Array, scm: SCM, evidence: Evidence, num_samples: int) -> Posterior:
        """One draw where the noise is determined, else `num_samples` of equal weight."""
        determined = all(
            _is_invertible(scm, name) if name in evidence else isinstance(scm.noise[name], Point) for name in scm.order
        )
        noise, log_weights = _ancestral_passes(key, scm, evidence, 1 if determined else num_samples)
        return Posterior(Empirical(noise, log_weights), exact=determined)


class Enumeration(eqx.Module):
    """Exact, for finite noise: every joint value of the noise is tried and weighted by its probability."""

    max_atoms: int = eqx.field(static=True, default=100_000)

    def refuses(self, scm: SCM, observed: Collection[str]) -> str | None:  # noqa: ARG002
        """Names the first infinite noise, or the number of values when there are too many."""
        for name, distribution in scm.noise.items():
            if not has(distribution, "atoms"):
                return f"the noise of '{name}' ({type(distribution).__name__}) is not finite"
        counts = [jax.eval_shape(d.atoms)[1].shape[0] for d in scm.noise.values()]
        total = int(np.prod(counts, dtype=object))
        return f"{total} joint noise values exceed max_atoms={self.max_atoms}" if total > self.max_atoms else None

    def __call__(self, key: Array, scm: SCM, evidence: Evidence, num_samples: int) -> Posterior:  # noqa: ARG002
        """All atoms; those that do not reproduce the evidence have weight zero."""
        noise, log_weights = scm.noise_prior.atoms()
        values = jax.vmap(scm.simulate)(noise)
        agrees = [jax.vmap(lambda v, e=e: _equal(v, e))(values[name]) for name, e in evidence.items()]
        consistent = jnp.stack([jnp.ones(log_weights.shape, bool), *agrees]).all(0)
        return Posterior(Empirical(noise, jnp.where(consistent, log_weights, -jnp.inf)), exact=True)


class ImportanceSampling(eqx.Module):
    """Likelihood weighting: unobserved noise from the prior, weighted by how well it explains the evidence.

    An observed discrete node that cannot be inverted is matched by rejection.
    """

    def refuses(self, scm: SCM, observed: Collection[str]) -> str | None:
        """Names the first observed continuous node that cannot be inverted."""
        shapes = scm.shapes
        for name in observed:
            if (reason := _cannot_invert(scm, name)) and not _is_discrete(shapes[name]):
                return reason
        return None

    def __call__(self, key: Array, scm: SCM, evidence: Evidence, num_samples: int) -> Posterior:
        """`num_samples` weighted draws."""
        noise, log_weights = _ancestral_passes(key, scm, evidence, num_samples)
        return Posterior(Empirical(noise, log_weights), exact=False)


class NUTS(eqx.Module):
    """The no-U-turn sampler (blackjax) over the unobserved, continuous noise; extra `mcmc`."""

    num_warmup: int = eqx.field(static=True, default=500)

    def refuses(self, scm: SCM, observed: Collection[str]) -> str | None:
        """Names the first observed node that cannot be inverted, or hidden noise that is not continuous."""
        for name in observed:
            if reason := _cannot_invert(scm, name):
                return reason
        for name in _hidden(scm, observed):
            if not has(scm.noise[name], "from_normal"):
                return f"the noise of '{name}' ({type(scm.noise[name]).__name__}) has no from_normal"
        return None

    def __call__(self, key: Array, scm: SCM, evidence: Evidence, num_samples: int) -> Posterior:
        """`num_samples` draws of equal weight, after warm-up."""
        key_fresh, key_start, key_chain = jax.random.split(key, 3)
        fresh = scm.noise_prior.draws(key_fresh, num_samples)
        hidden = _hidden(scm, evidence)
        shapes = scm.noise_shapes
        start = Independent({name: Normal(shape=shapes[name].shape) for name in hidden}).sample(key_start)

        def noise_of(walker: dict[str, Array], draw: Noise) -> Noise:
            return draw | {name: scm.noise[name].from_normal(walker[name]) for name in hidden}

        def log_density(walker: dict[str, Array]) -> Array:
            draw = jax.tree.map(lambda leaf: leaf[0], fresh)
            _, log_likelihood = _ancestral_pass(scm, evidence, noise_of(walker, draw))
            return log_likelihood + sum(Normal().log_prob(z) for z in walker.values())

        walkers = nuts_chain(key_chain, log_density, start, self.num_warmup, num_samples)
        noise, log_likelihood = jax.vmap(lambda w, f: _ancestral_pass(scm, evidence, noise_of(w, f)))(walkers, fresh)
        possible = jnp.where(jnp.isfinite(log_likelihood), 0.0, -jnp.inf)
        return Posterior(Empirical(noise, possible), exact=False)


ENGINES: dict[str, Abduction] = {
    "inversion": Inversion(),
    "enumeration": Enumeration(),
    "importance": ImportanceSampling(),
    "nuts": NUTS(),
}
"""Engines by name. `auto` takes the first of the first three that does not refuse."""


def choose(abduction: str | Abduction, scm: SCM, observed: Collection[str]) -> tuple[Abduction, str]:
    """The engine, and why it was chosen. `"auto"` prefers exact engines and never starts a Markov chain.

    >>> from coulda.mechanisms import additive, exogenous
    >>> scm = SCM({"C": Normal(), "E": Normal()},
    ...           {"C": exogenous(), "E": additive(("C",), lambda c: 4 * c)})
    >>> print(choose("auto", scm, ["E"])[1])
    importance, since inversion: 'E' is observed but its parents ['C'] are not;
    enumeration: the noise of 'C' (Normal) is not finite
    """
    if abduction == "auto":
        return _choose_automatically(scm, observed)
    if isinstance(abduction, str):
        if abduction not in ENGINES:
            raise SCMError(f"abduction='{abduction}' is unknown; choose from {['auto', *ENGINES]} or give an engine.")
        engine, name = ENGINES[abduction], abduction
    else:
        engine, name = abduction, type(abduction).__name__
    if reason := engine.refuses(scm, observed):
        raise SCMError(f"abduction by {name} cannot be used here: {reason}.")
    return engine, f"{name}, as asked"


def _choose_automatically(scm: SCM, observed: Collection[str]) -> tuple[Abduction, str]:
    refusals: list[str] = []
    for name in ("inversion", "enumeration", "importance"):
        reason = ENGINES[name].refuses(scm, observed)
        if reason is None:
            why = "exact for this evidence" if not refusals else f"since {'; '.join(refusals)}"
            return ENGINES[name], f"{name}, {why}"
        refusals.append(f"{name}: {reason}")
    raise SCMError(
        f"no engine can infer the noise from evidence on {sorted(observed)}: {'; '.join(refusals)}. "
        "Write the observed mechanism as additive, location_scale, gumbel_max, inverse_cdf or quantile."
    )


def _ancestral_passes(key: Array, scm: SCM, evidence: Evidence, n: int) -> tuple[Noise, Array]:
    return jax.vmap(lambda fresh: _ancestral_pass(scm, evidence, fresh))(scm.noise_prior.draws(key, n))


def _ancestral_pass(scm: SCM, evidence: Evidence, fresh: Noise) -> tuple[Noise, Array]:
    """Noise that reproduces the evidence, and log p(evidence | the unobserved noise).

    Args:
        scm: the model.
        evidence: one row.
        fresh: a draw of all noise. Unobserved nodes keep theirs; observed nodes move it to their posterior.
    """
    noise, values, log_likelihood = dict(fresh), {}, jnp.zeros(())
    for name, names in scm.graph.items():
        parents = tuple(values[parent] for parent in names)
        if name in evidence:
            values[name] = evidence[name]
            noise[name], term = _node_posterior(scm, name, parents, evidence[name], fresh[name])
            log_likelihood += term
        else:
            values[name] = scm.mechanisms[name](parents, noise[name])
    return noise, log_likelihood


def _node_posterior(scm: SCM, name: str, parents: tuple, value: Any, fresh: Noise) -> tuple[Noise, Array]:
    mechanism, prior = scm.mechanisms[name], scm.noise[name]
    if _has_posterior(scm, name):
        return mechanism.posterior(prior, parents, value, fresh)  # pyright: ignore[reportAttributeAccessIssue]
    if _is_affine(scm, name):
        return invert_affine(lambda u: mechanism(parents, u), prior, value, fresh)
    return fresh, jnp.where(_equal(mechanism(parents, fresh), value), 0.0, -jnp.inf)


def invert_affine(function: Callable[[Array], Array], prior: Any, value: Array, fresh: Array) -> tuple[Array, Array]:
    """U = J^{-1} (x - f(0)) for a function x = f(u) that is affine, J = ∂f/∂u, and the log-density of x."""

    def residual(noise: Array) -> Array:
        return (value - function(noise)).ravel()

    at_zero = jnp.zeros_like(fresh)
    jacobian = -jax.jacfwd(residual)(at_zero).reshape(value.size, fresh.size)
    if value.size == 1:
        slope = jacobian[0, 0]
        # A flat function says nothing of its noise: keep the prior, and ask only that the value fits.
        flat, safe = slope == 0, jnp.where(slope == 0, 1.0, slope)
        noise = (residual(at_zero) / safe).reshape(fresh.shape)
        density = prior.log_prob(noise) - jnp.log(jnp.abs(safe))
        fits = jnp.where(residual(fresh)[0] == 0, 0.0, -jnp.inf)
        return jnp.where(flat, fresh, noise), jnp.where(flat, fits, density)
    noise = jnp.linalg.solve(jacobian, residual(at_zero)).reshape(fresh.shape)
    return noise, prior.log_prob(noise) - jnp.linalg.slogdet(jacobian)[1]


def nuts_chain(key: Array, log_density, start: Any, num_warmup: int, num_samples: int) -> Any:
    """Positions `[num_samples, ...]` of one chain, step size and mass matrix adapted in warm-up."""
    blackjax: Any = require("blackjax", extra="mcmc")
    key_warmup, key_sample = jax.random.split(key)

    # blackjax mixes dtypes and ranks; a user who forbids that means their own code.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = warmup.run(key_warmup, start, num_steps=num_warmup)
        kernel = blackjax.nuts(log_density, **parameters).step

        def step(state: Any, key: Array) -> tuple[Any, Any]:
            state, _ = kernel(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(key_sample, num_samples))[1]


def _known(scm: SCM, observed: Collection[str]) -> set[str]:
    """Observed nodes, and those that follow from them without noise."""
    known: set[str] = set()
    for name, parents in scm.graph.items():
        if name in observed or (isinstance(scm.noise[name], Point) and known.issuperset(parents)):
            known.add(name)
    return known


def _hidden(scm: SCM, observed: Collection[str]) -> list[str]:
    """Nodes whose noise the evidence bears on without determining it: unobserved ancestors, with noise."""
    above = ancestors(scm.graph, observed)
    return [n for n in scm.order if n in above and n not in observed and not isinstance(scm.noise[n], Point)]


def _has_posterior(scm: SCM, name: str) -> bool:
    mechanism = scm.mechanisms[name]
    return isinstance(mechanism, Reparameterization) and isinstance(scm.noise[name], mechanism.noise_family)


def _is_invertible(scm: SCM, name: str) -> bool:
    if _has_posterior(scm, name):
        return scm.mechanisms[name].invertible  # pyright: ignore[reportAttributeAccessIssue]
    return _is_affine(scm, name)


def _cannot_invert(scm: SCM, name: str) -> str | None:
    if _has_posterior(scm, name) or _is_affine(scm, name):
        return None
    return f"the mechanism of '{name}' cannot be inverted for its noise"


def _is_affine(scm: SCM, name: str) -> bool:
    """Whether a plain mechanism can be solved for its noise: single arrays of one size, and affine."""
    noise, shapes = scm.noise_shapes[name], scm.shapes
    value = shapes[name]
    single = isinstance(noise, jax.ShapeDtypeStruct) and isinstance(value, jax.ShapeDtypeStruct)
    if not single or noise.size != value.size or not has(scm.noise[name], "log_prob"):
        return False
    mechanism = scm.mechanisms[name]
    parents = tuple(shapes[parent] for parent in mechanism.parents)
    return not _is_discrete(value) and affine_in(lambda u, given: mechanism(given, u), noise, parents)


def affine_in(function: Callable[[Any, Any], Any], noise: Any, given: Any) -> bool:
    """Whether f(u, given) = a(given) + B(given) u with B not zero, read off its own derivative.

    B is ∂f/∂u; the function is affine if the traced program for B does not use u. This is a property of
    the program, so it may say no to an affine function written in a roundabout way, but never a wrong yes.
    A function that takes separate values, such as u < 1/2, has no slope and cannot be solved for u.

    Args:
        function: of trees of arrays.
        noise: the shapes and dtypes of u.
        given: those of everything else.
    """
    if any(not jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(noise)):
        return False

    def directional(noise: Any, tangent: Any, given: Any) -> Any:
        return jax.jvp(lambda u: function(u, given), (noise,), (tangent,))[1]

    program = jax.make_jaxpr(directional)(noise, noise, given).jaxpr
    used, count = _used_variables(program), len(jax.tree.leaves(noise))
    return not used.intersection(program.invars[:count]) and bool(used.intersection(program.invars[count : 2 * count]))


def flat_in(function: Callable[[Any], Any], argument: Any) -> bool:
    """Whether a function is piecewise constant, read off its own derivative: the traced program for it uses no tangent.

    Like `affine_in` it may say no in error, never yes.

    >>> number = jax.ShapeDtypeStruct((), jnp.float32)
    >>> flat_in(lambda x: jnp.where(x > 1, 1.0, 0.0), number), flat_in(lambda x: 2 * x, number)
    (True, False)
    """
    numbers, others = eqx.partition(argument, lambda leaf: jnp.issubdtype(leaf.dtype, jnp.inexact))

    def directional(numbers: Any, tangent: Any, others: Any) -> Any:
        return jax.jvp(lambda x: function(eqx.combine(x, others)), (numbers,), (tangent,))[1]

    program = jax.make_jaxpr(directional)(numbers, numbers, others).jaxpr
    count = len(jax.tree.leaves(numbers))
    return not _used_variables(program).intersection(program.invars[count : 2 * count])


def _used_variables(program: Any) -> set[Any]:
    """Variables of a jaxpr that its outputs depend on."""
    used = {var for var in program.outvars if not hasattr(var, "val")}
    for equation in reversed(program.eqns):
        if used.intersection(equation.outvars):
            used.update(var for var in equation.invars if not hasattr(var, "val"))
    return used


def _is_discrete(shape: Any) -> bool:
    return all(not jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(shape))


def _equal(value: Any, evidence: Any) -> Array:
    same = jax.tree.map(lambda a, b: jnp.all(a == b), value, evidence)
    return jnp.stack(jax.tree.leaves(same)).all()
