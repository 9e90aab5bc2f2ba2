"""Out the other way: a policy of ours as a function of NumPy's, as a folder that needs no JAX, or as an ONNX file."""

import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.extend.core import Jaxpr, Literal, Var

from coulda.errors import CouldaError
from coulda.noise import Categorical, Normal
from coulda.policies import act
from coulda.policies.host import HostPolicy
from coulda.policies.logged import LoggedPolicy
from coulda.pomdp import Policy
from coulda.storage import Kind, write_artifact

INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
"""Operations that only hold others."""
COPIED = ("stop_gradient", "optimization_barrier", "copy", "copy_p", "reduce_precision")
"""Operations that change no number."""


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: str
    """The name of its class."""


_KIND = Kind("act", 1, _Metadata)


def numpy_policy(policy: Policy, observation_space: gymnasium.Space, seed: int | None = None) -> act.Act:
    """The policy as `action, state = act(observation, state, reward)`, run by NumPy.

    It draws the actions of the policy's own distribution, seeded by `seed`.

    >>> from coulda.policies import TabularPolicy
    >>> act = numpy_policy(TabularPolicy([[0.0, 1.0], [1.0, 0.0]]), gymnasium.spaces.Discrete(2))
    >>> act(1)
    (np.int32(0), ([], np.int32(0)))
    """
    return act.Act(*_traced(policy, observation_space), seed)


def export_policy(path: Path | str, policy: Policy, observation_space: gymnasium.Space) -> None:
    """Commit a policy at `path`, a folder that must not exist yet, with all that is needed to act but NumPy.

    There, `from folder.act import load` and `act = load()` give what `numpy_policy` gives.
    """
    program, weights = _traced(policy, observation_space)
    kept = io.BytesIO()
    np.savez(kept, allow_pickle=False, **weights)
    parts = [
        ("act.py", Path(act.__file__).read_bytes()),
        ("program.json", json.dumps(program, default=int).encode()),
        ("weights.npz", kept.getvalue()),
    ]
    write_artifact(Path(path), _KIND, parts, _Metadata(type(policy).__name__))


