"""Counterfactual inference, CFI (Algorithm 1): abduct the noise, intervene, predict on the same noise."""

from collections.abc import Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from coulda.abduction import Abduction, Evidence, Posterior, choose
from coulda.noise import Empirical, merge
from coulda.scm import SCM, Intervention, SCMError, do
from coulda.scm.graph import descendants


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
    """Largest difference between the evidence and what the inferred noise gives: rounding, or a wrong posterior."""
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

    def effect_standard_error(self, node: str) -> Any:
        """Monte Carlo standard error of `effect`."""
        return jax.tree.map(self._standard_error, self._differences(node))

    def probability(self, node: str, value: Any) -> Array:
        """P(X_node = value), had we done I."""
        return self._average(self.samples[node] == value)

    @property
    def effective_sample_size(self) -> Array:
        """Kish's effective number of samples."""
        return jnp.exp(-jax.scipy.special.logsumexp(2 * self.log_weights, axis=-1))

    def _differences(self, node: str) -> Any:
        return jax.tree.map(
            lambda a, b: a.astype(float) - b.astype(float), self.samples[node], self.factual[node]
        )

    def _average(self, values: Array) -> Array:
        return jnp.sum(self._weights_for(values) * values.astype(float), axis=self.log_weights.ndim - 1)

    def _standard_error(self, values: Array) -> Array:
        if self.exact:
            return jnp.zeros_like(self._average(values))
        deviation = values.astype(float) - jnp.expand_dims(self._average(values), self.log_weights.ndim - 1)
        terms = (self._weights_for(values) * deviation) ** 2
        return jnp.sqrt(jnp.sum(terms, axis=self.log_weights.ndim - 1))

    def _weights_for(self, values: Array) -> Array:
        extra = (1,) * (values.ndim - self.log_weights.ndim)
        return jnp.exp(self.log_weights).reshape(self.log_weights.shape + extra)


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
    intervention = do() if intervention is None else intervention
    query = tuple(scm.order if query is None else query)
    for what, names in (("query", query), ("resample", resample)):
        if unknown := [name for name in names if name not in scm.mechanisms]:
            raise SCMError(f"{what}: unknown node {unknown}; the nodes are {list(scm.order)}.")
    evidence, rows = _check_evidence(scm, evidence)
    engine, method = choose(abduction, scm, tuple(evidence))
    fresh = frozenset(resample) | frozenset(intervention.fresh_noise)
    infer = _infer if rows is None else _infer_rows
    keys = key if rows is None else jax.random.split(key, rows)
    *answer, exact, possible = infer(keys, evidence, scm, intervention, engine, query, fresh, num_samples)
    _refuse_impossible(np.asarray(possible), evidence)
    return Counterfactual(*answer, exact=exact, method=method)


@eqx.filter_jit
def _infer(key, evidence, scm, intervention, engine, query, fresh, num_samples):
    """One row: abduct, intervene, predict."""
    key_abduct, key_fresh = jax.random.split(key)
    posterior: Posterior = engine(key_abduct, scm, evidence, num_samples)
    intervened = intervention(scm)
    noise, weights = posterior.noise.values, posterior.noise.log_weights
    counterfactual_noise = noise
    if fresh:
        noise, weights, counterfactual_noise = _refresh(
            key_fresh, posterior.noise, intervened, fresh, num_samples
        )
    # Everything that the intervention and the fresh noise cannot reach stays as it was.
    changed = descendants(intervened.graph, fresh | intervention.targets.keys())
    factual = jax.vmap(lambda u: scm.simulate(u, known=evidence))(noise)
    unchanged = {name: value for name, value in factual.items() if name not in changed}
    predicted = jax.vmap(lambda u, known: intervened.simulate(u, known))(counterfactual_noise, unchanged)
    log_weights = jax.nn.log_softmax(weights)
    return (
        {name: predicted[name] for name in query},
        {name: factual[name] for name in query},
        counterfactual_noise,
        log_weights,
        _replay_error(scm, noise, log_weights, evidence),
        posterior.exact and not fresh,
        jnp.isfinite(jax.scipy.special.logsumexp(weights)),
    )


