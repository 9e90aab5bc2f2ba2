"""Counterfactual inference, CFI (Algorithm 1): abduct the noise, intervene, predict on the same noise."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from coulda.abduction import Abduction, Evidence, Posterior, choose
from coulda.noise import Empirical, check_key, effective_sample_size, merge
from coulda.scm import SCM, Intervention, SCMError, do
from coulda.scm.graph import descendants

__all__ = ["Counterfactual", "counterfactual"]


class Counterfactual(eqx.Module):
    """The answer to a counterfactual query: p^{do(I) | evidence}(X_q) as weighted samples.

    With many rows of evidence every array has a leading `[rows]` axis.
    """

    samples: dict[str, Any]
    """`{node: [n, ...]}` for the queried nodes, under the intervention."""
    factual: dict[str, Any]
    """The same nodes on the same noise without the intervention."""
    noise: dict[str, Any]
    """The inferred noise `{node: [n, ...]}`."""
    log_weights: Array
    """`[n]`, normalized."""
    replay_error: Array
    """Largest |evidence - what the inferred noise gives|: rounding, or else a wrong posterior."""
    exact: bool = eqx.field(static=True)
    """Whether the weighted samples are the distribution itself, with no Monte Carlo error."""
    method: str = eqx.field(static=True)
    """The abduction engine, and why it was chosen."""

    def mean(self, node: str) -> Any:
        """E[X_node], had we done I."""
        return jax.tree.map(self._average, self.samples[node])

    def effect(self, node: str) -> Any:
        """E[X_node had we done I - X_node as it was], paired on the same noise."""
        return jax.tree.map(self._average, self._differences(node))

    def standard_error(self, node: str) -> Any:
        """Monte Carlo standard error of `mean`; zero when the answer is exact."""
        return jax.tree.map(self._standard_error, self.samples[node])

    def probability(self, node: str, value: Any) -> Array:
        """P(X_node = value), had we done I."""
        return self._average(self.samples[node] == value)

    @property
    def effective_sample_size(self) -> Array:
        """Kish's effective number of samples."""
        return effective_sample_size(jnp.exp(self.log_weights), axis=-1)

    def _differences(self, node: str) -> Any:
        return jax.tree.map(lambda a, b: a.astype(float) - b.astype(float), self.samples[node], self.factual[node])

    def _average(self, values: Array) -> Array:
        return _weighted_mean(self.log_weights, values)

    def _standard_error(self, values: Array) -> Array:
        error = _weighted_error(self.log_weights, values)
        return jnp.zeros_like(error) if self.exact else error


@jax.jit
def _weighted_mean(log_weights: Array, values: Array) -> Array:
    """Σ_i w_i x_i over the axis of the draws, the last of `log_weights`."""
    return jnp.sum(_weights_for(log_weights, values) * values.astype(float), axis=log_weights.ndim - 1)


@jax.jit
def _weighted_error(log_weights: Array, values: Array) -> Array:
    """√Σ_i w_i² (x_i - mean)²."""
    axis = log_weights.ndim - 1
    deviation = values.astype(float) - jnp.expand_dims(_weighted_mean(log_weights, values), axis)
    return jnp.sqrt(jnp.sum((_weights_for(log_weights, values) * deviation) ** 2, axis=axis))


def _weights_for(log_weights: Array, values: Array) -> Array:
    """The weights with axes of length 1 for those that a value has."""
    return jnp.exp(log_weights).reshape(log_weights.shape + (1,) * (values.ndim - log_weights.ndim))


