"""Who made a log? A policy that is fitted to it, and `fit_behavior`: probabilities for a log that has none.

Where what was done is no function of the observation (`Doubt`), episodes that a right model makes under the fitted
policy differ from the logged ones.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from gymnasium import spaces
from jax import Array

from coulda.episodes.log import EpisodeLog, spans
from coulda.episodes.spaces import HashableSpace, features
from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution, Normal
from coulda.pomdp import Episode, Policy
from coulda.pomdp.batching import run
from coulda.pomdp.rollout import taken_log_probs
from coulda.scales import normal_above, normal_log_prob

LEAST_SCALE = 1e-6
"""Of a continuous action, where the observation says exactly what is done: a density needs a scale above zero."""
LOG_SCALES = float(np.log(LEAST_SCALE)), 20.0
"""Within which scales are kept."""
FOLDS = 5
"""Into which episodes are dealt, where each is judged by a fit to the others."""
FEWEST = 10
"""Episodes of each side, from which on a quantity is tested."""
MOST_FEATURES = 256
"""Of an observation; more are projected onto so many random directions."""
UNLIKELY = 0.01
"""Under a behavior that is a function of the observation: what is less likely makes it doubtful."""
SMALL_PENALTY = 0.01
"""Of the fitted behavior. With fit_behavior's own, 1, what was never done in 100 visits is done in 2 % of them."""
SMALL_GAP = 0.005
"""Nats per episode between the logged and the fitted behavior: they move no mean by more than √(2 · 0.005) = 0.1
standard deviations, which is less than is found."""
SMALL_CORRELATION = 0.05
"""Of what the fitted behavior leaves unexplained with what it does not see; it explains 0.25 % of the choices."""
_NOT_OF_THE_OBSERVATION = (
    "The behavior is not a function of the observation that could be fitted (what was done depends on the step, on "
    "what was done before, or otherwise on what was seen), so that the model cannot be checked by simulating it."
)


class FittedBehavior(Policy):
    """μ(a | o) of a regression: softmax of a linear function of the observation, or a Gaussian location-scale one."""

    space: HashableSpace = eqx.field(static=True)
    """Of observations: their categories enter as one-hot, their numbers standardized."""
    center: Array
    """`[F]`."""
    scale: Array
    """`[F]`."""
    weights: Array
    """`[F + G + 1, K]`, the intercepts last; K actions, or K numbers of a continuous one."""
    log_scale: Array | None = None
    """The same of the logarithm of a continuous action's standard deviations, `[F + 1, K]`."""
    shape: tuple[int, ...] = eqx.field(static=True, default=())
    """Of a continuous action."""
    gaps: tuple[int, ...] = eqx.field(static=True, default=())
    """The G features that were missing somewhere: whether they are is seen, too."""

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, NoiseDistribution]:
        """Of the observation alone."""
        seen = self.inputs(observation)
        outputs = seen @ self.weights
        if self.log_scale is None:
            return carry, Categorical(logits=outputs)
        scale = jnp.exp(jnp.clip(seen @ self.log_scale, *LOG_SCALES))
        return carry, Normal(outputs.reshape(self.shape), scale.reshape(self.shape))

    def inputs(self, observation: Any) -> Array:
        """What the regression sees, `[F + G + 1]`: a number that is missing stands at its mean."""
        seen = (features(self.space.value, observation) - self.center) / self.scale
        missing = jnp.isnan(seen)
        gaps = missing[np.array(self.gaps, int)].astype(seen.dtype)
        return jnp.concatenate([jnp.where(missing, 0.0, seen), gaps, jnp.ones(1)])


def fitted_behavior(log: EpisodeLog, penalty: float = 1.0) -> FittedBehavior:
    """The policy that made the log, as far as it is a function of the observation: a regression of actions on it.

    Multinomial logistic for discrete actions, Gaussian with linear mean and log-scale for continuous ones.

    Args:
        log: of discrete or of continuous actions.
        penalty: of the squared weights, as if that many observations had spoken for uniform actions. It keeps
            actions that were never taken in some place at a probability above zero.
    """
    actions, space = log.schema.action_space, HashableSpace(log.schema.observation_space)
    if not isinstance(actions, spaces.Discrete | spaces.Box):
        raise CouldaError(f"a behavior is fitted to discrete or continuous actions; this log's are {actions}")
    acted_on = _acted_on(log)
    if isinstance(actions, spaces.Discrete):
        # Equal numbered observations are one row of counts, however many they are.
        seen, row = acted_on, np.arange(log.num_steps)
        if isinstance(space.value, spaces.Discrete):
            seen, row = np.unique(acted_on, return_inverse=True)
        start = _unfitted(space, seen)
        counts = np.zeros((row.max() + 1, int(actions.n)), np.float32)
        np.add.at(counts, (row, log.action - int(actions.start)), 1)
        weights = _logistic(_inputs(start, seen), jax.device_put(counts), penalty)
        return eqx.tree_at(lambda policy: policy.weights, start, weights)
    start = _unfitted(space, acted_on)
    return _linear(start, _inputs(start, acted_on), log.action, actions, penalty)


