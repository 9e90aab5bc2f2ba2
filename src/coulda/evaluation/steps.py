"""Logged steps as a regression sees them: of choices, and of actions that are numbers."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import UNUSUAL
from coulda.evaluation.nodes import node_weights
from coulda.evaluation.reading import Features, Log, Reading
from coulda.evaluation.regressions import LinearQ, QFunction, QuadraticQ, RandomFeaturesQ, TableQ
from coulda.scales import chi_square_above, spread_of

CANDIDATES: tuple[QFunction, ...] = (LinearQ(), QuadraticQ(), RandomFeaturesQ())
"""Of vectors: the one that predicts logged returns best, of episodes that it was not fitted to."""


class Steps(eqx.Module):
    """The steps of a log as regression sees them; padded steps have weight zero."""

    inputs: Array
    """Numbers of cells `[N, T + 1]` (tables), or features `[N, T + 1, d]`; where actions are numbers, the features that
    the regression would have under the policy's next action, on average."""
    action: Array
    """`[N, T]`; zero where actions are numbers."""
    reward: Array
    """`[N, T]`."""
    live: Array
    """`[N, T]`."""
    continues: Array
    """`[N, T]`: whether the episode went on, or would have, had it not been cut off."""
    known: Array
    """`[N, T]`: whether the step tells how episodes go on."""
    policy: Array
    """π(a | h_t), `[N, T + 1, A]`; one where actions are numbers."""
    taken: Array | None
    """Where actions are numbers: the features of what was seen and done, `[N, T, d]`."""
    timed: bool = eqx.field(static=True)
    """Whether ends depend on time."""
    discount: float = eqx.field(static=True)
    """γ."""


def seen_by(regression: QFunction) -> Features:
    """What the pass over a log has to keep of observations for a regression."""
    return Features(_seen_name(regression), regression.inputs)


def _seen_name(regression: QFunction) -> str:
    """All families that see features see the same."""
    return "cells" if isinstance(regression, TableQ) else "features"


def default_regression(log: Log) -> QFunction:
    """A table for discrete observations and actions, else the simplest of the candidates, which see the same."""
    seen, done = log.schema.observation_space, log.schema.action_space
    if isinstance(seen, spaces.Discrete) and isinstance(done, spaces.Discrete):
        return TableQ(int(seen.n))
    return CANDIDATES[0]


def steps_of(reading: Reading, policy: str, regression: QFunction) -> Steps:
    """The log's steps as the regression sees them, with the policy's probabilities, or its next actions."""
    return _steps(reading, regression, reading.probabilities[policy])


def logged_steps(reading: Reading, regression: QFunction) -> Steps:
    """The same for whoever made the log: what it did next is what it would do."""
    assert reading.action is not None
    following = np.concatenate([reading.action, reading.action[:, -1:]], 1)
    done = following[:, :, None] if reading.continuous else np.eye(_num_actions(reading), dtype=np.float32)[following]
    steps = _steps(reading, regression, done)
    # What it would have done after it was cut off is not known.
    live, continues, known = (np.asarray(column) for column in (steps.live, steps.continues, steps.known))
    going_on = np.concatenate([live[:, 1:], np.zeros_like(live[:, :1])], 1)
    return eqx.tree_at(lambda s: s.known, steps, jax.device_put(known & (going_on | ~continues)))


def _num_actions(reading: Reading) -> int:
    return max(found.shape[-1] for found in reading.probabilities.values())


def _steps(reading: Reading, regression: QFunction, says: np.ndarray) -> Steps:
    """With probabilities `[N, T + 1, A]` of choices, or next actions `[N, T + 1, K, k]` that are numbers."""
    assert reading.action is not None
    continues, known = _ends(reading)
    inputs = reading.features[_seen_name(regression)]
    timed = ends_depend_on_time(reading, inputs, continues, known)
    action, taken = reading.action, None
    if reading.continuous:
        inputs, taken = _expanded(regression, reading, inputs, says)
        action, says = np.zeros(continues.shape, np.int32), np.ones((*inputs.shape[:2], 1), np.float32)
    columns = action, reading.reward.astype(np.float32), reading.live, continues, known
    arrays = jax.device_put((inputs, *columns, says))  # which, unlike `asarray`, is no program
    return Steps(*arrays, taken=taken, timed=timed, discount=reading.asked.discount)


