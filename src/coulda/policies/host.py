"""Policies that run outside of JAX, asked about whole batches at once.

`HostPolicy` is a policy like any other: in `rollout` and in everything that is built on it all episodes of a batch take
a step together, and its answers come from one call to the host. Over a log, one without memory is not even asked step
by step: `HostPolicy.probabilities` takes all observations of many episodes.

The host never calls JAX: inside a callback that may wait for itself.
"""

import math
import threading
import traceback
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution, Normal
from coulda.pomdp import Policy
from coulda.pomdp.batching import host_call

MOST_ROWS = 2**13
"""Observations in one call. More are no faster, and a network's activations for all steps of a log fill the memory."""
TOLERANCE = 1e-3
"""How far from 1 probabilities may sum, which are normalized then: half precision is not exact."""

Ask = Callable[[Any, Any], tuple[Any, Any]]
"""(observations `[n, ...]`, states `[n, ...]`) -> (answer, states). The answer is probabilities `[n, A]` of discrete
actions, or (mean, scale) `[n, ...]` of others."""
Remember = Callable[[Any, np.ndarray, np.ndarray], Any]
"""(states `[n, ...]`, actions `[n, ...]`, rewards `[n]`) -> states."""


class HostPolicyError(CouldaError):
    """A policy outside of JAX that failed, or whose answer is none."""


