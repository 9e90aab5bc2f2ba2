"""`SCM`: a DAG of deterministic mechanisms fed by independent noise (Definition 1)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx
import jax
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Independent, Noise, NoiseDistribution
from coulda.scm.drawing import Drawing, draw
from coulda.scm.graph import Graph, topological_order

Value = Any
"""The value of a node: a pytree of arrays."""


class SCMError(CouldaError):
    """A structural causal model, or a question to one, that makes no sense as written."""


class Mechanism(eqx.Module):
    """X_i = f_i(pa_i, U_i): a function of the parents' values, in order, and then the node's own noise.

    >>> Mechanism(("X", "H"), lambda x, h, u: 0.7 * x + 0.4 * h + u)((1.0, 2.0), 0.5)
    2.0
    """

    parents: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    function: Callable[..., Value]

    def __call__(self, parents: tuple[Value, ...], noise: Noise) -> Value:
        """The node's value for its parents' values and its noise."""
        return self.function(*parents, noise)


class SCM(eqx.Module):
    """Independent noise U_i ~ P(U_i) and mechanisms X_i = f_i(pa_i, U_i) on a DAG (Definition 1).

    Everything about the structure is checked when the model is built: names, parents, cycles and shapes.

    >>> from coulda.noise import Normal
    >>> scm = SCM(noise={"X": Normal(), "Y": Normal()},
    ...           mechanisms={"X": Mechanism((), lambda u: u), "Y": Mechanism(("X",), lambda x, u: 2 * x + u)})
    >>> {name: float(value) for name, value in scm.simulate({"X": 1.0, "Y": 0.5}).items()}
    {'X': 1.0, 'Y': 2.5}
    """

    noise: dict[str, NoiseDistribution]
    mechanisms: dict[str, Mechanism]
    order: tuple[str, ...] = eqx.field(static=True)
    intervened: tuple[tuple[str, str], ...] = eqx.field(static=True)
    """Nodes that an intervention has replaced, each with its label for the picture."""

    def __init__(
        self,
        noise: Mapping[str, NoiseDistribution],
        mechanisms: Mapping[str, Mechanism],
        *,
        intervened: Mapping[str, str] | None = None,
    ):
        _check_names(noise, mechanisms)
        try:
            self.order = topological_order({name: m.parents for name, m in mechanisms.items()})
        except CouldaError as error:
            raise SCMError(f"the mechanisms form a cycle: {error}. Remove one of these edges.") from None
        self.noise, self.mechanisms = dict(noise), dict(mechanisms)
        self.intervened = tuple((intervened or {}).items())
        _ = self.shapes  # traces every mechanism once: a wrong shape is refused here, by name

    @property
    def graph(self) -> Graph:
        """`{node: parents}`, causes first."""
        return {name: self.mechanisms[name].parents for name in self.order}

    @property
    def noise_prior(self) -> Independent:
        """P(U), the product of all nodes' noise distributions."""
        return Independent(self.noise)

    @property
    def noise_shapes(self) -> dict[str, Any]:
        """`{node: pytree of jax.ShapeDtypeStruct}` of the noise."""
        return jax.eval_shape(self.noise_prior.sample, jax.random.key(0))

    @property
    def shapes(self) -> dict[str, Any]:
        """`{node: pytree of jax.ShapeDtypeStruct}` of the values."""
        noise, values = self.noise_shapes, {}
        for name, names in self.graph.items():
            parents = tuple(values[parent] for parent in names)
            try:
                values[name] = jax.eval_shape(self.mechanisms[name].__call__, parents, noise[name])
            except Exception as error:
                received = {parent: values[parent] for parent in names} | {"noise": noise[name]}
                raise SCMError(f"mechanism '{name}' fails on its inputs {_describe(received)}: {error}") from error
        return values

    def simulate(self, noise: Mapping[str, Noise], known: Mapping[str, Value] | None = None) -> dict[str, Value]:
        """Every node's value for one draw of the noise. Nodes in `known` keep the value given there."""
        values: dict[str, Value] = {}
        for name, parents in self.graph.items():
            if known is not None and name in known:
                values[name] = known[name]
            else:
                values[name] = self.mechanisms[name](tuple(values[parent] for parent in parents), noise[name])
        return values

    @eqx.filter_jit
    def sample(self, key: Array, n: int) -> dict[str, Value]:
        """`n` independent draws of all nodes, each `[n, ...]`. Consumes `key`."""
        noise = self.noise_prior.draws(key, n)
        return jax.vmap(self.simulate)(noise)

    def draw(
        self,
        observed: Collection[str] = (),
        positions: Mapping[str, tuple[float, float]] | None = None,
    ) -> Drawing:
        """The graph in the style of the paper's Figure 1; see `Drawing.save`.

        Args:
            observed: nodes with evidence; their noise is drawn in grey.
            positions: (x, y) for some or all nodes, to place them by hand.
        """
        return draw(self.graph, self.noise, dict(self.intervened), observed, positions)


def _check_names(noise: Mapping[str, Any], mechanisms: Mapping[str, Any]) -> None:
    if not mechanisms:
        raise SCMError("an SCM needs at least one mechanism.")
    for name, mechanism in mechanisms.items():
        if not isinstance(mechanism, Mechanism):
            raise SCMError(f"mechanism '{name}' is a {type(mechanism).__name__}. Write `Mechanism(parents, function)`.")
        if name not in noise:
            raise SCMError(
                f"mechanism '{name}' has no noise entry; noise has {list(noise)}. "
                f"Add `{name}=`, or `Point()` for a node without noise."
            )
        if not isinstance(noise[name], NoiseDistribution):
            raise SCMError(f"the noise of '{name}' is a {type(noise[name]).__name__}, not a NoiseDistribution.")
        for parent in mechanism.parents:
            if parent not in mechanisms:
                raise SCMError(
                    f"mechanism '{name}' has an unknown parent '{parent}'; the nodes are {list(mechanisms)}."
                )
    if unused := [name for name in noise if name not in mechanisms]:
        raise SCMError(f"noise {unused} belongs to no mechanism; the nodes are {list(mechanisms)}.")


def _describe(shapes: Mapping[str, Any]) -> str:
    def leaf(shape: Any) -> str:
        return f"{shape.dtype}{list(shape.shape)}"

    return ", ".join(f"{name}: {jax.tree.map(leaf, shape)}" for name, shape in shapes.items())