def counterfactual(
    key: Array,
    scm: SCM,
    evidence: Evidence,
    intervention: Intervention | None = None,
    query: Collection[str] | None = None,
    *,
    abduction: str | Abduction = "auto",
    num_samples: int = 1000,
    resample: Collection[str] = (),
) -> Counterfactual:
    """What would `query` have been, had we done `intervention`, given what was observed (Algorithm 1, CFI)?

    Nodes that the intervention cannot reach keep their factual values, bit for bit.

    Args:
        key: consumed by abduction, and by noise that is drawn afresh.
        scm: the model.
        evidence: observed values, `{node: value}`, of any subset of the nodes; or many rows of them, each
            value with one leading axis, answered by one compiled program.
        intervention: `do(...)`; without one, the posterior over the query itself.
        query: nodes to return; all by default.
        abduction: "auto", "inversion", "enumeration", "importance", "nuts", or an engine of your own.
        num_samples: how many draws, where the engine draws.
        resample: nodes whose noise is drawn from the prior instead of the posterior (Corollary 2).

    >>> import jax
    >>> from coulda import SCM, Mechanism, Normal, do
    >>> joe = SCM(noise={"X": Normal(), "H": Normal(), "Y": Normal()},
    ...           mechanisms={"X": Mechanism((), lambda u: u),
    ...                       "H": Mechanism(("X",), lambda x, u: 0.5 * x + u),
    ...                       "Y": Mechanism(("X", "H"), lambda x, h, u: 0.7 * x + 0.4 * h + u)})
    >>> result = counterfactual(jax.random.key(0), joe, {"X": 0.5, "H": 1.0, "Y": 1.5}, do(H=2.0), ["Y"])
    >>> round(float(result.mean("Y")), 4), float(result.standard_error("Y")), result.method
    (1.9, 0.0, 'inversion, exact for this evidence')
    """
    check_key(key)
    evidence = {name: jax.tree.map(partial(_finite, name), value) for name, value in evidence.items()}
    intervention = do() if intervention is None else intervention
    nodes = None if query is None else tuple(query)
    answer, possible = _answer(key, scm, evidence, intervention, nodes, abduction, num_samples, frozenset(resample))
    _refuse_impossible(np.asarray(possible), evidence)
    return answer


@eqx.filter_jit
def _answer(key, scm, evidence, intervention, query, abduction, num_samples, resample) -> tuple[Counterfactual, Array]:
    """All rows. Everything about structure is checked here, while the program is traced, and so only once."""
    query = scm.order if query is None else query
    for what, names in (("query", query), ("resample", resample)):
        if unknown := [name for name in names if name not in scm.mechanisms]:
            raise SCMError(f"{what}: unknown node {unknown}; the nodes are {list(scm.order)}.")
    evidence, rows = _check_evidence(scm, evidence)
    engine, method = choose(abduction, scm, tuple(evidence))

    def infer(key: Array, row: Evidence) -> tuple[Counterfactual, Array]:
        return _infer(key, row, scm, intervention, engine, method, query, resample, num_samples)

    return infer(key, evidence) if rows is None else jax.vmap(infer)(jax.random.split(key, rows), evidence)


def _infer(key, evidence, scm, intervention, engine, method, query, resample, n) -> tuple[Counterfactual, Array]:
    """One row: abduct, intervene, predict. Also whether any draw explains the evidence."""
    key_abduct, key_fresh = jax.random.split(key)
    posterior: Posterior = engine(key_abduct, scm, evidence, n)
    intervened = intervention(scm)
    factual_noise, log_weights = posterior.noise.values, posterior.noise.log_weights
    noise = factual_noise
    if fresh := resample | intervention.fresh_noise.keys():
        factual_noise, noise = _refresh(key_fresh, posterior.noise, intervened, fresh, n)
        log_weights = jnp.full(n, log_weights.max())
    # Everything that the intervention and the fresh noise cannot reach stays as it was.
    changed = descendants(intervened.graph, fresh | intervention.targets.keys())
    factual = jax.vmap(lambda u: scm.simulate(u, known=evidence))(factual_noise)
    unchanged = {name: value for name, value in factual.items() if name not in changed}
    predicted = jax.vmap(intervened.simulate)(noise, unchanged)
    answer = Counterfactual(
        samples={name: predicted[name] for name in query},
        factual={name: factual[name] for name in query},
        noise=noise,
        log_weights=jax.nn.log_softmax(log_weights),
        replay_error=_replay_error(scm, factual_noise, log_weights, evidence),
        exact=posterior.exact and not fresh,
        method=method,
    )
    return answer, jnp.isfinite(log_weights.max())


