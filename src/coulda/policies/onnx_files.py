"""ONNX files: policies that are run by onnxruntime, and ours for others to run. Needs the extra `onnx`."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.extras import require
from coulda.policies.basic import TabularPolicy
from coulda.policies.host import Host, HostPolicy
from coulda.policies.trainable import FeedforwardPolicy, LinearGaussianPolicy
from coulda.pomdp import Policy
from coulda.storage import replace_file

OPSET = 17
"""Of 2022: what is written has nothing newer, and older runtimes shall read it."""


def onnx_policy(path: Path | str, action_space: gymnasium.Space) -> Policy:
    """The policy in an ONNX file, run by onnxruntime; needs the extra `onnx`.

    Its one input is a batch of observations. For discrete actions its last output is probabilities `[n, A]`, for others
    the last two are mean and scale `[n, ...]`.
    """
    path = Path(path)
    if not path.is_file():
        raise CouldaError(f"there is no file {path}")
    runtime = require("onnxruntime", extra="onnx")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes, which are not public
        raise CouldaError(f"{path} is no ONNX file that onnxruntime can run: {error}") from error
    inputs, outputs = session.get_inputs(), [output.name for output in session.get_outputs()]
    if len(inputs) != 1:
        names = [one.name for one in inputs]
        raise CouldaError(f"{path} takes {names}; a policy takes one input, a batch of observations.")
    dtype = {"tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32}.get(inputs[0].type)
    discrete = isinstance(action_space, gymnasium.spaces.Discrete)
    if not discrete and len(outputs) < 2:
        raise CouldaError(f"{path} gives {outputs}; for actions in {action_space} it must give a mean and a scale.")

    def ask(observations: Any) -> Any:
        given = np.asarray(observations, dtype or np.float32)
        found = session.run(outputs[-1:] if discrete else outputs[-2:], {inputs[0].name: given})
        return found[0] if discrete else tuple(found)

    return HostPolicy(Host(path.name, lambda observations, states: (ask(observations), states), action_space))


def write_onnx(path: Path | str, policy: Policy) -> None:
    """Write a `TabularPolicy`, `LinearGaussianPolicy` or `FeedforwardPolicy` as an ONNX file.

    Its input `observation` is a batch; its output is `probabilities` `[n, A]`, or `mean` and `scale` `[n, k]`.
    """
    graph = _Graph()
    if isinstance(policy, TabularPolicy):
        table = graph.constant(np.asarray(jax.nn.softmax(policy.logits, axis=-1)))
        graph.input("int64", ())
        graph.output("probabilities", graph.node("Gather", table, "observation", axis=0), policy.logits.shape[1])
    elif isinstance(policy, LinearGaussianPolicy):
        graph.input("float32", (policy.weight.shape[1],))
        graph.gaussian(graph.dense("observation", policy.weight, policy.bias), policy.log_scale)
    elif isinstance(policy, FeedforwardPolicy):
        _feedforward(graph, policy)
    else:
        raise CouldaError(
            f"a {type(policy).__name__} is not written as ONNX; a TabularPolicy, LinearGaussianPolicy or "
            "FeedforwardPolicy is. `export_policy` writes any policy for NumPy."
        )
    replace_file(Path(path), graph.model().SerializeToString())


def _feedforward(graph: "_Graph", policy: FeedforwardPolicy) -> None:
    if isinstance(policy.space, gymnasium.spaces.Discrete):
        graph.input("int64", ())
        found = graph.node(
            "Gather", graph.constant(np.eye(int(policy.space.n), dtype=np.float32)), "observation", axis=0
        )
    elif isinstance(policy.space, gymnasium.spaces.Box):
        graph.input("float32", policy.space.shape)
        found = graph.node("Flatten", "observation", axis=1)
    else:
        raise CouldaError(f"observations in {policy.space} are no single array, which an ONNX policy takes.")
    *hidden, last = policy.network.layers
    for layer in hidden:
        found = graph.node("Tanh", graph.dense(found, layer.weight, layer.bias))
    found = graph.dense(found, last.weight, last.bias)
    if policy.log_scale is None:
        graph.output("probabilities", graph.node("Softmax", found, axis=-1), last.weight.shape[0])
    else:
        graph.gaussian(found, policy.log_scale)


class _Graph:
    """An ONNX graph that grows."""

    def __init__(self) -> None:
        self.onnx = require("onnx", extra="onnx")
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def input(self, dtype: str, shape: tuple[int, ...]) -> None:
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(self.onnx.helper.make_tensor_value_info("observation", kind, ["n", *shape]))

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        name = f"value_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def dense(self, x: str, weight: Any, bias: Any) -> str:
        return self.node("Gemm", x, self.constant(weight), self.constant(bias), transB=1)

    def gaussian(self, mean: str, log_scale: Any) -> None:
        scale = self.node("Expand", self.constant(np.exp(np.asarray(log_scale))), self.node("Shape", mean))
        self.output("mean", mean, len(log_scale))
        self.output("scale", scale, len(log_scale))

    def output(self, name: str, value: str, size: int) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        kind = self.onnx.TensorProto.FLOAT
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["n", size]))

    def model(self) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "policy", self.inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        self.onnx.checker.check_model(model)
        return model
