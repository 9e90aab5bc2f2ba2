"""A log, read once: all that estimators need of it, a few numbers per step, whatever the observations are.

`read` goes over the log one time, in batches, and runs every policy over each batch one time. What rests on scenarios
needs the observations themselves and goes over the log once more (`padded_batches`), for all sources and policies.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog, Schema, StoredLog
from coulda.episodes.log import concatenate, padding
from coulda.episodes.spaces import HashableSpace
from coulda.errors import CouldaError
from coulda.evaluation.intervals import Returns
from coulda.evaluation.nodes import nodes
from coulda.evaluation.outside import ask_host, columns_of, is_column, is_host
from coulda.evaluation.weights import Weighted
from coulda.pomdp import POMDP, Episode, Policy
from coulda.pomdp.batching import run
from coulda.pomdp.rollout import all_log_probs, log_probs_of, next_actions, remembers, taken_log_probs

Log = EpisodeLog | StoredLog

LARGEST_BATCH = 4096
"""Episodes that are in memory at once while a log is read."""
MOST_EPISODES = 2000
"""Of a sample, and of what it is held against. With as many, means that differ by 0.15 standard deviations are found in
36 of 40 samples, by 0.1 in 19 of 40: smaller errors of a model pass."""


class Features(eqx.Module):
    """What a regression sees of an observation: `function(space, observation)`, under the regression's own name."""

    name: Hashable = eqx.field(static=True)
    function: Callable[[spaces.Space, Any], Array]


@dataclass(frozen=True)
class Reading:
    """What one pass over a log found; `[N, T]` has T = the longest episode's number of steps."""

    log: Log
    policies: Mapping[str, Policy]
    lengths: np.ndarray
    """`[N]`."""
    terminated: np.ndarray
    """`[N]`: whether the episode came to its own end."""
    reward: np.ndarray
    """`[N, T]` in float64, zero after the end."""
    log_prob: np.ndarray
    """log μ(a_t | h_t), `[N, T]`, zero after the end; NaN where it is not known."""
    action: np.ndarray | None
    """Numbers of discrete actions from 0, `[N, T]`; or actions that are numbers, `[N, T, k]`."""
    taken: dict[str, np.ndarray]
    """By policy: log π(a_t | h_t), `[N, T]`, zero after the end."""
    probabilities: dict[str, np.ndarray]
    """By policy: π(a | h_t) of discrete actions, `[N, T + 1, A]`; or, where they are numbers, those at its `nodes`,
    `[N, T + 1, K, k]`; of none that is a column of the actions taken."""
    features: dict[Hashable, np.ndarray]
    """By the name of the features: what a regression sees of each observation, `[N, T + 1, ...]`."""
    asked: Returns
    """What is asked of returns."""

    def __len__(self) -> int:
        """N."""
        return len(self.lengths)

    @property
    def continuous(self) -> bool:
        """Whether actions are numbers, and no choices."""
        return isinstance(self.log.schema.action_space, spaces.Box)

    @cached_property
    def live(self) -> np.ndarray:
        """Whether the step was taken, `[N, T]`."""
        return np.arange(self.reward.shape[1]) < self.lengths[:, None]

    @cached_property
    def paid(self) -> np.ndarray:
        """γ^t r_t, `[N, T]`: a reward as it counts in the return."""
        return self.asked.paid(self.reward)

    @cached_property
    def returns(self) -> np.ndarray:
        """G of each logged episode, `[N]`."""
        return self.paid.sum(1)

    @cached_property
    def has_probabilities(self) -> bool:
        """Whether log μ(a_t | h_t) is known at every step."""
        return not bool(np.isnan(self.log_prob).any())

    @property
    def cut_short(self) -> int:
        """How many episodes were cut off before the longest of them ended."""
        return int((~self.terminated & (self.lengths < self.reward.shape[1])).sum())

    @cached_property
    def chosen_by_ends(self) -> bool:
        """Whether the log lacks the observations after the last actions of episodes that ended early.

        How they ended is then no evidence, and where an episode's evidence stops depends on its end. Where all episodes
        last as long as the longest, nothing is chosen: all are conditioned on the same number of steps.
        """
        early = bool((self.lengths < self.reward.shape[1]).any())
        return self.log.schema.last_observation == "repeated" and early

    def weighted(self, policy: str) -> Weighted:
        """The policy's ratios to the behavior's, and the rewards, in float64."""
        if policy not in self._weighted:
            self._weighted[policy] = Weighted(self.taken[policy].astype(float) - self.log_prob, self.paid)
        return self._weighted[policy]

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What several methods need of the log, made by the first that asks."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def _weighted(self) -> dict[str, Weighted]:
        return {}


