"""Policies of other frameworks: whatever can be asked about a batch of observations becomes a `Policy`.

| what it is                                            | how it is asked                                             |
|-------------------------------------------------------|-------------------------------------------------------------|
| scikit-learn's classifiers, and whatever else has     | `predict_proba(observations)`, columns put in the order of  |
| `predict_proba`                                       | the actions by `classes_`                                   |
| stable-baselines3's algorithms and actor–critic       | `policy.get_distribution`                                   |
| policies                                              |                                                             |
| a PyTorch module                                      | its forward pass, without gradients, in evaluation mode     |
| a function of observations `[n, ...]`                 | probabilities `[n, A]`, or (mean, scale) `[n, ...]`         |
| an object or a function with an `initial_state`       | `(observations, states) -> (answer, states)`; and           |
|                                                       | `remember(states, actions, rewards) -> states` if it has it |
| an ONNX file                                          | its last output, or its last two; see `onnx_policy`         |
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.naming import named, takes_nothing
from coulda.policies.host import Ask, Host, HostPolicy
from coulda.policies.logged import COLUMN
from coulda.policies.onnx_files import onnx_policy
from coulda.pomdp import Policy


def as_policy(found: Any, action_space: gymnasium.Space, name: str | None = None) -> Policy:
    """Somebody else's policy as one of ours; a `Policy` stays as it is.

    Args:
        found: see the table above.
        action_space: what can be done, such as `log.schema.action_space`.
        name: what errors call it; its class's by default.

    >>> policy = as_policy(lambda observations: np.full((len(observations), 2), 0.5), gymnasium.spaces.Discrete(2))
    >>> policy((), np.zeros(3, np.float32))[1].probabilities.tolist()
    [0.5, 0.5]
    """
    if isinstance(found, Policy):
        return found
    name = str(name or getattr(found, "__name__", type(found).__name__))
    policy = getattr(found, "policy", found)
    if hasattr(policy, "get_distribution"):
        return HostPolicy(Host(name, _stable_baselines(name, policy, action_space), action_space))
    if hasattr(found, "predict_proba"):
        return HostPolicy(Host(name, _classifier(name, found, action_space), action_space))
    if not callable(found):
        raise CouldaError(
            f"{name} is a {type(found).__name__}, which cannot be asked for actions. A policy is a coulda Policy, a "
            "function of a batch of observations that returns probabilities or (mean, scale), or has `predict_proba` "
            "or `policy.get_distribution`."
        )
    state, remember = getattr(found, "initial_state", None), getattr(found, "remember", None)
    ask: Any = _module(found) or found
    ask = _stateless(ask) if state is None else ask
    return HostPolicy(Host(name, ask, action_space, () if state is None else state, remember))


def find_policy(name: str, action_space: gymnasium.Space) -> Policy:
    """The policy of that name: `package.module:name`, `file.py:name` or `file.onnx`.

    The object may be a policy, somebody else's, or a function without arguments that makes either.
    """
    if name.startswith(COLUMN):
        raise CouldaError(
            f"'{name}' is known along a log alone, which only `coulda evaluate` needs; give the policy itself"
        )
    if name.endswith(".onnx"):
        return onnx_policy(name, action_space)
    found = named(name)
    if not isinstance(found, Policy) and (isinstance(found, type) or _makes_one(found)):
        found = found()
    # Without folders: workers find it by another path, and shall call it the same.
    return as_policy(found, action_space, f"'{Path(name).name}'")


def _makes_one(found: Any) -> bool:
    """Whether it is a function that makes a policy, and not one that is asked."""
    return (inspect.isroutine(found) or isinstance(found, partial)) and takes_nothing(found)


def _stateless(function: Callable[[Any], Any]) -> Ask:
    return lambda observations, states: (function(observations), states)


def _classifier(name: str, found: Any, space: gymnasium.Space) -> Ask:
    """Columns in the order of the actions; what a classifier never saw has probability 0."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise CouldaError(f"{name} has predict_proba, for discrete actions; these are {space}. Give (mean, scale).")
    classes, count = getattr(found, "classes_", None), int(space.n)
    if classes is None:
        return _stateless(lambda observations: found.predict_proba(_table(observations)))
    if np.asarray(classes).dtype.kind not in "iu":
        names = np.asarray(classes).tolist()
        raise CouldaError(f"{name} has the classes {names}; fit it to the numbers of actions, 0 … {count - 1}.")
    for unknown in [int(one) for one in classes if not 0 <= one < count][:1]:
        raise CouldaError(f"{name} has a class {unknown}, but the actions are 0 … {count - 1}; fit it to those.")

    def ask(observations: Any) -> np.ndarray:
        said = np.asarray(found.predict_proba(_table(observations)))
        probabilities = np.zeros((len(said), count))
        probabilities[:, np.asarray(classes)] = said
        return probabilities

    return _stateless(ask)


def _table(observations: Any) -> Any:
    """scikit-learn wants a column even of single numbers."""
    return observations[:, None] if isinstance(observations, np.ndarray) and observations.ndim == 1 else observations


def _stable_baselines(name: str, policy: Any, space: gymnasium.Space) -> Ask:
    known, discrete = policy.action_space, isinstance(space, gymnasium.spaces.Discrete)
    if (getattr(known, "n", None), known.shape) != (getattr(space, "n", None), space.shape):
        raise CouldaError(f"{name} was trained for actions in {known}, and these are {space}.")
    torch: Any = importlib.import_module("torch")

    def ask(observations: Any) -> Any:
        with torch.no_grad():
            given, _ = policy.obs_to_tensor(observations)
            found = policy.get_distribution(given).distribution
        if discrete:
            return found.probs
        if not hasattr(found, "stddev"):
            kind = type(found).__name__
            raise TypeError(f"its distribution is a {kind}, not Gaussian; wrap a function that gives (mean, scale)")
        return found.mean, found.stddev

    policy.set_training_mode(False)
    return _stateless(ask)


def _module(found: Any) -> Callable[..., Any] | None:
    """The forward pass of a PyTorch module; None for anything else."""
    torch: Any = sys.modules.get("torch")  # whoever has a module has imported it
    if torch is None or not isinstance(found, torch.nn.Module):
        return None
    found.eval()
    first = next(found.parameters(), torch.zeros(1))

    def ask(*inputs: Any) -> Any:
        with torch.no_grad():
            return found(*jax.tree.map(lambda x: _tensor(torch, x, first), inputs))

    return ask


def _tensor(torch: Any, array: np.ndarray, like: Any) -> Any:
    """On the module's device; numbers with a point in its precision, others as they are."""
    tensor = torch.from_numpy(np.require(array, requirements=("C", "W")))
    return tensor.to(like.device, like.dtype if array.dtype.kind == "f" else None)
