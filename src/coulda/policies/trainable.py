"""Small policies whose parameters are trained by gradients; a `TabularPolicy` policy's logits are another.

Every float array of a policy is a parameter to `PolicySearch`, also of one of your own. `save_parameters` keeps what
was found, and `load_parameters` puts it into a policy of the same structure.
"""

from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution, Normal
from coulda.policies.actor_critic import ActorCritic
from coulda.pomdp import Policy
from coulda.storage import Kind, load_weights, read_artifact, save_tree, write_artifact

AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: str
    """The name of its class."""


_KIND, _PART = Kind("parameters", 1, _Metadata), "parameters.safetensors"


def save_parameters(path: Path | str, policy: Policy) -> None:
    """Commit the arrays and numbers of any policy as an artifact at `path`, which must not exist yet."""
    write_artifact(Path(path), _KIND, [(_PART, save_tree(policy))], _Metadata(type(policy).__name__))


def load_parameters(path: Path | str, policy: AnyPolicy) -> AnyPolicy:
    """`policy` with the parameters that `save_parameters` wrote; they must be of its structure.

    In a file of your own this is the policy that was found, ready for `coulda evaluate --policy my.py:found`:

        def found():
            return load_parameters("runs/pump/policy", policy)
    """
    artifact = read_artifact(Path(path), _KIND)
    if artifact.metadata.policy != type(policy).__name__:
        name = artifact.metadata.policy
        raise CouldaError(f"{path} holds parameters of a {name}, not of a {type(policy).__name__}; give a {name}.")
    # Logits of what is never done are infinite.
    return load_weights(artifact.only(_PART), policy, infinite=True)


class LinearGaussianPolicy(Policy):
    """a ~ N(W o + b, diag(exp(log_scale))²), for observations `[m]` and actions `[k]`."""

    weight: Array
    """W, `[k, m]`."""
    bias: Array
    """b, `[k]`."""
    log_scale: Array
    """`[k]`."""

    @classmethod
    def zero(cls, observations: int, actions: int, scale: float = 1.0) -> "LinearGaussianPolicy":
        """Noise of standard deviation `scale`, whatever is seen."""
        return cls(jnp.zeros((actions, observations)), jnp.zeros(actions), jnp.full(actions, np.log(scale), float))

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Normal]:
        """Gaussian round W o + b."""
        return carry, Normal(self.weight @ observation + self.bias, jnp.exp(self.log_scale))


class FeedforwardPolicy(Policy):
    """A multilayer perceptron of the last observation, without memory.

    Discrete observations are one-hot, others flattened. Discrete actions get logits; others are Gaussian, with a
    trained scale that does not depend on what is seen.
    """

    network: eqx.nn.MLP
    log_scale: Array | None
    space: gymnasium.Space = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        width: int = 32,
        depth: int = 2,
        scale: float = 1.0,
    ):
        size, self.log_scale = _outputs(action_space, scale)
        self.space = observation_space
        self.network = eqx.nn.MLP(_features(observation_space), size, width, depth, jnp.tanh, key=key)

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, NoiseDistribution]:
        """The network's answer."""
        return carry, _distribution(self.network(_encode(self.space, observation)), self.log_scale)


class RecurrentPolicy(ActorCritic):
    """A gated recurrent unit over observations, actions and rewards, and linear answers.

    For discrete actions; its memory is what a partially observed world needs.
    """

    cell: eqx.nn.GRUCell
    answer: eqx.nn.Linear
    """Action logits."""
    value: eqx.nn.Linear
    space: gymnasium.Space = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        observation_space: gymnasium.Space,
        action_space: gymnasium.spaces.Discrete,
        *,
        width: int = 32,
    ):
        key_cell, key_answer, key_value = jax.random.split(key, 3)
        actions = int(action_space.n)
        self.space = observation_space
        self.cell = eqx.nn.GRUCell(_features(observation_space) + actions + 1, width, key=key_cell)
        self.answer = eqx.nn.Linear(width, actions, key=key_answer)
        self.value = eqx.nn.Linear(width, "scalar", key=key_value)

    def initial_carry(self) -> tuple[Array, Array]:
        """What is remembered, and the last action and reward."""
        return jnp.zeros(self.cell.hidden_size), jnp.zeros(self.answer.weight.shape[0] + 1)

    def with_value(
        self, carry: tuple[Array, Array], observation: Any
    ) -> tuple[tuple[Array, Array], Categorical, Array]:
        """Remember what is seen, then answer."""
        memory, done = carry
        memory = self.cell(jnp.concatenate([_encode(self.space, observation), done]), memory)
        return (memory, done), Categorical(logits=self.answer(memory)), self.value(memory)

    def remember(self, carry: tuple[Array, Array], action: Array, reward: Array) -> tuple[Array, Array]:
        """The action and its reward, squashed, are part of the next input."""
        one_hot = jax.nn.one_hot(action, self.answer.weight.shape[0])
        return carry[0], jnp.concatenate([one_hot, jnp.tanh(reward)[None]])


def _features(space: gymnasium.Space) -> int:
    return int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else gymnasium.spaces.flatdim(space)


def _encode(space: gymnasium.Space, observation: Any) -> Array:
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.nn.one_hot(observation, int(space.n))
    return jnp.concatenate([jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(observation)])


def _outputs(space: gymnasium.Space, scale: float) -> tuple[int, Array | None]:
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n), None
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        return space.shape[0], jnp.full(space.shape, np.log(scale), float)
    raise CouldaError(f"actions in {space} are neither discrete nor vectors; write a policy of your own.")


def _distribution(output: Array, log_scale: Array | None) -> NoiseDistribution:
    return Categorical(logits=output) if log_scale is None else Normal(output, jnp.exp(log_scale))