@eqx.filter_jit
def _infer_rows(keys, evidence, scm, intervention, engine, query, fresh, num_samples):
    exact = None

    def one(key, row):
        nonlocal exact
        *arrays, exact, possible = _infer(key, row, scm, intervention, engine, query, fresh, num_samples)
        return *arrays, possible

    *arrays, possible = jax.vmap(one)(keys, evidence)
    return *arrays, exact, possible


def _refresh(key: Array, posterior: Empirical, intervened: SCM, fresh: frozenset[str], n: int):
    """`n` draws with the noise named in `fresh` from the prior of the intervened model (Corollary 2)."""
    key_posterior, key_prior = jax.random.split(key)
    noise = jax.vmap(posterior.sample)(jax.random.split(key_posterior, n))
    prior = jax.vmap(intervened.noise_prior.sample)(jax.random.split(key_prior, n))
    possible = jnp.where(jnp.isfinite(posterior.log_weights).any(), 0.0, -jnp.inf)
    return noise, jnp.full(n, possible), merge(prior, noise, fresh)


def _replay_error(scm: SCM, noise: Any, log_weights: Array, evidence: Evidence) -> Array:
    """Largest |simulated - observed| over the draws that have weight."""
    replayed = jax.vmap(scm.simulate)(noise)

    def error(simulated: Array, observed: Array) -> Array:
        gap = (
            jnp.abs(simulated.astype(float) - observed.astype(float)).reshape(log_weights.shape[0], -1).max(1)
        )
        return jnp.max(jnp.where(jnp.isfinite(log_weights), gap, 0.0))

    errors = [jax.tree.map(error, replayed[name], value) for name, value in evidence.items()]
    return jnp.max(jnp.stack([jnp.zeros(()), *jax.tree.leaves(errors)]))


def _check_evidence(scm: SCM, evidence: Evidence) -> tuple[dict[str, Any], int | None]:
    """Evidence as arrays of the nodes' dtypes, and the number of rows (None for a single one)."""
    if unknown := [name for name in evidence if name not in scm.mechanisms]:
        raise SCMError(f"evidence on unknown node {unknown}; the nodes are {list(scm.order)}.")
    shapes, arrays, rows = scm.shapes, {}, set()
    for name, value in evidence.items():
        arrays[name] = jax.tree.map(lambda v, s, name=name: _as_node(name, v, s), value, shapes[name])
        pairs = zip(jax.tree.leaves(arrays[name]), jax.tree.leaves(shapes[name]), strict=True)
        rows |= {_rows(name, array, shape) for array, shape in pairs}
    if len(rows) > 1:
        raise SCMError(
            f"evidence has different numbers of rows: {rows}. Give every node the same leading axis."
        )
    return arrays, (rows.pop() if rows else None)


def _as_node(name: str, value: Any, shape: jax.ShapeDtypeStruct) -> Array:
    array = jnp.asarray(value)
    if not jnp.can_cast(array.dtype, shape.dtype, casting="same_kind"):
        raise SCMError(f"evidence on '{name}' is {array.dtype}, but the node is {shape.dtype}.")
    if not isinstance(array, Tracer) and not bool(jnp.isfinite(array.astype(float)).all()):
        raise SCMError(f"evidence on '{name}' is not finite. Drop the rows, or leave the node unobserved.")
    return array.astype(shape.dtype)


def _rows(name: str, array: Array, shape: jax.ShapeDtypeStruct) -> int | None:
    if array.shape == shape.shape:
        return None
    if array.shape[1:] == shape.shape and array.ndim == len(shape.shape) + 1:
        return array.shape[0]
    raise SCMError(
        f"evidence on '{name}' has shape {array.shape}; the node is {shape.shape}, or [rows, …] of it."
    )


def _refuse_impossible(possible: np.ndarray, evidence: Mapping[str, Any]) -> None:
    if possible.all():
        return
    bad = np.flatnonzero(~np.atleast_1d(possible))
    row = jax.tree.map(lambda v: v if possible.ndim == 0 else v[bad[0]], dict(evidence))
    where = (
        "the evidence" if possible.ndim == 0 else f"{bad.size} rows of evidence, the first is row {bad[0]}:"
    )
    raise SCMError(
        f"{where} { ({name: np.asarray(value).tolist() for name, value in row.items()}) } has probability zero under the "
        "model (or none of the draws explains it). Check the values, or raise num_samples."
    )