def _expanded(regression: QFunction, reading: Reading, seen: np.ndarray, following: np.ndarray) -> tuple[Any, Array]:
    """Features of (o, a) for a function that is linear in them: expected under the next actions, and as it was done.

    The expectation of a linear function of features is the function of their expectation, so that V(h) is one product.
    """
    if not isinstance(regression, LinearQ):
        raise CouldaError(
            f"actions are numbers, over which {type(regression).__name__} cannot be averaged; use LinearQ, QuadraticQ "
            "or RandomFeaturesQ"
        )
    assert reading.action is not None
    both = np.concatenate([seen[:, :-1], reading.action], -1)[reading.live].astype(float)
    center, scale = both.mean(0), spread_of(both)
    weights = node_weights(following.shape[-1]) if following.shape[2] > 1 else np.ones(1)
    arrays = (seen, following, weights, center, scale)
    expected = _expected(regression, *(jnp.asarray(x, jnp.float32) for x in arrays))
    arrays = (seen[:, :-1], reading.action[:, :, None], np.ones(1), center, scale)
    return expected, _expected(regression, *(jnp.asarray(x, jnp.float32) for x in arrays))


@eqx.filter_jit
def _expected(regression: LinearQ, seen: Array, actions: Array, weights: Array, center: Array, scale: Array) -> Array:
    """Σ_k w_k features(o, a_k), with actions `[N, T, K, k]`: `[N, T, d]`."""

    def one(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        action, weight = pair
        both = (jnp.concatenate([seen, action], -1) - center[None, None]) / scale[None, None]
        return total + weight * regression.expand(both), None

    size = jax.eval_shape(regression.expand, jnp.concatenate([seen, actions[:, :, 0]], -1)).shape
    return jax.lax.scan(one, jnp.zeros(size), (jnp.moveaxis(actions, 2, 0), weights))[0]


def _ends(reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """Whether each step leads on, and whether that is known, `[N, T]` each."""
    horizon = reading.reward.shape[1]
    last = np.arange(horizon) == reading.lengths[:, None] - 1
    cut = last & ~reading.terminated[:, None]
    unseen = cut if reading.log.schema.last_observation == "repeated" else np.zeros_like(cut)
    at_horizon = np.broadcast_to(np.arange(horizon) == horizon - 1, last.shape)
    return reading.live & ~(last & ~cut), reading.live & ~unseen & ~at_horizon


def ends_depend_on_time(reading: Reading, inputs: np.ndarray, continues: np.ndarray, known: np.ndarray) -> bool:
    """Whether episodes end sooner or later than (o, a) alone would have it, before the horizon.

    A chi-square over times: ends at each time against those expected from the ends of each cell (o, a). Of vectors the
    cell is the action alone, and of actions that are numbers there is one cell, so that what differs over time for
    another reason is taken for time, which costs precision and no bias.
    """
    assert reading.action is not None
    ended = known & ~continues
    if not ended.any():
        return False
    seen = inputs[:, :-1].astype(int) if inputs.ndim == 2 else 0
    action = np.zeros(known.shape, int) if reading.continuous else reading.action
    cell = (seen * (int(action.max()) + 1) + action)[known]
    rate = np.bincount(cell, ended[known]) / np.maximum(np.bincount(cell), 1)
    expected = np.zeros(known.shape)
    expected[known] = rate[cell]
    spread = (expected * (1 - expected)).sum(0)
    used = spread > 0
    square = (((ended.sum(0) - expected.sum(0))[used]) ** 2 / spread[used]).sum()
    return bool(used.sum() > 1 and chi_square_above(square, used.sum() - 1) < UNUSUAL)