def read(
    log: Log,
    policies: Mapping[str, Policy],
    features: Iterable[Features] = (),
    *,
    walk: bool = True,
    returns: Returns | None = None,
) -> Reading:
    """One pass over the log.

    Args:
        log: in memory or on disk.
        policies: by name.
        features: what regressions need to see of observations. Where there are any, what the policies would do is kept
            too: actions must be discrete then, or numbers.
        walk: whether the policies are run over the log, each once.
        returns: what is asked of them.
    """
    chosen = {one.name: one for one in features}
    if chosen and not isinstance(log.schema.action_space, spaces.Discrete | spaces.Box):
        raise CouldaError(f"fitted values need discrete or continuous actions, and not {log.schema.action_space}")
    space, size, possible = HashableSpace(log.schema.observation_space), _batch_size(log), _possible_steps(log)
    ask = _how(log.schema.action_space) if chosen else None
    asking = policies if walk else {}
    logged = {name: one for name, one in asking.items() if is_column(one)}
    hosts = {name: one for name, one in asking.items() if is_host(one) and possible is None}
    inside = asking.keys() - logged.keys() - hosts.keys()
    says = {name: eqx.Partial(_say, one, ask) for name, one in asking.items() if name in inside}
    sees = {name: eqx.Partial(_see, one, space) for name, one in chosen.items()}
    walked = {name: say for name, say in says.items() if possible is None or remembers(policies[name])}
    asked = walked, sees if possible is None else {}
    columns, answers = [], []
    for batch in log.batches(size):
        kept = {name: getattr(batch, name) for name in _kept(log.schema, bool(chosen))}
        columns.append((kept, {name: ask_host(one, batch, bool(chosen)) for name, one in hosts.items()}))
        inputs = (_filled(batch, 0, log.max_length, size)[0],) if any(asked) else ()
        answers.append([_answers(programs, inputs, len(batch)) for programs in asked])
    (flat, told), (said, seen) = _joined(columns), _joined(answers)
    live = np.arange(log.max_length) < flat["lengths"][:, None]
    told |= {name: columns_of(name, one, log, flat["lengths"], flat["terminated"]) for name, one in logged.items()}
    observed = padding(flat["lengths"] + 1, log.max_length + 1) if told and chosen else None
    for name, (taken, every) in told.items():
        said[name] = _spread(taken, live), None if every is None or observed is None else every[observed]
    if possible is not None:
        numbers = _Numbers(log.schema, flat, live)
        timeless = {name: say for name, say in says.items() if name not in walked}
        said |= {name: numbers.said(*one) for name, one in _answers(timeless, (possible,)).items()}
        seen |= {name: numbers.seen(one) for name, one in _answers(sees, (possible,)).items()}
    return Reading(
        log,
        policies,
        flat["lengths"],
        flat["terminated"],
        _spread(flat["reward"].astype(float), live),
        _spread(flat["log_prob"].astype(float), live),
        _done(log.schema.action_space, flat["action"])[padding(flat["lengths"], log.max_length)] if chosen else None,
        {name: one for name, (one, _) in said.items()},
        {name: every for name, (_, every) in said.items() if every is not None},
        {name: without_gaps(one) for name, one in seen.items()},
        returns or Returns(),
    )


