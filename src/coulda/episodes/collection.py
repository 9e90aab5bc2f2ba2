"""`collect`: log episodes of a policy in an environment."""

from collections.abc import Iterator

import equinox as eqx
import jax
import numpy as np
from jax import Array

from coulda.episodes.log import EpisodeLog, Schema, concatenate, spans
from coulda.episodes.validation import checked_log
from coulda.noise import check_key
from coulda.policies.checks import check_policy_fits
from coulda.pomdp import POMDP, Actor, Episode, Policy, batched, rollout
from coulda.pomdp.batching import raised_as_they_are


@raised_as_they_are()
def collect(key: Array, environment: POMDP, policy: Actor, num_episodes: int) -> EpisodeLog:
    """Run `policy` in `environment` and log what can be seen of it. Consumes `key`."""
    return concatenate(list(collect_batches(key, environment, policy, num_episodes)))


def collect_batches(
    key: Array, environment: POMDP, policy: Actor, num_episodes: int, batch_size: int = 16384
) -> Iterator[EpisodeLog]:
    """The same, a batch at a time, so that `write_log` can write a log larger than memory."""
    check_key(key)
    schema = Schema(environment.observation_space, environment.action_space)
    if isinstance(policy, Policy):
        check_policy_fits(policy, environment)
    size = min(batch_size, num_episodes)
    for start in range(0, num_episodes, size):
        # The last batch is run whole and cut, which is cheaper than compiling for its size.
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(start, start + size))
        yield _from_padded(schema, *_run(environment, policy, keys))[: num_episodes - start]


def _from_padded(schema: Schema, episodes: Episode, terminated: Array) -> EpisodeLog:
    """An `EpisodeLog` of a batch of padded episodes, `[N, T, ...]`, as `rollout` makes them."""
    live = np.asarray(episodes.live)
    lengths = live.sum(1)
    horizon = live.shape[1]
    steps = spans(np.arange(len(live)) * horizon, lengths)
    observed = spans(np.arange(len(live)) * (horizon + 1), lengths + 1)

    def flat(tree, rows):
        return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[rows], tree)

    columns = {name: flat(getattr(episodes, name), steps) for name in ("action", "reward", "log_prob")}
    observation = flat(episodes.observation, observed)
    return checked_log(schema, observation, lengths=lengths, terminated=np.asarray(terminated), **columns)


@eqx.filter_jit
def _run(environment: POMDP, policy: Actor, keys: Array) -> tuple[Episode, Array]:
    def one(key: Array) -> tuple[Episode, Array]:
        trajectory = rollout(environment, policy, environment.scenario_prior.sample(key))
        last = jax.tree.map(lambda x: x[-1], trajectory.state)
        return trajectory.episode, environment.terminal(last)

    return batched(one, keys)
