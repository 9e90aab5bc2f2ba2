"""Fitted Q evaluation (Le et al., 2019) over logged steps, step t of at most T.

    Q_t(o, a) = r(o, a) + γ E[c_t V_{t+1}(h') | o, a],   V_t(h) = Σ_a π(a | h) Q_t(o, a),   V_T = 0,

with γ the discount and c_t whether the episode goes on. The rewards r and the expectations are regressions over logged
steps; V_0(o_1) is the value over T steps. Ends are three things, and the log itself tells which:

- **The horizon.** What follows step T - 1, the last that any episode has, counts for nothing. So that step tells of
  rewards, and not of how episodes go on, whatever flags it has.
- **Ends by state**, which depend on (o, a) alone: the regression sees them as steps that lead to nothing. Where ends
  depend on the time, too (`ends_depend_on_time`), Q_t is fitted to the steps at that time.
- **Truncation.** An episode that was cut off goes on from the last observation, where that was logged; where not, its
  last step tells of rewards only.

The world does not change otherwise: rewards and transitions are pooled over time.

Where actions are numbers, Q is linear in features of (o, a), and the sum over actions is one over a few points of the
policy's distribution (`coulda.evaluation.nodes`).
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import (
    as_known_by,
    correction_diagnostic,
    graded,
    log_diagnostics,
    log_itself_diagnostic,
    spread_diagnostic,
)
from coulda.evaluation.estimate import Diagnostic, Estimate, SinglePolicyMethod, unsupported
from coulda.evaluation.intervals import Interval, Precision, student
from coulda.evaluation.markov import markov_diagnostic, residual_diagnostic
from coulda.evaluation.nodes import node_weights
from coulda.evaluation.reading import Features, Log, Reading, generator
from coulda.evaluation.regressions import LinearQ, NetworkQ, QFunction, QuadraticQ, TableQ
from coulda.evaluation.steps import CANDIDATES, Steps, default_regression, logged_steps, seen_by, steps_of
from coulda.keys import apart, quick
from coulda.scales import student_quantile

DENSE_CELLS = 4096
"""Cells (o, a) up to which FQE by a table is a product of matrices, of at most 64 MB, and not a loop over steps."""
CROSSED_CELLS = 1024
"""Cells up to which the sums of all folds are made at once, 4 MB each, in one pass over the log and not in five."""
OTHER_TIMES = 1e-3
"""Weight of steps at other times in a table, where ends depend on time: they speak where nothing else does."""
FOLDS = 5
MOST_MULTIPLIED = 32
"""Features up to which their products are tried: 560 of them; those of an image would fill the memory."""


class Values(eqx.Module):
    """Q and V with the right number of steps to go at every logged step, as they count in the return: by γ^t."""

    q: Array
    """γ^t Q_t(o_t, a_t), `[N, T]`, t from 0."""
    v: Array
    """γ^t V_t(h_t), `[N, T + 1]`; zero at T."""

    @staticmethod
    def of(q: Array, v: Array, discount: float) -> "Values":
        """Of Q_t(o_t, a_t) and V_t(h_t), `[N, T]` each."""
        if discount != 1:
            worth = np.asarray(discount ** np.arange(q.shape[1]), np.float32)[None]
            q, v = q * worth, v * worth
        return Values(q, jnp.concatenate([v, jnp.zeros_like(v[:, :1])], 1))


@eqx.filter_jit
def fit_values(regression: QFunction, steps: Steps, weight: Array) -> Values:
    """Fit Q_{T-1} … Q_0 to the steps, episodes weighted by `weight` `[N]`, and evaluate each where it belongs."""
    if isinstance(regression, TableQ) and _is_small(regression, steps, DENSE_CELLS):
        return table_values(regression, steps, weight)
    return iterated_values(regression, steps, weight)


def _is_small(table: TableQ, steps: Steps, most: int) -> bool:
    """Whether sums over pairs of cells fit into memory, and ends are those of the cells."""
    return table.num_observations * steps.policy.shape[-1] <= most and not steps.timed


def table_values(table: TableQ, steps: Steps, weight: Array) -> Values:
    """`iterated_values` of a table, from sums over the log that are made once.

    With cells c = (o, a),

    Q_t(c) = r̄(c) + γ Σ_c' M(c, c') Q_{t+1}(c'),

    M being the mean of π(a' | h') over those of the steps in c that lead on to o', and zero for the others.
    """
    all_in_one = jnp.zeros(len(weight), jnp.int32)
    sums = _sums(table, steps, weight, all_in_one, 1)
    return _looked_up(table, steps, jax.vmap(lambda one: _tables(one, steps))(sums), all_in_one)


@eqx.filter_jit
def cross_table_values(table: TableQ, steps: Steps, fold: Array, folds: int) -> Values:
    """`table_values` of each episode from those of other folds: sums over all, less those over its own."""
    sums = _sums(table, steps, jnp.ones(len(fold)), fold, folds)
    others = jax.tree.map(lambda own: own.sum(0, keepdims=True) - own, sums)
    return _looked_up(table, steps, jax.vmap(lambda one: _tables(one, steps))(others), fold)


class _Sums(eqx.Module):
    """Over the steps in each cell, for each group of episodes, `[G, C]`."""

    known: Array
    lived: Array
    paid: Array
    onward: Array
    """Σ π(a' | h') by what was seen next and could be done there, `[G, C, C]`."""


def _sums(table: TableQ, steps: Steps, weight: Array, group: Array, groups: int) -> _Sums:
    num_actions = steps.policy.shape[-1]
    size = table.num_observations * num_actions
    place = size * group[:, None] + steps.inputs[:, :-1] * num_actions + steps.action
    known, live = (jnp.where(flag, weight[:, None], 0.0) for flag in (steps.known, steps.live))
    columns = jnp.stack([known, live, live * steps.reward], -1).reshape(-1, 3)
    totals = jax.ops.segment_sum(columns, place.ravel(), groups * size).reshape(groups, size, 3)
    onward = jnp.where(steps.continues, known, 0.0)[..., None] * steps.policy[:, 1:]
    pairs = place * table.num_observations + steps.inputs[:, 1:]
    led = jax.ops.segment_sum(onward.reshape(-1, num_actions), pairs.ravel(), groups * size * table.num_observations)
    return _Sums(totals[..., 0], totals[..., 1], totals[..., 2], led.reshape(groups, size, size))


def _tables(sums: _Sums, steps: Steps) -> Array:
    """Q_0 … Q_{T-1}, `[T, C]`."""
    mean = lambda total, count: total / jnp.where(count > 0, count, 1.0)
    matrix = steps.discount * mean(sums.onward, sums.known[:, None])
    reward = mean(sums.paid, sums.lived)

    def step(q: Array, _: None) -> tuple[Array, Array]:
        q = reward + matrix @ q
        return q, q

    return jax.lax.scan(step, jnp.zeros_like(reward), length=steps.reward.shape[1], reverse=True)[1]


def _looked_up(table: TableQ, steps: Steps, tables: Array, group: Array) -> Values:
    """Of each episode in the tables of its group, `[G, T, C]`."""
    where = group[:, None], jnp.arange(tables.shape[1])[None]
    every = tables.reshape(*tables.shape[:2], table.num_observations, -1)[*where, steps.inputs[:, :-1]]
    q = jnp.take_along_axis(every, steps.action[..., None], -1)[..., 0]
    return Values.of(q, jnp.sum(steps.policy[:, :-1] * every, axis=-1), steps.discount)


def iterated_values(regression: QFunction, steps: Steps, weight: Array) -> Values:
    """Rewards, then how episodes go on from each step, fitted to targets that the step after it gives."""
    if steps.taken is not None:
        assert isinstance(regression, LinearQ)
        regression = LinearQ(regression.ridge)  # what it is linear in is there already
    horizon, num_actions = steps.reward.shape[1], steps.policy.shape[-1]
    before = steps.inputs[:, :-1] if steps.taken is None else steps.taken

    def told(parameters: Any) -> tuple[Array, Array]:
        """Of all that could be done next, `[N, T + 1, A]`, and of what was done, `[N, T]`."""
        every = regression.predict(parameters, steps.inputs)
        if steps.taken is not None:
            return every, regression.predict(parameters, steps.taken)[..., 0]
        return every, jnp.take_along_axis(every[:, :-1], steps.action[..., None], axis=-1)[..., 0]

    reward, paid = told(_rewards(regression, steps, weight))
    known = jnp.where(steps.known, weight[:, None], 0.0)

    def at(t: Array, columns: Any) -> Any:
        """The steps that tell of time t: those at it, or all; a table weighs, so that it can speak of every cell."""
        if not steps.timed or isinstance(regression, TableQ):
            return columns
        return jax.tree.map(lambda column: jax.lax.dynamic_slice_in_dim(column, t, 1, axis=1), columns)

    def prepare(t: Array) -> Any:
        weighs = steps.timed and isinstance(regression, TableQ)
        weight = known * jnp.where(jnp.arange(horizon) == t, 1.0, OTHER_TIMES)[None] if weighs else known
        inputs, action, weight = at(t, (before, steps.action, weight))
        return regression.prepare(inputs, action, weight, num_actions)

    shared = None if steps.timed else prepare(jnp.int32(0))

    def worth(q: Array, done: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
        value = jnp.sum(steps.policy * q, axis=-1)
        return value[:, 1:], (done[:, t], value[:, t])

    def iterate(parameters: Any, following: Array, t: Array) -> tuple[Any, Array, tuple[Array, Array]]:
        prepared = prepare(t) if shared is None else shared
        parameters = regression.fit(
            prepared, at(t, jnp.where(steps.continues, steps.discount * following, 0.0)), parameters
        )
        every, done = told(parameters)
        return parameters, *worth(reward + every, paid + done, t)

    following, last = worth(reward, paid, jnp.int32(horizon - 1))
    found = [last]
    if horizon > 1:
        start, following, one = iterate(None, following, jnp.int32(horizon - 2))
        dynamic, static = eqx.partition(start, eqx.is_array)

        def step(carry: Any, t: Array) -> tuple[Any, tuple[Array, Array]]:
            after, following, told = iterate(eqx.combine(carry[0], static), carry[1], t)
            return (eqx.filter(after, eqx.is_array), following), told

        _, earlier = jax.lax.scan(step, (dynamic, following), jnp.arange(horizon - 2), reverse=True)
        found = [tuple(jnp.moveaxis(x, 0, 1) for x in earlier), one, last]
    columns = [[x if x.ndim == 2 else x[:, None] for x in pair] for pair in found]
    q, v = (jnp.concatenate(parts, 1) for parts in zip(*columns, strict=True))
    return Values.of(q, v, steps.discount)


def _rewards(regression: QFunction, steps: Steps, weight: Array) -> Any:
    """The parameters of r(o, a), from every step."""
    live = jnp.where(steps.live, weight[:, None], 0.0)
    before = steps.inputs[:, :-1] if steps.taken is None else steps.taken
    prepared = regression.prepare(before, steps.action, live, steps.policy.shape[-1])
    return regression.fit(prepared, steps.reward, None)


_permuted = jax.jit(jax.random.permutation, static_argnums=1)  # one program, and not one for each of its parts


def cross_fitted(key: Array, regression: QFunction, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """γ^t Q `[N, T]` and γ^t V `[N, T + 1]` of each episode, fitted to the other folds; zero after the end."""
    n = len(steps.reward)
    fold = np.asarray(_permuted(quick(key), n)) % min(FOLDS, n)
    live = np.asarray(steps.live)
    if isinstance(regression, TableQ) and _is_small(regression, steps, CROSSED_CELLS) and n > 1:
        found = cross_table_values(regression, steps, jax.device_put(fold.astype(np.int32)), min(FOLDS, n))
        q, v = np.asarray(found.q, float), np.asarray(found.v, float)
    else:
        q, v = np.zeros(live.shape), np.zeros((n, live.shape[1] + 1))
        for number in range(min(FOLDS, n)):
            held_out = fold == number
            values = fit_values(regression, steps, jax.device_put((~held_out | (n == 1)).astype(np.float32)))
            q[held_out], v[held_out] = np.asarray(values.q)[held_out], np.asarray(values.v)[held_out]
    # V after the last step counts only where the episode would have gone on, and at the horizon for nothing.
    alive = np.concatenate([live[:, :1], np.asarray(steps.continues)], 1)
    alive[:, -1] = False
    return q * live, v * alive


def chosen_regression(reading: Reading) -> QFunction:
    """A table for discrete observations; of vectors the candidate that predicts logged returns best."""
    first = default_regression(reading.log)
    if isinstance(first, TableQ):
        return first
    size = reading.features[seen_by(first).name].shape[-1]
    candidates = [one for one in CANDIDATES if size <= MOST_MULTIPLIED or not isinstance(one, QuadraticQ)]
    return reading.once("regression", lambda: min(candidates, key=lambda one: _prediction_error(reading, one)))


def _prediction_error(reading: Reading, regression: QFunction) -> float:
    """Mean squared error of the returns to go of held-out episodes."""
    to_go = np.flip(np.cumsum(np.flip(reading.paid, 1), 1), 1)
    steps = logged_steps(reading, regression)
    q, _ = cross_fitted(jax.random.key(0), regression, steps)
    return float(((q - to_go)[reading.live] ** 2).mean())


@dataclass(frozen=True)
class FittedQ(SinglePolicyMethod):
    """The expected return by fitted Q evaluation; needs no behavior probabilities.

    The interval is the bootstrap's over episodes with Q fitted anew each time; a network that is trained is fitted
    once, and the interval then only covers the spread of first observations.
    """

    regression: QFunction | None = None
    """By default a table for discrete observations, and the best of `CANDIDATES` for others."""
    resamples: int = 200
    """Logs that the bootstrap draws."""

    @property
    def name(self) -> str:
        """FQE."""
        return "FQE"

    def features(self, log: Log) -> Features:
        """What the regression sees."""
        return seen_by(self.regression or default_regression(log))

    def of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        """The estimate of one policy; `key` is for the bootstrap."""
        if policy not in reading.probabilities:
            return missing_actions(self.name, reading)
        key, key_markov, key_folds = apart(key, 3)
        regression = self.regression or chosen_regression(reading)
        steps = steps_of(reading, policy, regression)
        once = jax.device_put(np.ones(len(reading), np.float32))
        first = np.asarray(fit_values(regression, steps, once).v, float)[:, 0]
        value, found = float(first.mean()), student(first, precision.level)
        refitted = not isinstance(regression, NetworkQ)
        if refitted:
            spread = np.asarray(_refits(key, self.resamples, regression, steps), float)
            half = student_quantile(0.5 + precision.level / 2, self.resamples - 1) * spread.std(ddof=1)
            found = Interval(value - half, value + half, precision.level, "bootstrap")
        checks = fit_checks(key_markov, key_folds, reading, regression, steps, found)
        q, v = cross_fitted(key_folds, regression, steps)
        about_log = spread_diagnostic(reading.returns) + log_diagnostics(reading, goes_on=True)
        diagnostics = (unseen_actions(regression, steps, reading, policy), *checks, *about_log)
        diagnostics = (*correction_diagnostic(reading, policy, q, v, found), *diagnostics)
        if not refitted:
            sentence = "The network was fitted once; its own error is not in the interval."
            diagnostics += (Diagnostic("one fit", 1.0, "caution", sentence),)
        details = {"regression": type(regression).__name__, "ends depend on time": steps.timed}
        row = Estimate("FQE", value, found, first, float(len(reading)), diagnostics=diagnostics, details=details)
        return as_known_by(reading, row)


def fit_checks(
    key_markov: Array, key_folds: Array, reading: Reading, regression: QFunction, steps: Steps, interval: Interval
) -> tuple[Diagnostic, ...]:
    """What can be asked of fitted values without the truth: the log itself, and whether the past matters."""
    logged = logged_steps(reading, regression)
    q, v = reading.once(("logged values", regression), lambda: cross_fitted(key_folds, regression, logged))
    itself = log_itself_diagnostic(q[:, 0], reading, interval)
    if isinstance(regression, TableQ):
        return itself + past_matters(key_markov, regression, steps)
    errors = np.where(reading.live, reading.paid + v[:, 1:] - q, 0.0)
    return itself + residual_diagnostic(
        generator(key_markov), reading.features[seen_by(regression).name], reading, errors
    )


@eqx.filter_jit
def _refits(key: Array, resamples: int, regression: QFunction, steps: Steps) -> Array:
    """The value on so many logs drawn with replacement."""
    n = steps.reward.shape[0]

    def one(key: Array) -> Array:
        counts = jnp.bincount(jax.random.randint(key, (n,), 0, n), length=n).astype(float)
        return counts @ fit_values(regression, steps, counts).v[:, 0] / n

    return jax.lax.map(one, jax.random.split(quick(key), resamples))


def past_matters(key: Array, regression: QFunction, steps: Steps) -> tuple[Diagnostic, ...]:
    """Whether the observations are Markov, for tables. Consumes `key`."""
    if not isinstance(regression, TableQ):
        return ()
    found = jax.tree.map(np.asarray, steps)
    continues = found.continues & found.known
    return markov_diagnostic(
        generator(key), found.inputs, found.action, found.reward.astype(float), found.live, continues
    )


def missing_actions(name: str, reading: Reading) -> Estimate:
    """What to say of a policy that is a column of the probabilities of what was done."""
    return unsupported(
        name,
        "no probabilities",
        "Fitted values need the policy's probability of every action, and only those of the actions taken are known. "
        "Give a column for each, x_0, x_1, … for column:x, or the policy itself.",
        len(reading),
    )


def unseen_actions(regression: QFunction, steps: Steps, reading: Reading, policy: str) -> Diagnostic:
    """How much of what the policy would do was never tried in the same discrete observation, or at all."""
    if reading.continuous:
        return _outside(reading, policy)
    unseen = float(_unseen(regression, steps))
    return Diagnostic(
        "unseen actions",
        unseen,
        # What is unseen counts as worth nothing, so the bias is up to this share of the value.
        "trust" if unseen < 0.01 else "caution" if unseen < 0.1 else "do not trust",
        f"{unseen:.1%} of what the policy would do at logged observations was never done there, and counts as worth 0.",
    )


@eqx.filter_jit
def _unseen(regression: QFunction, steps: Steps) -> Array:
    """The share of the policy's probabilities that is of actions never seen."""
    live = steps.live.astype(float)
    if isinstance(regression, TableQ):
        prepared = regression.prepare(steps.inputs[:, :-1], steps.action, live, steps.policy.shape[-1])
        seen = regression.predict(regression.fit(prepared, jnp.ones_like(live), None), steps.inputs)[:, :-1] > 0
    else:
        taken = jax.nn.one_hot(steps.action, steps.policy.shape[-1]) * live[..., None]
        seen = jnp.broadcast_to(taken.sum((0, 1)) > 0, taken.shape)
    mass = steps.policy[:, :-1] * live[..., None]
    return jnp.sum(jnp.where(seen, 0.0, mass)) / jnp.sum(mass)


def _outside(reading: Reading, policy: str) -> Diagnostic:
    """How much of what the policy would do is beyond all that was done, where actions are numbers."""
    assert reading.action is not None
    done, would = reading.action[reading.live], reading.probabilities[policy][:, :-1][reading.live]
    beyond = ((would < done.min(0)) | (would > done.max(0))).any(-1) @ node_weights(done.shape[-1])
    share = float(beyond.mean())
    return Diagnostic(
        "unseen actions",
        share,
        graded(share, 0.01, 0.1),
        f"{share:.1%} of what the policy would do at logged observations is beyond all actions that were taken: there "
        "the fitted values are extrapolated.",
    )
