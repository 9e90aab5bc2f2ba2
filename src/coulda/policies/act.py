"""A policy that acts without JAX: its traced program, run by NumPy. This file needs nothing else of coulda.

`coulda export` puts a copy of it beside a policy's program and weights, so that where the policy is used a folder and
NumPy are enough:

    from found.act import load  # the folder is `found`

    act, state = load(seed=0), None
    action, state = act(observation, state, reward)
"""

import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np


def load(folder: Any = None, seed: int | None = None) -> "Act":
    """The policy in a folder, by default the one in which this file lies; `seed` is of the actions that it draws."""
    folder = Path(__file__).parent if folder is None else Path(folder)
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    found = {}
    for name in ("program.json", "weights.npz"):
        found[name] = (folder / name).read_bytes()
        if hashlib.sha256(found[name]).hexdigest() != parts[name]["sha256"]:
            raise ValueError(f"{folder / name} is not what was written; export the policy again")
    with np.load(io.BytesIO(found["weights.npz"]), allow_pickle=False) as weights:
        return Act(json.loads(found["program.json"]), dict(weights), seed)


class Act:
    """Draws actions: `action, state = act(observation, state, reward)`, where `state` is None at first.

    The state is what the policy remembers, and what it did last; `reward` is what it was paid for that, and may be left
    out where the policy does not look at it.
    """

    def __init__(self, program: dict[str, Any], weights: dict[str, np.ndarray], seed: int | None = None):
        self.program, self.weights, self.random = program, weights, np.random.default_rng(seed)

    def __call__(self, observation: Any, state: Any = None, reward: float | None = None) -> tuple[Any, Any]:
        """An action, and the state after it."""
        answer, carry = self.distribution(observation, state, reward)
        if self.program["family"] == "categorical":
            action = np.int32(self.random.choice(len(answer), p=answer))
        else:
            mean, scale = answer
            action = (mean + scale * self.random.standard_normal(mean.shape)).astype(np.float32)
        return action, (carry, action)

    def distribution(self, observation: Any, state: Any = None, reward: float | None = None) -> tuple[Any, list[Any]]:
        """Probabilities of discrete actions `[A]`, or (mean, scale); and what is remembered after the observation."""
        carry = self._remembered(state, reward)
        outputs = run(self.program["call"], self.weights, [*carry, *self._leaves(observation)])
        count = len(self.program["initial"])
        carry, answer = outputs[:count], outputs[count:]
        if self.program["family"] != "categorical":
            return tuple(np.broadcast_to(part, self.program["shape"]) for part in answer), carry
        logits = answer[0].astype(np.float64)
        exp = np.exp(logits - logits.max())
        if not np.isfinite(exp).all():
            raise ValueError(f"the policy does not know the observation {observation!r}")
        return exp / exp.sum(), carry

    def _remembered(self, state: Any, reward: float | None) -> list[Any]:
        if state is None:
            return [self.weights[name] for name in self.program["initial"]]
        carry, action = state
        if reward is None and self.program["looks at rewards"]:
            raise ValueError(
                "this policy looks at rewards; give that of the last action: act(observation, state, reward)"
            )
        return run(self.program["remember"], self.weights, [*carry, action, np.float32(reward or 0)])

    def _leaves(self, observation: Any) -> list[np.ndarray]:
        expected, found = self.program["observation"], _flat(observation)
        if len(found) != len(expected):
            raise ValueError(f"an observation has {len(expected)} arrays; got {len(found)}")
        arrays = [np.asarray(leaf, dtype) for leaf, (dtype, _) in zip(found, expected, strict=True)]
        for array, (dtype, shape) in zip(arrays, expected, strict=True):
            if list(array.shape) != shape:
                raise ValueError(f"an observation is {dtype}{shape}; got {list(array.shape)}")
        return arrays


def run(program: dict[str, Any], weights: dict[str, np.ndarray], inputs: list[Any]) -> list[np.ndarray]:
    """The outputs of a program: a list of (operation, its parameters, the numbers of its inputs and outputs)."""
    values: dict[int, Any] = dict(zip(program["inputs"], inputs, strict=True))
    values |= {int(number): weights[name] for number, name in program["constants"].items()}
    with np.errstate(all="ignore"):  # infinite logits are zero probabilities
        for name, parameters, read, written in program["operations"]:
            found = OPERATIONS[name](*(values[number] for number in read), **parameters)
            values |= dict(zip(written, found if isinstance(found, list) else [found], strict=True))
    return [np.asarray(values[number]) for number in program["outputs"]]