def without_gaps(seen: np.ndarray) -> np.ndarray:
    """Features `[..., d]` in which what is missing stands at its mean; whether it is missing is a feature more.

    >>> without_gaps(np.array([[1.0, 5.0], [np.nan, 5.0], [3.0, 5.0]])).tolist()
    [[1.0, 5.0, 0.0], [2.0, 5.0, 1.0], [3.0, 5.0, 0.0]]
    """
    missing = np.isnan(seen) if seen.dtype.kind == "f" else np.zeros(seen.shape, bool)
    if not missing.any():
        return seen
    rest = tuple(range(seen.ndim - 1))
    mean = np.where(missing, 0, seen).sum(rest) / np.maximum((~missing).sum(rest), 1)
    gaps = missing[..., missing.any(rest)].astype(seen.dtype)
    return np.concatenate([np.where(missing, mean, seen).astype(seen.dtype), gaps], -1)


def _kept(schema: Schema, fitted: bool) -> list[str]:
    """What is kept of a log: a few numbers per step, observations only where they are such, actions where needed."""
    numbered = {"observation": schema.observation_space, "action": schema.action_space}
    kept = [name for name, space in numbered.items() if isinstance(space, spaces.Discrete)]
    kept += ["action"] if fitted and "action" not in kept else []
    return ["lengths", "terminated", "reward", "log_prob", *kept]


def _done(space: spaces.Space, column: np.ndarray) -> np.ndarray:
    """Actions as numbers from 0, or `[n, k]`."""
    if isinstance(space, spaces.Discrete):
        return _number(space, column)
    return column.reshape(len(column), -1).astype(np.float32)


def _answers(programs: Mapping[Any, Callable[..., Any]], inputs: tuple[Any, ...], count: int | None = None) -> Any:
    return {name: to_numpy(run(program, inputs), count) for name, program in programs.items()}


