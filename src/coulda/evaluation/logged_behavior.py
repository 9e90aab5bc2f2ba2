"""Who made the log? A behavior that is fitted to it, and whether what was done is a function of the observation.

Where it is none (`Doubt`), episodes that a right model makes under the fitted behavior differ from the logged ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.behavior import LOG_SCALES, FittedBehavior, fitted_behavior
from coulda.episodes.log import concatenate
from coulda.evaluation.diagnostics import UNUSUAL
from coulda.evaluation.reading import Log, run
from coulda.pomdp import POMDP, Episode, Policy
from coulda.pomdp.rollout import taken_log_probs
from coulda.tails import normal_above

MOST_EPISODES = 2000
"""Of each side. With as many, means that differ by 0.15 standard deviations are found in 36 of 40 samples, by 0.1 in
19 of 40: smaller errors of a model pass."""
SMALL_PENALTY = 0.01
"""Of the fitted behavior. With fit_behavior's own, 1, what was never done in 100 visits is done in 2 % of them."""
SMALL_GAP = 0.005
"""Nats per episode between the logged and the fitted behavior: they move no mean by more than √(2 · 0.005) = 0.1
standard deviations, which is less than is found."""
SMALL_CORRELATION = 0.05
"""Of what the fitted behavior leaves unexplained with what it does not see; it explains 0.25 % of the choices."""
FEWEST = 10
"""Episodes of each side, from which on a quantity is tested."""
MOST_FEATURES = 256
"""Of an observation; more are projected onto so many random directions."""
_NOT_OF_THE_OBSERVATION = (
    "The behavior is not a function of the observation that could be fitted (what was done depends on the step, on "
    "what was done before, or otherwise on what was seen), so that the model cannot be checked by simulating it."
)


class Doubt(NamedTuple):
    """Why simulated episodes of a right model might differ."""

    sentence: str
    chance: float
    """Of what the doubt rests on."""


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


def logged_behavior(log: EpisodeLog, logged: Episode, policies: Mapping[str, Policy]) -> tuple[Policy, Doubt | None]:
    """Who made the log: a function of the observation, or a policy that gives the logged probabilities."""
    fitted = fitted_behavior(log, SMALL_PENALTY)
    if not has_probabilities(log):
        chance = unexplained(fitted, logged)
        return fitted, Doubt(_NOT_OF_THE_OBSERVATION, chance) if chance < UNUSUAL else None
    taken, live = np.asarray(logged.log_prob, float), np.asarray(logged.live)
    doubt = _gap((taken - _taken(fitted, logged)).sum(1))
    if doubt is not None:
        for policy in policies.values():
            if (np.abs(taken - _taken(policy, logged))[live] < 1e-3).all():
                return policy, None
    return fitted, doubt


def has_probabilities(log: EpisodeLog) -> bool:
    """Whether those of whoever acted were logged, and not fitted."""
    return log.schema.behavior == "logged" and log.has_probabilities


def _taken(policy: Policy, episodes: Episode) -> np.ndarray:
    return np.asarray(run(eqx.Partial(taken_log_probs, policy), (episodes,)), float)


def _gap(lost: np.ndarray) -> Doubt | None:
    """Of the log-likelihood of each episode that the fitted behavior loses against the logged probabilities, `[N]`.

    Its mean is the divergence of episodes under the one from those under the other. A fit to the same episodes loses
    nothing on average where the behavior is of its kind, and gains a little.
    """
    mean, error = float(lost.mean()), float(lost.std() / np.sqrt(len(lost)))
    chance = float(normal_above(mean / max(error, 1e-12)))
    if mean < SMALL_GAP or chance >= UNUSUAL:
        return None
    return Doubt(
        "The behavior is not a function of the observation that could be fitted (of the log-likelihood of an episode's "
        f"actions {mean:.2g} is lost), so that the model cannot be checked by simulating it.",
        chance,
    )


def unexplained(fitted: FittedBehavior, logged: Episode) -> float:
    """A score test of what the fitted behavior does not see: the action before, the step, squares of numbers.

    The probability that a behavior which is a function of the observation leaves as much unexplained.
    """
    scores, squares, errors = (np.asarray(x, float) for x in run(eqx.Partial(_scores, fitted), (logged,)))
    total, deviation = np.abs(scores.sum(0)), np.sqrt((scores**2).sum(0))
    size = total / np.sqrt(np.maximum(np.outer(squares.sum(0), errors.sum(0)).ravel(), 1e-12))
    # What happened in a few episodes only is not normal yet.
    often = (scores != 0).sum(0) >= FEWEST
    z = np.where(often & (size >= SMALL_CORRELATION), total / np.maximum(deviation, 1e-12), 0.0)
    return min(1.0, float(2 * normal_above(z.max()) * len(z)))


def _scores(fitted: FittedBehavior, episode: Episode) -> tuple[Array, Array, Array]:
    """Sums over an episode: unseen times unexplained `[U * K]`, and the squares of either, `[U]` and `[K]`."""
    acted_on = jax.tree.map(lambda leaf: leaf[:-1], episode.observation)
    inputs = jax.vmap(fitted.inputs)(acted_on)
    steps = len(inputs)
    outputs = inputs @ fitted.weights
    if fitted.log_scale is None:
        done = jax.nn.one_hot(episode.action, outputs.shape[1])
        unexplained = done - jax.nn.softmax(outputs)
    else:
        done = episode.action.reshape(steps, -1)
        unexplained = (done - outputs) / jnp.exp(jnp.clip(inputs @ fitted.log_scale, *LOG_SCALES))
    before = jnp.concatenate([jnp.zeros((1, done.shape[1])), done[:-1]])
    clock = jnp.linspace(0.0, 1.0, steps)[:, None]
    unseen = [before, clock]
    if inputs.shape[1] <= MOST_FEATURES:
        unseen.append(inputs**2)
    unseen = jnp.where(episode.live[:, None], jnp.concatenate(unseen, 1), 0.0)
    unexplained = jnp.where(episode.live[:, None], unexplained, 0.0)
    return (unseen.T @ unexplained).ravel(), jnp.sum(unseen**2, 0), jnp.sum(unexplained**2, 0)