def _flat(tree: Any) -> list[Any]:
    """Arrays of an observation in JAX's order."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _flat(tree[key])]
    return [leaf for part in tree for leaf in _flat(part)] if isinstance(tree, tuple) else [tree]


def _quotient(x: Any, y: Any) -> Any:
    return (
        x / y if np.asarray(x).dtype.kind == "f" else np.trunc(x / np.where(y == 0, 1, y)).astype(np.asarray(x).dtype)
    )


def _broadcast(x: Any, shape: list[int], broadcast_dimensions: list[int]) -> Any:
    sizes = [1] * len(shape)
    for size, dimension in zip(np.shape(x), broadcast_dimensions, strict=True):
        sizes[dimension] = size
    return np.broadcast_to(np.reshape(x, sizes), shape)


def _dot(x: Any, y: Any, dimension_numbers: Any) -> Any:
    (left, right), (left_batch, right_batch) = dimension_numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names_x, names_y = [next(letters) for _ in x.shape], [next(letters) for _ in y.shape]
    for i, j in zip([*left, *left_batch], [*right, *right_batch], strict=True):
        names_y[j] = names_x[i]
    batch = [names_x[i] for i in left_batch]
    free = [n for i, n in enumerate(names_x) if i not in (*left, *left_batch)]
    free += [n for i, n in enumerate(names_y) if i not in (*right, *right_batch)]
    return np.einsum(f"{''.join(names_x)},{''.join(names_y)}->{''.join(batch + free)}", x, y)


def _slice(x: Any, start_indices: list[int], limit_indices: list[int], strides: list[int] | None) -> Any:
    steps = strides or [1] * len(start_indices)
    return x[tuple(slice(*part) for part in zip(start_indices, limit_indices, steps, strict=True))]


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: list[int]) -> Any:
    first = [int(np.clip(s, 0, n - size)) for s, n, size in zip(starts, x.shape, slice_sizes, strict=True)]
    return x[tuple(slice(s, s + size) for s, size in zip(first, slice_sizes, strict=True))]


def _dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    first = [int(np.clip(s, 0, n - size)) for s, n, size in zip(starts, x.shape, update.shape, strict=True)]
    found = np.array(x)
    found[tuple(slice(s, s + size) for s, size in zip(first, update.shape, strict=True))] = update
    return found


def _gather(
    x: Any, indices: Any, offset_dims: Any, collapsed: Any, start_map: Any, slice_sizes: Any, fill: bool
) -> Any:
    """As XLA defines it: a slice of x for every row of indices."""
    batch = indices.shape[:-1]
    kept = [size for dimension, size in enumerate(slice_sizes) if dimension not in collapsed]
    found = np.empty((*batch, *kept), x.dtype)
    for place in np.ndindex(*batch):
        starts = [0] * x.ndim
        for dimension, start in zip(start_map, indices[place], strict=True):
            starts[dimension] = int(start)
        inside = all(0 <= s <= n - size for s, n, size in zip(starts, x.shape, slice_sizes, strict=True))
        part = _dynamic_slice(x, *starts, slice_sizes=slice_sizes).reshape(kept)
        found[place] = part if inside or not fill else (np.nan if x.dtype.kind == "f" else 0)
    rest = [i for i in range(found.ndim) if i not in offset_dims]
    order = np.argsort([*rest, *offset_dims])
    return found.transpose(order)


def _convolve(x: Any, kernel: Any) -> Any:
    """Over [height, width, channels], zeros around it."""
    size = kernel.shape[0] // 2
    padded = np.pad(x, [(size, size), (size, size), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[:2], axis=(0, 1))
    return np.einsum("hwiyx,yxio->hwo", windows, kernel)


def _over(function: Any) -> Any:
    return lambda x, axes: function(x, axis=tuple(axes))


def _cumulative(function: Any) -> Any:
    def along(x: Any, axis: int, reverse: bool) -> Any:
        return np.flip(function(np.flip(x, axis), axis), axis) if reverse else function(x, axis)

    return along


OPERATIONS = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "argmax": lambda x, axes, index_dtype: np.argmax(x, axes[0]).astype(index_dtype),
    "argmin": lambda x, axes, index_dtype: np.argmin(x, axes[0]).astype(index_dtype),
    "broadcast_in_dim": _broadcast,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda *parts, dimension: np.concatenate(parts, dimension),
    "convert_element_type": lambda x, new_dtype: np.asarray(x).astype(new_dtype),
    "cos": np.cos,
    "coulda_convolve": _convolve,
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
    "div": _quotient,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "eq": np.equal,
    "erf": lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "gather": _gather,
    "ge": np.greater_equal,
    "gt": np.greater,
    "integer_pow": lambda x, y: np.power(x, y),
    "iota": lambda dtype, shape, dimension: _broadcast(np.arange(shape[dimension], dtype=dtype), shape, [dimension]),
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: (0.5 * (1 + np.tanh(0.5 * x))).astype(x.dtype),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "reduce_and": _over(np.all),
    "reduce_max": _over(np.max),
    "reduce_min": _over(np.min),
    "reduce_or": _over(np.any),
    "reduce_prod": _over(np.prod),
    "reduce_sum": _over(np.sum),
    "rem": np.fmod,
    "reshape": lambda x, new_sizes: np.reshape(x, new_sizes),
    "rev": lambda x, dimensions: np.flip(x, dimensions),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, *cases: np.choose(np.asarray(which, int), cases),
    "sign": np.sign,
    "sin": np.sin,
    "slice": _slice,
    "split": lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "sqrt": np.sqrt,
    "square": np.square,
    "squeeze": lambda x, dimensions: np.squeeze(x, tuple(dimensions)),
    "stack": lambda *parts, axis: np.stack(parts, axis),
    "sub": np.subtract,
    "tanh": np.tanh,
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "xor": np.bitwise_xor,
}
"""JAX's operations, by their names there."""