def _refresh(key: Array, posterior: Empirical, intervened: SCM, fresh: frozenset[str], n: int) -> tuple[Any, Any]:
    """`n` posterior draws, and the same with the noise in `fresh` from the intervened prior (Corollary 2)."""
    key_posterior, key_prior = jax.random.split(key)
    inferred = posterior.draws(key_posterior, n)
    return inferred, merge(intervened.noise_prior.draws(key_prior, n), inferred, fresh)


def _replay_error(scm: SCM, noise: Any, log_weights: Array, evidence: Evidence) -> Array:
    """Largest |simulated - observed| over the draws that have weight."""

    def error(draw: Any) -> Array:
        values = scm.simulate(draw)
        gaps = [jax.tree.map(_largest_gap, values[name], value) for name, value in evidence.items()]
        return jnp.max(jnp.stack([jnp.zeros(()), *jax.tree.leaves(gaps)]))

    return jnp.max(jnp.where(jnp.isfinite(log_weights), jax.vmap(error)(noise), 0.0))


def _largest_gap(value: Array, other: Array) -> Array:
    return jnp.max(jnp.abs(value.astype(float) - other.astype(float)))


def _check_evidence(scm: SCM, evidence: Evidence) -> tuple[dict[str, Any], int | None]:
    """Evidence in the nodes' dtypes, and the number of rows (None for a single one)."""
    if unknown := [name for name in evidence if name not in scm.mechanisms]:
        raise SCMError(f"evidence on unknown node {unknown}; the nodes are {list(scm.order)}.")
    shapes, arrays, rows = scm.shapes, {}, set()
    for name, value in evidence.items():
        if jax.tree.structure(value) != jax.tree.structure(shapes[name]):
            raise SCMError(f"evidence on '{name}' is {jax.tree.structure(value)}; the node is {shapes[name]}.")
        arrays[name] = jax.tree.map(partial(_cast, name), value, shapes[name])
        rows |= set(jax.tree.leaves(jax.tree.map(partial(_rows, name), arrays[name], shapes[name])))
    if len(rows) > 1:
        raise SCMError(f"evidence has different numbers of rows: {sorted(rows)}. Give every node the same.")
    count = rows.pop() if rows else 0
    return arrays, count or None


def _finite(name: str, value: Any) -> Array:
    array = jnp.asarray(value)
    if not isinstance(array, Tracer) and not np.isfinite(np.asarray(array)).all():
        raise SCMError(f"evidence on '{name}' is not finite. Drop those rows, or leave the node unobserved.")
    return array


def _cast(name: str, array: Array, shape: jax.ShapeDtypeStruct) -> Array:
    if not jnp.can_cast(array.dtype, shape.dtype, casting="same_kind"):
        raise SCMError(f"evidence on '{name}' is {array.dtype}, but the node is {shape.dtype}.")
    return array.astype(shape.dtype)


def _rows(name: str, array: Array, shape: jax.ShapeDtypeStruct) -> int:
    """The length of the leading axis that the evidence has over and above the node, 0 for none."""
    if array.shape == shape.shape:
        return 0
    if array.shape[1:] == shape.shape and array.shape[0] > 0 and array.ndim == len(shape.shape) + 1:
        return array.shape[0]
    raise SCMError(f"evidence on '{name}' has shape {array.shape}; the node is {shape.shape}, or [rows, …] of it.")


def _refuse_impossible(possible: np.ndarray, evidence: Mapping[str, Any]) -> None:
    if possible.all():
        return
    bad = np.flatnonzero(~np.atleast_1d(possible))
    row = {
        name: np.asarray(value if possible.ndim == 0 else value[bad[0]]).tolist() for name, value in evidence.items()
    }
    rows = "" if possible.ndim == 0 else f" in {bad.size} of {possible.size} rows, the first of them row {bad[0]}"
    raise SCMError(
        f"the evidence has probability zero under the model (or no draw explains it){rows}: {row}. "
        "Check the values, or raise num_samples."
    )