class Host:
    """Who is asked. It is equal to itself only, so that programs are compiled once for each."""

    def __init__(
        self,
        name: str,
        ask: Ask,
        action_space: gymnasium.Space,
        initial_state: Any = (),
        remember: Remember | None = None,
    ):
        """What the arguments are is said by `as_policy`, which finds them."""
        self.name, self.discrete = name, isinstance(action_space, gymnasium.spaces.Discrete)
        if not self.discrete and not isinstance(action_space, gymnasium.spaces.Box):
            raise HostPolicyError(
                f"{name}: actions in {action_space} are neither numbered nor vectors, and it can only be asked for "
                "probabilities or (mean, scale). Write a Policy of your own."
            )
        self.shape: tuple[int, ...] = (int(action_space.n),) if self.discrete else action_space.shape  # pyright: ignore
        self.initial_state = jax.tree.map(lambda x: np.asarray(x, _dtype(np.asarray(x))), initial_state)
        self.ask, self.remember = ask, remember
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Host({self.name})"

    def answers(self, observations: Any, states: Any = ()) -> tuple[tuple[np.ndarray, ...], Any]:
        """Probabilities `[n, A]`, or mean and scale `[n, ...]`; and the states after these observations."""
        parts = [self._called(inputs) for inputs in _pieces((observations, states))]
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def taken_log_probs(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        """Log π(a | o) of numbered actions `[n]`, `[n]`, of one without memory; what it says of others is not kept."""
        parts = [
            taken_log_probs(self._called((some, ()))[0][0], done) for some, done in _pieces((observations, actions))
        ]
        return np.concatenate(parts)

    def _called(self, inputs: tuple[Any, Any]) -> tuple[tuple[np.ndarray, ...], Any]:
        answer, states = self._safely(self.ask, *inputs)
        return self._checked(answer, inputs[0]), self._checked_states(states, _rows(inputs[0]))

    def remembered(self, states: Any, actions: np.ndarray, rewards: np.ndarray) -> Any:
        """The states after actions and rewards."""
        assert self.remember is not None
        return self._checked_states(self._safely(self.remember, states, actions, rewards), len(rewards))

    def _safely(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Devices work at the same time, and nobody promised that the host may."""
        with self._lock:
            try:
                return function(*inputs)
            except HostPolicyError:
                raise
            except Exception as error:
                # Without this frame: what is left is theirs.
                frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])).rstrip()
                raise HostPolicyError(
                    f"{self.name} raised {type(error).__name__}: {error}, when it was given {_described(inputs)}. "
                    f"It happened here:\n{frames}"
                ) from error

    def _checked(self, answer: Any, observations: Any) -> tuple[np.ndarray, ...]:
        if self.discrete:
            return (self._probabilities(answer, observations),)
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise HostPolicyError(
                f"{self.name} returned {_kind(answer)}; for actions of shape {list(self.shape)} return (mean, scale)."
            )
        mean, scale = (np.asarray(numbers(part), np.float32) for part in answer)
        wanted = (_rows(observations), *self.shape)
        if mean.shape != wanted or np.broadcast_shapes(wanted, scale.shape) != wanted:
            raise HostPolicyError(
                f"{self.name} returned a mean {list(mean.shape)} and a scale {list(scale.shape)} for {wanted[0]} "
                f"observations; return {list(wanted)} each, a row per observation."
            )
        scale = np.broadcast_to(scale, wanted)
        bad = ~(np.isfinite(mean) & np.isfinite(scale) & (scale > 0)).reshape(len(mean), -1).all(1)
        for row in np.flatnonzero(bad)[:1]:
            raise HostPolicyError(
                f"{self.name} returned mean {mean[row].tolist()} and scale {scale[row].tolist()} after the observation "
                f"{_row(observations, row)}; both must be finite, and the scale above 0."
            )
        return mean, scale

    def _probabilities(self, answer: Any, observations: Any) -> np.ndarray:
        wanted = (_rows(observations), *self.shape)
        if isinstance(answer, tuple | list) and len(answer) != wanted[0]:
            raise HostPolicyError(f"{self.name} returned {_kind(answer)}; return probabilities {list(wanted)}.")
        found = np.asarray(numbers(answer), np.float32)
        if found.shape != wanted:
            raise HostPolicyError(
                f"{self.name} returned probabilities {list(found.shape)} for {wanted[0]} observations and "
                f"{wanted[1]} actions; return {list(wanted)}, a row per observation and a column per action."
            )
        total = np.einsum("na->n", found)
        bad = ~(np.abs(total - 1) <= TOLERANCE)
        if found.size and not found.min() >= 0:
            bad |= ~(found >= 0).all(1)
        for row in np.flatnonzero(bad)[:1]:
            what = f"{_short(found[row])}, which sum to {total[row]:.6g}"
            fix = "Probabilities are ≥ 0 and sum to 1"
            fix += "." if np.isnan(total[row]) else ": where these are logits, end with a softmax."
            where = f"after the observation {_row(observations, row)}"
            raise HostPolicyError(f"{self.name} returned {what}, {where}. {fix}")
        return found / total[:, None]

    def _checked_states(self, states: Any, count: int) -> Any:
        """In the structure and the types of the first, a row per observation."""
        expected, structure = jax.tree.flatten(self.initial_state)
        found = jax.tree.leaves(states)
        if jax.tree.structure(states) != structure or any(
            np.shape(numbers(x)) != (count, *like.shape) for x, like in zip(found, expected, strict=True)
        ):
            raise HostPolicyError(
                f"{self.name} returned states {_described(states)}; its initial_state, with a row for each of the "
                f"{count} observations, is {_described(jax.tree.map(lambda x: x[None], self.initial_state))}."
            )
        return jax.tree.unflatten(
            structure, [np.asarray(numbers(x), like.dtype) for x, like in zip(found, expected, strict=True)]
        )


class HostPolicy(Policy):
    """π(a | h) by somebody else's code; `as_policy` makes one."""

    host: Host = eqx.field(static=True)

    def initial_carry(self) -> Any:
        """The host's initial state."""
        return jax.tree.map(jnp.asarray, self.host.initial_state)

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, NoiseDistribution]:
        """The host's answer."""
        answer = jax.ShapeDtypeStruct(self.host.shape, jnp.float32)
        shapes = (answer,) if self.host.discrete else (answer, answer)
        found, carry = host_call(self.host.answers, (shapes, _shapes(carry)), observation, carry)
        return carry, Categorical(logits=jnp.log(found[0])) if self.host.discrete else Normal(*found)

    def remember(self, carry: Any, action: Any, reward: Array) -> Any:
        """The host's, where it remembers."""
        if self.host.remember is None:
            return carry
        return host_call(self.host.remembered, _shapes(carry), carry, action, reward)

    def probabilities(self, observations: Any) -> np.ndarray:
        """π(a | o) of every discrete action, `[n, A]`, without JAX; for those without memory."""
        return self.host.answers(observations)[0][0]

    def log_densities(self, observations: Any, actions: np.ndarray) -> np.ndarray:
        """Log π(a | o) of actions `[n, ...]`, `[n]`, without JAX; for those without memory."""
        if self.host.discrete:
            return self.host.taken_log_probs(observations, actions)
        mean, scale = self.host.answers(observations)[0]
        found = -(((actions - mean) / scale) ** 2) / 2 - np.log(scale) - math.log(2 * math.pi) / 2
        return found.reshape(len(found), -1).sum(1)

    def check_spaces(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> int | None:
        """The action space must be the one that it was wrapped for."""
        discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        if discrete != self.host.discrete or (not discrete and action_space.shape != self.host.shape):
            knows = f"{self.host.shape[0]} actions" if self.host.discrete else f"actions of shape {self.host.shape}"
            raise CouldaError(
                f"{self.host.name} was wrapped for {knows}, and these are {action_space}: as_policy(…, action_space)."
            )
        return super().check_spaces(observation_space, action_space)


def taken_log_probs(probabilities: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Of numbered actions `[n]`, out of the probabilities of all `[n, A]`; -inf of what is none of them."""
    inside = (actions >= 0) & (actions < probabilities.shape[1])
    found = probabilities[np.arange(len(actions)), np.where(inside, actions, 0)]
    with np.errstate(divide="ignore"):
        return np.log(np.where(inside, found, np.float32(0)))


def numbers(value: Any) -> Any:
    """What NumPy can take: PyTorch's tensors off their graph and device first."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _dtype(array: np.ndarray) -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _rows(observations: Any) -> int:
    return len(jax.tree.leaves(observations)[0])


def _pieces(tree: Any) -> list[Any]:
    """Rows that are asked about in one call; one piece where there are none."""
    starts = range(0, max(_rows(tree), 1), MOST_ROWS)
    return [jax.tree.map(lambda x, start=start: x[start : start + MOST_ROWS], tree) for start in starts]


def _row(observations: Any, row: int) -> str:
    return ", ".join(_short(leaf[row]) for leaf in jax.tree.leaves(observations))


def _short(array: Any) -> str:
    array = np.asarray(array)
    return str(array.tolist()) if array.size <= 8 else f"of shape {list(array.shape)}"


def _described(tree: Any) -> str:
    leaves = [np.asarray(numbers(leaf)) for leaf in jax.tree.leaves(tree)]
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing"


def _kind(answer: Any) -> str:
    return f"{len(answer)} values" if isinstance(answer, tuple | list) else f"a {type(answer).__name__}"