def _traced(policy: Policy, observation_space: gymnasium.Space) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The policy's programs and weights, as `Act` takes them."""
    if isinstance(policy, HostPolicy | LoggedPolicy):
        raise CouldaError(f"a {type(policy).__name__} is somebody else's, and runs outside of JAX already.")
    carry, observation = policy.initial_carry(), jax.tree.map(jnp.asarray, observation_space.sample())
    weights = {f"initial_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    initial = list(weights)
    call, (_, distribution) = jax.make_jaxpr(policy, return_shape=True)(carry, observation)
    discrete = isinstance(distribution, Categorical)
    if not discrete and not isinstance(distribution, Normal):
        raise CouldaError(
            f"the policy gives a {type(distribution).__name__}; only Categorical and Normal are exported."
        )
    action = jnp.int32(0) if discrete else jnp.zeros(distribution.shape)
    remember = jax.make_jaxpr(policy.remember)(carry, action, jnp.float32(0))
    programs = {name: _Program(name, weights).of(found) for name, found in (("call", call), ("remember", remember))}
    looks = programs["remember"]["inputs"][-1] in _read(programs["remember"])
    leaves = jax.tree.leaves(observation)
    return {
        "family": "categorical" if discrete else "normal",
        "shape": list(distribution.logits.shape if discrete else distribution.shape),
        "observation": [[str(leaf.dtype), list(leaf.shape)] for leaf in leaves],
        "initial": initial,
        "looks at rewards": looks,
        **programs,
    }, weights


def _read(program: dict[str, Any]) -> set[int]:
    return {number for _, _, read, _ in program["operations"] for number in read} | set(program["outputs"])


class _Program:
    """One traced function as plain data; its constants go to `weights`."""

    def __init__(self, name: str, weights: dict[str, np.ndarray]):
        self.name, self.weights = name, weights
        self.numbers: dict[Var, int] = {}
        self.constants: dict[str, str] = {}
        self.operations: list[Any] = []
        self.count = 0

    def of(self, closed: Any) -> dict[str, Any]:
        """The program, without what none of its outputs needs."""
        inputs = [self._new(var) for var in closed.jaxpr.invars]
        for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            self.numbers[var] = self._constant(value)
        self._add(closed.jaxpr)
        outputs = [self._number(var) for var in closed.jaxpr.outvars]
        operations, needed = [], set(outputs)
        for operation in reversed(self.operations):
            if needed & set(operation[3]):
                needed |= set(operation[2])
                operations.insert(0, operation)
        constants = {number: name for number, name in self.constants.items() if int(number) in needed}
        for name in set(self.constants.values()) - set(constants.values()):
            del self.weights[name]
        return {"inputs": inputs, "constants": constants, "operations": operations, "outputs": outputs}

    def _add(self, jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if name in INLINED:
                self._inline(equation)
            elif name in COPIED:
                for source, target in zip(equation.invars, equation.outvars, strict=True):
                    self.numbers[target] = self._number(source)
            elif name in act.OPERATIONS:
                read = [self._number(var) for var in equation.invars]
                written = [self._new(var) for var in equation.outvars]
                self.operations.append([name, _parameters(name, equation.params), read, written])
            else:
                raise CouldaError(
                    f"the policy uses the operation '{name}', which NumPy is not taught (coulda.policies.act); write "
                    f"it with others. Those that are known are {', '.join(sorted(act.OPERATIONS))}."
                )

    def _inline(self, equation: Any) -> None:
        inner = next(equation.params[key] for key in ("jaxpr", "call_jaxpr") if key in equation.params)
        jaxpr, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
        for var, value in zip(jaxpr.constvars, constants, strict=True):
            self.numbers[var] = self._constant(value)
        for var, outer in zip(jaxpr.invars, equation.invars, strict=True):
            self.numbers[var] = self._number(outer)
        self._add(jaxpr)
        for var, inside in zip(equation.outvars, jaxpr.outvars, strict=True):
            self.numbers[var] = self._number(inside)

    def _new(self, var: Any) -> int:
        self.numbers[var] = self.count = self.count + 1
        return self.count

    def _number(self, var: Any) -> int:
        if not isinstance(var, Literal):
            return self.numbers[var]
        aval: Any = var.aval
        return self._constant(np.asarray(var.val, aval.dtype))

    def _constant(self, value: Any) -> int:
        self.count += 1
        name = f"{self.name}_{self.count}"
        self.weights[name], self.constants[str(self.count)] = np.asarray(value), name
        return self.count


def _parameters(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Those that say what is computed, in the types of JSON."""
    if name == "gather":
        return _gather_parameters(found)
    arguments = {
        "argmax": ("axes", "index_dtype"),
        "argmin": ("axes", "index_dtype"),
        "broadcast_in_dim": ("shape", "broadcast_dimensions"),
        "concatenate": ("dimension",),
        "convert_element_type": ("new_dtype",),
        "cumprod": ("axis", "reverse"),
        "cumsum": ("axis", "reverse"),
        "dot_general": ("dimension_numbers",),
        "dynamic_slice": ("slice_sizes",),
        "integer_pow": ("y",),
        "iota": ("dtype", "shape", "dimension"),
        "reshape": ("new_sizes",),
        "rev": ("dimensions",),
        "slice": ("start_indices", "limit_indices", "strides"),
        "split": ("sizes", "axis"),
        "squeeze": ("dimensions",),
        "stack": ("axis",),
        "transpose": ("permutation",),
    }
    names = ("axes",) if name.startswith("reduce_") else arguments.get(name, ())
    return {key: str(found[key]) if key.endswith("dtype") else found[key] for key in names}


def _gather_parameters(found: dict[str, Any]) -> dict[str, Any]:
    numbers = found["dimension_numbers"]
    if numbers.operand_batching_dims:
        raise CouldaError("the policy indexes an array inside of a vmap, which NumPy is not taught; index it outside.")
    return {
        "offset_dims": numbers.offset_dims,
        "collapsed": numbers.collapsed_slice_dims,
        "start_map": numbers.start_index_map,
        "slice_sizes": found["slice_sizes"],
        "fill": found["mode"].name == "FILL_OR_DROP",
    }
