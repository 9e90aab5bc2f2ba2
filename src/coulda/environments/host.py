"""A Gymnasium environment of your own as a simulator: worker processes step it, the policy stays in JAX.

The meaning is that of `rollout`: all chance is in the scenario. The environment must be deterministic once
`begin(env, scenario)` has put it into a scenario, be that an initial state, recorded noise, or a seed.

Workers are spawned, so that `make_env` and `begin` must be importable (defined in a module, not in a notebook
cell). Only raw array bytes travel between the processes.
"""

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Iid, Independent, NoiseDistribution, Point
from coulda.pomdp import ActionMechanism, Episode, Policy, Scenario
from coulda.pomdp.scenario import at_step

Begin = Callable[[gymnasium.Env, Scenario], Any]
"""Puts an environment into a scenario (numpy arrays, no action noise) and returns the first observation."""

_BEGIN, _STEP, _CLOSE = b"b", b"s", b"c"
_OK, _FAILED = b"k", b"x"


class SimulatorError(CouldaError):
    """A simulator that failed in a worker process, or a worker that died."""


class HostSimulator:
    """A pool of worker processes that step environments of a user's own on scenarios.

    Use it as a context manager, so that the workers end with it::

        with HostSimulator(make_env, begin, initial_noise=Uniform(), horizon=100,
                           action_mechanism=GumbelMaxChoice(2)) as simulator:
            scenarios = jax.vmap(simulator.scenario_prior.sample)(keys)
            episodes = simulator.rollout(policy, scenarios)

    Args:
        make_env: gives a new environment with a Box, Discrete or other array-valued observation and action space.
        begin: see `Begin`.
        initial_noise: the distribution of `scenario.initial`.
        horizon: T; an environment that ends before, by termination or truncation, is padded.
        action_mechanism: the named reparameterization of the policy's choice.
        transition_noise: the noise of one step, where `begin` takes recorded noise `[T, ...]`; none by default.
        workers: number of processes.
        envs_per_worker: how many environments each process holds; more scenarios are run in turns.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        begin: Begin,
        *,
        initial_noise: NoiseDistribution,
        horizon: int,
        action_mechanism: ActionMechanism,
        transition_noise: NoiseDistribution | None = None,
        workers: int = 2,
        envs_per_worker: int = 64,
    ):
        self.horizon, self.action_mechanism = horizon, action_mechanism
        self.scenario_prior = Independent(
            Scenario(
                initial=initial_noise,
                transition=Iid(transition_noise or Point(), horizon),
                observation=Iid(Point(), horizon + 1),
                action=Iid(action_mechanism.noise, horizon),
            )
        )
        shapes = jax.eval_shape(self.scenario_prior.sample, jax.random.key(0))
        template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), (shapes.initial, shapes.transition))
        env = make_env()
        self.observation_space, self.action_space = env.observation_space, env.action_space
        env.close()
        self._formats = tuple(_format(space) for space in (self.observation_space, self.action_space))
        self._at_once = workers * envs_per_worker
        context = multiprocessing.get_context("spawn")
        arguments = (make_env, begin, template, self._formats)
        self._workers = [_Worker(context, i, arguments) for i in range(workers)]

    def __enter__(self) -> "HostSimulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        with ExitStack() as stack:
            for worker in self._workers:
                stack.callback(worker.close)

    def rollout(self, policy: Policy, scenarios: Scenario) -> Episode:
        """The episodes of `policy` on scenarios `[n, ...]`, batched `[n, ...]`.

        All episodes take a step together: the policy acts on all of them at once, in JAX, and each worker steps
        its share.
        """
        if not isinstance(policy, Policy):
            raise CouldaError(f"a host simulator hides its state, so it cannot run a {type(policy).__name__}.")
        n = jax.tree.leaves(scenarios.action)[0].shape[0]
        turns = [slice(i, i + self._at_once) for i in range(0, n, self._at_once)]
        try:
            parts = [self._turn(policy, jax.tree.map(lambda leaf, s=s: leaf[s], scenarios)) for s in turns]
        except SimulatorError:
            self.close()
            raise
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def _turn(self, policy: Policy, scenarios: Scenario) -> Episode:
        """As many episodes as there are environments."""
        n = jax.tree.leaves(scenarios.action)[0].shape[0]
        shares = np.array_split(np.arange(n), len(self._workers))
        noise = [np.asarray(leaf) for leaf in jax.tree.leaves((scenarios.initial, scenarios.transition))]
        for worker, share in zip(self._workers, shares, strict=True):
            worker.send(_BEGIN, len(share), *(leaf[share] for leaf in noise))
        observation, _, live = self._gather()
        carry = jax.vmap(lambda _: policy.initial_carry())(jnp.arange(n))
        steps = []
        for t in range(self.horizon):
            action, log_prob, carry = _act(
                self.action_mechanism, policy, carry, observation, scenarios.action, jnp.int32(t)
            )
            taken = np.asarray(action, self._formats[1].dtype)
            for worker, share in zip(self._workers, shares, strict=True):
                worker.send(_STEP, len(share), taken[share], live[share])
            following, reward, still_live = self._gather()
            carry = _remember(policy, carry, action, jnp.asarray(reward))
            steps.append((observation, action, reward, live, log_prob))
            observation, live = following, still_live
        observations, *rest = (np.stack(part, axis=1) for part in zip(*steps, strict=True))
        seen = np.concatenate([observations, observation[:, None]], axis=1)
        return Episode(jnp.asarray(seen), *(jnp.asarray(part) for part in rest))

    def _gather(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations, rewards and which episodes go on, from all workers."""
        parts = [worker.receive(self._formats[0]) for worker in self._workers]
        observation, reward, live = (np.concatenate(part) for part in zip(*parts, strict=True))
        return observation, reward, live