def fit_behavior(log: EpisodeLog, penalty: float = 1.0) -> EpisodeLog:
    """The log with log μ(a | o) of a regression of actions on observations, see `fitted_behavior`.

    Categories of a discrete observation enter as one-hot, numbers standardized. Densities of continuous actions are
    those of a fit to other episodes (cross-fitting): a regression makes its own residuals too small. The result is
    marked as fitted: estimates that use it inherit the regression's error, and a behavior policy with memory is not
    captured.

    Args:
        log: of discrete or of continuous actions.
        penalty: see `fitted_behavior`.
    """
    if isinstance(log.schema.action_space, spaces.Discrete):
        return log.with_log_prob(_log_probs(fitted_behavior(log, penalty), log), behavior="fitted")
    return log.with_log_prob(held_out(log, _log_probs, penalty), behavior="fitted")


def held_out(log: EpisodeLog, judge: Callable[[FittedBehavior, EpisodeLog], np.ndarray], penalty: float) -> np.ndarray:
    """What `judge` says of each step, `[ΣT_i, ...]`, by a behavior that was fitted to other episodes."""
    if len(log) < FOLDS:
        return judge(fitted_behavior(log, penalty), log)
    fold, parts = np.arange(len(log)) % FOLDS, []
    for number in range(FOLDS):
        fitted = fitted_behavior(log.take(np.flatnonzero(fold != number)), penalty)
        parts.append(judge(fitted, log.take(np.flatnonzero(fold == number))))
    rows = [spans(log.starts[fold == number], log.lengths[fold == number]) for number in range(FOLDS)]
    return np.concatenate(parts)[np.argsort(np.concatenate(rows))]


def _log_probs(policy: FittedBehavior, log: EpisodeLog) -> np.ndarray:
    """Log μ of the actions that were taken, `[ΣT_i]`."""
    if policy.log_scale is None:
        log_probs = jax.nn.log_softmax(_inputs(policy, _acted_on(log)) @ policy.weights)
        actions = jnp.asarray(log.action - int(log.schema.action_space.start), jnp.int32)  # pyright: ignore[reportAttributeAccessIssue]
        return np.asarray(jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0])
    mean, scale = location_and_scale(policy, log)
    return normal_log_prob(log.action.reshape(mean.shape), mean, scale).sum(1)