def _joined(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _spread(column: np.ndarray, live: np.ndarray) -> np.ndarray:
    """A number per logged step, `[ΣT_i]`, as `[N, T]`; zero after the end."""
    found = np.zeros(live.shape, column.dtype)
    found[live] = column
    return found


def _possible_steps(log: Log) -> Episode | None:
    """Every step that there can be, each an episode of its own: all actions after one observation, then the next.

    None where observations or actions are not numbered, or have more pairs than the log has steps. Who remembers
    nothing says of a step what it says of the same step elsewhere, and is asked about these alone.
    """
    seen, done = log.schema.observation_space, log.schema.action_space
    if not isinstance(seen, spaces.Discrete) or not isinstance(done, spaces.Discrete):
        return None
    size, num_actions = int(seen.n) * int(done.n), int(done.n)
    if size > log.num_steps:
        return None
    observation = int(seen.start) + np.arange(size, dtype=np.int32)[:, None] // num_actions
    action = int(done.start) + np.arange(size, dtype=np.int32)[:, None] % num_actions
    nothing = np.zeros((size, 1), np.float32)
    return Episode(np.repeat(observation, 2, 1), action, nothing, np.ones((size, 1), bool), nothing)  # pyright: ignore[reportArgumentType]


class _Numbers:
    """Answers about all possible steps, looked up for those of a log."""

    def __init__(self, schema: Schema, flat: Mapping[str, np.ndarray], live: np.ndarray):
        """Of flat columns, and which steps were taken, `[N, T]`."""
        self.lengths, self.live, self.num_actions = flat["lengths"], live, int(schema.action_space.n)  # pyright: ignore[reportAttributeAccessIssue]
        self.observation = _number(schema.observation_space, flat["observation"])
        self.action = _number(schema.action_space, flat["action"])

    def said(self, taken: np.ndarray, every: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Of a policy."""
        return _spread(taken[:, 0][self._step], self.live), None if every is None else self.seen(every)

    def seen(self, found: np.ndarray) -> np.ndarray:
        """Of what depends on the observation alone, `[N, T + 1, ...]`."""
        return found[:: self.num_actions, 0][self._observation]

    @cached_property
    def _step(self) -> np.ndarray:
        acted_on = np.delete(self.observation, np.cumsum(self.lengths + 1) - 1)
        return acted_on * self.num_actions + self.action

    @cached_property
    def _observation(self) -> np.ndarray:
        return self.observation[padding(self.lengths + 1, self.live.shape[1] + 1)]


def _number(space: spaces.Space, column: np.ndarray) -> np.ndarray:
    """Numbers of a discrete space, counted from 0."""
    assert isinstance(space, spaces.Discrete)
    return column - np.int32(space.start)


def _say(policy: Policy, ask: tuple[int, ...] | None, episode: Episode) -> tuple[Array, Array | None]:
    """Log-probabilities of what was done, `[T]`, and what could have been: `[T + 1, A]` or `[T + 1, K, k]`.

    `ask` is None for the first alone, else `CHOICES` or the shape of actions that are numbers.
    """
    if ask is None:
        return taken_log_probs(policy, episode), None
    if ask != CHOICES:
        return taken_log_probs(policy, episode), next_actions(policy, episode, nodes(int(np.prod(ask))))
    found = all_log_probs(policy, episode)
    return jnp.where(episode.live, log_probs_of(episode.action, found[:-1]), 0.0), jnp.exp(found)


def _how(space: spaces.Space) -> tuple[int, ...]:
    return CHOICES if isinstance(space, spaces.Discrete) else tuple(space.shape or ())


CHOICES = (-1,)
"""In the place of a shape, where actions are choices."""


def _see(features: Features, space: HashableSpace, episode: Episode) -> Array:
    return jax.vmap(lambda observation: features.function(space.value, observation))(episode.observation)


def over_log(function: Callable[..., Any], log: Log, horizon: int) -> Iterator[Any]:
    """`function(episode, index)` of every episode, as NumPy arrays `[n, ...]` per batch; memory stays flat.

    `function` is an `eqx.Partial` of a function and what it needs, so that equal shapes share one program.
    """
    for inputs, count in padded_batches(log, horizon):
        yield to_numpy(run(function, inputs), count)


def sample(rng: np.random.Generator, log: Log) -> EpisodeLog:
    """Episodes of the log, not too many, in memory."""
    chosen = np.sort(rng.permutation(len(log))[:MOST_EPISODES])
    parts, first = [], 0
    for batch in log.batches():
        here = chosen[(chosen >= first) & (chosen < first + len(batch))] - first
        parts += [batch.take(here)] if len(here) else []
        first += len(batch)
    return concatenate(parts)


def sample_for(rng: np.random.Generator, model: POMDP, log: Log) -> EpisodeLog:
    """Episodes of the log, in the model's spaces, of which a log may not have seen all."""
    found = sample(rng, log)
    seen, done = model.observation_space, model.action_space
    return replace(found, schema=replace(found.schema, observation_space=seen, action_space=done))


def padded_batches(log: Log, horizon: int, largest: int = LARGEST_BATCH) -> Iterator[tuple[tuple[Episode, Array], int]]:
    """Padded episodes `[size, T, ...]` with their numbers, and how many of them count.

    A shorter batch is filled up with episodes that do not count, which is cheaper than compiling for its size.
    """
    size, first = _batch_size(log, largest), 0
    for batch in log.batches(size):
        yield _filled(batch, first, horizon, size), len(batch)
        first += len(batch)


def padded_batch(log: Log, horizon: int, index: int) -> tuple[Episode, Array]:
    """The padded episodes and numbers of `padded_batches` at `index`, without reading those before."""
    size = _batch_size(log)
    return _filled(log.batch(index, size), sum(log.batch_sizes(size)[:index]), horizon, size)


def batch_sizes(log: Log) -> list[int]:
    """How many episodes count in each of `padded_batches`."""
    return log.batch_sizes(_batch_size(log))


def _batch_size(log: Log, largest: int = LARGEST_BATCH) -> int:
    """At most `largest`, and so that little is filled up: equal shares of the largest shard."""
    shard = max(log.batch_sizes(len(log)))
    return -(-shard // -(-shard // largest))


def _filled(batch: EpisodeLog, first: int, horizon: int, size: int) -> tuple[Episode, Array]:
    rows = np.arange(size) % len(batch)
    whole = batch if size == len(batch) else batch.take(rows)
    return whole.padded(horizon), jax.device_put((first + rows).astype(np.int32))


def to_numpy(tree: Any, count: int | None = None) -> Any:
    """The first `count` rows of every array; all by default."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], tree)


def generator(key: Array) -> np.random.Generator:
    """NumPy's generator for the bootstrap, seeded by a JAX key, which it consumes."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