@eqx.filter_jit
def _act(
    mechanism: ActionMechanism, policy: Policy, carry: Any, observation: Any, noise: Any, t: Array
) -> tuple[Array, Array, Any]:
    def one(carry: Any, observation: Any, noise: Any) -> tuple[Any, Any, Any]:
        carry, distribution = policy(carry, observation)
        action = mechanism(distribution, at_step(noise, t))
        return action, distribution.log_prob(action), carry

    return jax.vmap(one)(carry, observation, noise)


@eqx.filter_jit
def _remember(policy: Policy, carry: Any, action: Array, reward: Array) -> Any:
    return jax.vmap(policy.remember)(carry, action, reward)


class _Format(NamedTuple):
    """How one value of a space is sent."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _format(space: gymnasium.Space) -> _Format:
    if space.shape is None or space.dtype is None:
        raise CouldaError(f"{space} is not a space of arrays. Flatten it with gymnasium.wrappers.FlattenObservation.")
    return _Format(space.shape, np.dtype(jax.dtypes.canonicalize_dtype(space.dtype)))


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, context: Any, index: int, arguments: tuple[Any, ...]):
        self.index, self.size = index, 0
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, *arguments), daemon=True)
        self.process.start()
        other.close()

    def send(self, command: bytes, size: int, *arrays: np.ndarray) -> None:
        self.size = size
        try:
            self.pipe.send_bytes(command + size.to_bytes(8, "little"))
            for array in arrays:
                self.pipe.send_bytes(np.ascontiguousarray(array).tobytes())
        except OSError:
            raise self._death() from None

    def receive(self, form: _Format) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        try:
            status, *parts = (self.pipe.recv_bytes() for _ in range(4))
        except (EOFError, OSError):
            raise self._death() from None
        if status == _FAILED:
            raise SimulatorError(f"worker {self.index} failed in your environment:\n{parts[0].decode()}")
        observation = np.frombuffer(parts[0], form.dtype).reshape(self.size, *form.shape)
        return observation, np.frombuffer(parts[1], np.float32), np.frombuffer(parts[2], bool)

    def _death(self) -> SimulatorError:
        self.process.join(timeout=5)
        return SimulatorError(
            f"worker {self.index} died with exit code {self.process.exitcode} while it ran {self.size} episodes. A "
            "negative code is a signal: -9 is often too little memory, -11 a crash in native code. If it died at "
            "once, `make_env` and `begin` must be importable from a module, under `if __name__ == '__main__'`."
        )

    def close(self) -> None:
        with suppress(OSError):  # It may be gone already.
            self.pipe.send_bytes(_CLOSE)
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        self.pipe.close()


def _serve(
    pipe: Connection,
    make_env: Callable[[], gymnasium.Env],
    begin: Begin,
    template: Any,
    formats: tuple[_Format, _Format],
) -> None:
    """The worker: answers each command with observations, rewards and which episodes go on."""
    host = _Host(make_env, begin, template, formats)
    while True:
        command = pipe.recv_bytes()
        if command == _CLOSE:
            return
        size = int.from_bytes(command[1:], "little")
        beginning = command[:1] == _BEGIN
        buffers = [pipe.recv_bytes() for _ in range(len(host.leaves) if beginning else 2)]
        try:
            answer = host.begin(size, buffers) if beginning else host.step(size, buffers)
            status = _OK
        except Exception:
            answer, status = (traceback.format_exc().encode(), b"", b""), _FAILED
        for part in (status, *answer):
            pipe.send_bytes(part)


class _Host:
    """A worker's environments, made once and used for one scenario after another."""

    def __init__(self, make_env: Any, begin: Begin, template: Any, formats: tuple[_Format, _Format]):
        self.make_env, self.begin_one = make_env, begin
        self.leaves, self.structure = jax.tree.flatten(template)
        self.formats = formats
        self.envs: list[gymnasium.Env] = []
        self.observation = np.zeros((0,))

    def begin(self, size: int, buffers: list[bytes]) -> tuple[bytes, bytes, bytes]:
        while len(self.envs) < size:
            self.envs.append(self.make_env())
        noise = [
            np.frombuffer(b, leaf.dtype).reshape(size, *leaf.shape)
            for b, leaf in zip(buffers, self.leaves, strict=True)
        ]
        self.observation = np.zeros((size, *self.formats[0].shape), self.formats[0].dtype)
        for i in range(size):
            initial, transition = jax.tree.unflatten(self.structure, [leaf[i] for leaf in noise])
            scenario = Scenario(initial=initial, transition=transition, observation=(), action=())
            self.observation[i] = self.begin_one(self.envs[i], scenario)
        return self._answer(np.zeros(size, np.float32), np.ones(size, bool))

    def step(self, size: int, buffers: list[bytes]) -> tuple[bytes, bytes, bytes]:
        shape, dtype = self.formats[1]
        actions = np.frombuffer(buffers[0], dtype).reshape(size, *shape)
        live, rewards = np.frombuffer(buffers[1], bool).copy(), np.zeros(size, np.float32)
        for i in np.flatnonzero(live):
            action = actions[i] if shape else actions[i].item()
            self.observation[i], rewards[i], terminated, truncated, _ = self.envs[i].step(action)
            live[i] = not (terminated or truncated)
        return self._answer(rewards, live)

    def _answer(self, rewards: np.ndarray, live: np.ndarray) -> tuple[bytes, bytes, bytes]:
        return self.observation.tobytes(), rewards.tobytes(), live.tobytes()