def location_and_scale(policy: FittedBehavior, log: EpisodeLog) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of a continuous action at each step, `[ΣT_i, K]` each."""
    assert policy.log_scale is not None
    inputs = _inputs(policy, _acted_on(log))
    scale = jnp.exp(jnp.clip(inputs @ policy.log_scale, *LOG_SCALES))
    return np.asarray(inputs @ policy.weights, float), np.asarray(scale, float)


def choice_probabilities(policy: FittedBehavior, log: EpisodeLog) -> np.ndarray:
    """μ of every discrete action at each step, `[ΣT_i, A]`."""
    return np.asarray(jax.nn.softmax(_inputs(policy, _acted_on(log)) @ policy.weights), float)


def _acted_on(log: EpisodeLog) -> Any:
    """All observations but those after the last actions, `[ΣT_i, ...]`."""
    rows = spans(log.starts + np.arange(len(log)), log.lengths)
    return jax.tree.map(lambda x: x[rows], log.observation)


def _unfitted(space: HashableSpace, observations: Any) -> FittedBehavior:
    """Numbers to mean 0 and scale 1; columns of zeros and ones, among them all one-hot ones, as they are."""
    seen = np.asarray(_features(space, observations))
    known = ~np.isnan(seen)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, seen, 0.0).sum(0, dtype=float) / count
    deviation = np.sqrt((np.where(known, seen - mean, 0.0) ** 2).sum(0) / count)
    keep = ((seen == 0) | (seen == 1) | ~known).all(0) | (deviation == 0)
    center, scale = (np.where(keep, *pair).astype(np.float32) for pair in ((0.0, mean), (1.0, deviation)))
    gaps = tuple(np.flatnonzero(~known.all(0)).tolist())
    weights = np.zeros((len(center) + len(gaps) + 1, 0), np.float32)
    return FittedBehavior(space, *jax.device_put((center, scale, weights)), gaps=gaps)


@eqx.filter_jit
def _features(space: HashableSpace, observations: Any) -> Array:
    return jax.vmap(partial(features, space.value))(observations)


@eqx.filter_jit
def _inputs(policy: FittedBehavior, observations: Any) -> Array:
    return jax.vmap(policy.inputs)(observations)


def _logistic(inputs: Array, counts: Array, penalty: float) -> Array:
    """Weights `[F + 1, K]` that maximize the penalized likelihood of the counts `[rows, K]`: convex, so L-BFGS."""
    shape = inputs.shape[1], counts.shape[1]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _loss(flat.reshape(shape).astype(np.float32), inputs, counts, penalty)
        return float(value), np.asarray(gradient, float).ravel()

    result = scipy.optimize.minimize(
        objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 500}
    )
    return jax.device_put(result.x.reshape(shape).astype(np.float32))


@jax.jit
@jax.value_and_grad
def _loss(weights: Array, inputs: Array, counts: Array, penalty: float) -> Array:
    total = jnp.sum(counts)
    likelihood = jnp.sum(counts * jax.nn.log_softmax(inputs @ weights)) / total
    return -likelihood + 0.5 * penalty / total * jnp.sum(weights[:-1] ** 2)


def _linear(
    start: FittedBehavior, inputs: Array, actions: np.ndarray, space: gymnasium.spaces.Box, penalty: float
) -> FittedBehavior:
    """The mean by penalized least squares; then both by the likelihood, where anything is left unexplained."""
    x, y = np.asarray(inputs, float), np.asarray(actions, float).reshape(len(actions), -1)
    ridge = np.diag([penalty] * (x.shape[1] - 1) + [0.0])
    weights = np.linalg.lstsq(x.T @ x + ridge, x.T @ y, rcond=None)[0]
    spread = (y - x @ weights).std(0)
    log_scale = np.zeros_like(weights)
    log_scale[-1] = np.log(np.maximum(spread, LEAST_SCALE))
    if (spread > LEAST_SCALE).all():
        weights, log_scale = _likeliest(x, y, weights, log_scale, penalty)
    found = jnp.asarray(weights, jnp.float32), jnp.asarray(log_scale, jnp.float32)
    return FittedBehavior(start.space, start.center, start.scale, *found, space.shape, start.gaps)


def _likeliest(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, log_scale: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of mean and log-scale of y `[n, K]`, in units of its scales at the start, so that the search is quick."""
    unit, n = np.exp(log_scale[-1]), len(x)
    shape, kept = (2, *weights.shape), np.append(np.full(len(weights) - 1, penalty), 0.0)[None, :, None]

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        both = flat.reshape(shape)
        logs = np.clip(x @ both[1], -20, 20)
        residual = (y / unit - x @ both[0]) * np.exp(-logs)
        value = (0.5 * residual**2 + logs).sum() + 0.5 * (kept * both**2).sum()
        slope = np.stack([-x.T @ (residual * np.exp(-logs)), x.T @ (1 - residual**2)]) + kept * both
        return float(value / n), slope.ravel() / n

    first = np.stack([weights / unit, np.zeros_like(weights)])
    result = scipy.optimize.minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    found = result.x.reshape(shape)
    found[1, -1] += np.log(unit)
    return found[0] * unit, found[1]


class Doubt(NamedTuple):
    """Why simulated episodes of a right model might differ."""

    sentence: str
    chance: float
    """Of what the doubt rests on."""


def logged_behavior(log: EpisodeLog, logged: Episode, policies: Mapping[str, Policy]) -> tuple[Policy, Doubt | None]:
    """Who made the log: a function of the observation, or a policy that gives the logged probabilities."""
    fitted = fitted_behavior(log, SMALL_PENALTY)
    if not has_probabilities(log):
        chance = unexplained(fitted, logged)
        return fitted, Doubt(_NOT_OF_THE_OBSERVATION, chance) if chance < UNLIKELY else None
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
    if mean < SMALL_GAP or chance >= UNLIKELY:
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
