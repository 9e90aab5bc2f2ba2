"""Credit along an episode: what each decision was worth against the policy's own alternatives, on the same noise.

It is the case of one change, step by step: at step t the policy decides again, and everything else is done as it was.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog, Schema
from coulda.episodes.validation import from_episodes
from coulda.errors import CouldaError
from coulda.explanations.explain import MOST_NUMBERS, as_numpy
from coulda.explanations.question import Question
from coulda.explanations.scenarios import draw, ended, play
from coulda.explanations.search import LoggedEnd
from coulda.hindsight import ScenarioSource
from coulda.hindsight.tables import LoggedSteps, ObservedTables, logged_batch, observed_tables, state_numbers
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Policy
from coulda.pomdp.rollout import all_log_probs
from coulda.scales import student_quantile


class Credit(NamedTuple):
    """Of each of the T logged decisions."""

    effect: np.ndarray
    """E[G as it was - G with the policy's own choice at this step], `[T]`: below 0 it should have been otherwise."""
    low: np.ndarray
    """The lower end of its 95 % interval over scenarios, paired, `[T]`; the effect itself where nothing is drawn."""
    high: np.ndarray
    gain: np.ndarray
    """What each single other action at each step would have gained, `[T, A]`; 0 for the one that was taken."""
    policy: np.ndarray
    """π(a | h_t), `[T, A]`."""


def credit(
    key: Array,
    model: POMDP,
    episode: Episode,
    policy: Policy,
    source: ScenarioSource | None = None,
    *,
    scenarios: int = 32,
    discount: float = 1.0,
) -> Credit:
    """What each decision of one episode was worth; see `credit_log`, whose answer for a log of one episode this is."""
    log = from_episodes(Schema(model.observation_space, model.action_space), [as_numpy(episode)], [False])
    return credit_log(key, model, log, policy, source, scenarios=scenarios, discount=discount)[0]


def credit_log(
    key: Array,
    model: POMDP,
    log: EpisodeLog,
    policy: Policy,
    source: ScenarioSource | None = None,
    *,
    scenarios: int = 32,
    discount: float = 1.0,
) -> list[Credit]:
    """What each decision of each episode was worth against those of `policy`, on the noise of the episode.

    Args:
        key: consumed, where scenarios are drawn.
        model: the SCM that we believe in, with discrete actions.
        log: episodes with the observation after each last action.
        policy: who decides again, one step at a time; it is asked along the logged history.
        source: where scenarios come from; without one the model must be finite and its states seen.
        scenarios: drawn for each episode where there is a source.
        discount: γ of the return.
    """
    if not isinstance(model.action_space, spaces.Discrete):
        raise CouldaError(f"credit is for discrete actions; those of {type(model).__name__} are {model.action_space}")
    if scenarios < 2:
        raise CouldaError(f"scenarios is {scenarios}; draw at least 2, which an interval needs")
    Question(0, discount=discount).check(model, log)
    policy.check_spaces(model.observation_space, model.action_space)
    padded = log.padded(model.horizon)
    chances = np.exp(np.asarray(_log_probs(policy, padded), float))
    if source is None:
        gains = _exact_gains(model, log, discount)[:, None]
    else:
        gains = np.stack([_drawn_gains(key, model, source, padded, i, scenarios, discount) for i in range(len(log))])
    return [_credit(gains[i, :, :n], chances[i, :n]) for i, n in enumerate(log.lengths)]


def _credit(gains: np.ndarray, chances: np.ndarray) -> Credit:
    """Of gains `[M, T, A]` on scenarios that all decisions share, or of exact ones `[1, T, A]`."""
    effects = -(gains * chances[None]).sum(-1)
    effect, half = effects.mean(0), np.zeros(effects.shape[1])
    if len(effects) > 1:
        half = student_quantile(0.975, len(effects) - 1) * effects.std(0, ddof=1) / np.sqrt(len(effects))
    return Credit(effect, effect - half, effect + half, gains.mean(0), chances)


@eqx.filter_jit
def _log_probs(policy: Policy, episodes: Episode) -> Array:
    return jax.vmap(lambda episode: all_log_probs(policy, episode))(episodes)


def _exact_gains(model: POMDP, log: EpisodeLog, discount: float) -> np.ndarray:
    """`[N, T, A]`."""
    if not isinstance(model, FinitePOMDP):
        raise CouldaError(f"{type(model).__name__} is no finite model; give a source of scenarios.")
    numbers, tables, found = state_numbers(model), observed_tables(model), []
    gamma = jnp.asarray(discount, tables.probabilities.dtype)
    for batch in log.batches(max(1, MOST_NUMBERS // (tables.probabilities.size * model.horizon))):
        steps, rows = logged_batch(tables, numbers, batch.padded(model.horizon), len(found))
        found.extend(np.asarray(_all_gains(tables, rows, gamma, steps), float))
    return np.stack(found) * discount ** np.arange(model.horizon)[None, :, None]


@eqx.filter_jit
def _all_gains(tables: ObservedTables, rows: Array, discount: Array, steps: LoggedSteps) -> Array:
    return jax.lax.map(lambda one: _gains(tables, rows, discount, one), steps)


def _drawn_gains(
    key: Array, model: POMDP, source: ScenarioSource, padded: Episode, i: int, scenarios: int, discount: float
) -> np.ndarray:
    """`[M, T, A]`."""
    keys = jax.random.split(jax.random.fold_in(key, i), scenarios)
    episode = jax.tree.map(lambda leaf: leaf[i], padded)
    return np.asarray(_sampled_gains(model, source, discount, keys, episode), float)


def _gains(tables: ObservedTables, rows: Array, discount: Array, steps: LoggedSteps) -> Array:
    """What each action at each step adds to what is still to come, if everything else is done as it was, `[T, A]`."""

    def step(value: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        state, action, row, counts = inputs
        worth = tables.expect(rows[row], discount * value)
        return jnp.where(counts, worth[action], value), worth[:, state, 0] - worth[action, state, 0]

    start = jnp.zeros((tables.terminal.shape[0], 1), tables.probabilities.dtype)
    inputs = (steps.state[:-1], steps.action, steps.row, steps.counts)
    return jax.lax.scan(step, start, inputs, reverse=True)[1]


@eqx.filter_jit
def _sampled_gains(model: POMDP, source: ScenarioSource, discount: float, keys: Array, episode: Episode) -> Array:
    """The same on each of the scenarios, `[M, T, A]`."""
    assert isinstance(model.action_space, spaces.Discrete)
    actions, steps = int(model.action_space.n), model.horizon
    drawn = draw(source, keys, episode)
    here = jnp.eye(steps, dtype=bool)[:, None, :]
    others = jnp.arange(actions, dtype=episode.action.dtype)[None, :, None]
    sequences = jnp.where(here, others, episode.action[None, None]).reshape(steps * actions, steps)
    # An episode that ended by itself may have gone on; one that was cut off ends there.
    count = jnp.where(ended(model, drawn, episode)[1], steps, episode.length)
    end = LoggedEnd(episode.length, None, discount)
    returns, _ = play(model, drawn, end, count, jnp.concatenate([episode.action[None], sequences]))
    return (returns[1:] - returns[:1]).T.reshape(-1, steps, actions)
