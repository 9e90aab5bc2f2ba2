"""Fitted Q evaluation (Le et al., 2019), with k steps to go, over logged steps of discrete actions.

Q_k(o, a) ≈ E[r + V_{k-1}(h') | o, a],  V_k(h) = Σ_a π(a | h) Q_k(o, a),  V_0 = 0,

each Q_k by regression over the steps of all episodes, whatever their place in time, since the world does not change;
then V_T(o_1) is the value over T steps. Tables and linear functions are solved for exactly; a network is trained.
"""

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces
from jax import Array
from scipy import stats

from coulda.episodes.spaces import features
from coulda.evaluation.diagnostics import log_diagnostics
from coulda.evaluation.estimate import Diagnostic, Estimate, Interval
from coulda.evaluation.intervals import Precision, student
from coulda.evaluation.markov import markov_diagnostic
from coulda.evaluation.method import SinglePolicyMethod
from coulda.evaluation.reading import Features, Log, Reading, generator
from coulda.trainer import descend

DENSE_CELLS = 4096
"""Cells (o, a) up to which FQE by a table is a product of matrices, of at most 64 MB, and not a loop over steps."""


class Steps(eqx.Module):
    """The steps of a log as regression sees them; padded steps have weight zero."""

    inputs: Array
    """Numbers of cells `[N, T + 1]` (tables), or features `[N, T + 1, d]`."""
    action: Array
    """`[N, T]`."""
    reward: Array
    """`[N, T]`."""
    live: Array
    """`[N, T]`."""
    continues: Array
    """`[N, T]`: whether the episode went on, or would have, had it not been cut off."""
    policy: Array
    """π(a | h_t), `[N, T + 1, A]`."""


class QFunction(eqx.Module):
    """A family of functions Q(o, a) that can be fitted to targets."""

    @abc.abstractmethod
    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """What it sees of one observation."""

    @abc.abstractmethod
    def fit(self, steps: Steps, targets: Array, weight: Array, previous: Any) -> Any:
        """Parameters that fit `targets` `[N, T]` at the actions taken, with `weight` `[N, T]`.

        `previous` are those with one step less to go, None at first.
        """

    @abc.abstractmethod
    def predict(self, parameters: Any, inputs: Array) -> Array:
        """Q of every action, `[..., A]`."""


class TableQ(QFunction):
    """A number for each discrete observation and action: the mean of its targets, and 0 where there are none."""

    num_observations: int = eqx.field(static=True)

    def inputs(self, space: spaces.Space, observation: Array) -> Array:
        """The observation's number."""
        assert isinstance(space, spaces.Discrete)
        return observation - int(space.start)

    def fit(self, steps: Steps, targets: Array, weight: Array, previous: Any) -> Array:  # noqa: ARG002
        """Means over cells `[O, A]`."""
        num_actions = steps.policy.shape[-1]
        cells = (steps.inputs[:, :-1] * num_actions + steps.action).ravel()
        total = partial(jax.ops.segment_sum, segment_ids=cells, num_segments=self.num_observations * num_actions)
        count = total(weight.ravel())
        mean = total((weight * targets).ravel()) / jnp.where(count > 0, count, 1.0)
        return mean.reshape(self.num_observations, num_actions)

    def predict(self, parameters: Array, inputs: Array) -> Array:
        """Look up."""
        return parameters[inputs]


class LinearQ(QFunction):
    """A linear function of the observation's features for each action, by least squares with a small ridge."""

    ridge: float = 1e-3

    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """Its features and a one."""
        return jnp.concatenate([features(space, observation), jnp.ones(1)])

    def fit(self, steps: Steps, targets: Array, weight: Array, previous: Any) -> Array:  # noqa: ARG002
        """Weights `[A, d]`."""
        inputs = steps.inputs[:, :-1]

        def one(action: Array) -> Array:
            chosen = jnp.where(steps.action == action, weight, 0.0)
            gram = jnp.einsum("ntd,nt,nte->de", inputs, chosen, inputs)
            return jnp.linalg.solve(
                gram + self.ridge * jnp.eye(inputs.shape[-1]), jnp.einsum("ntd,nt->d", inputs, chosen * targets)
            )

        return jax.vmap(one)(jnp.arange(steps.policy.shape[-1], dtype=steps.action.dtype))

    def predict(self, parameters: Array, inputs: Array) -> Array:
        """One linear function an action."""
        return inputs @ parameters.T


class NetworkQ(QFunction):
    """A small multilayer perceptron, trained by Adam on all steps at once, starting from one step less to go."""

    width: int = eqx.field(static=True, default=64)
    updates: int = eqx.field(static=True, default=300)
    learning_rate: float = eqx.field(static=True, default=3e-3)
    seed: int = eqx.field(static=True, default=0)

    def inputs(self, space: spaces.Space, observation: Any) -> Array:
        """Its features."""
        return features(space, observation)

    def fit(self, steps: Steps, targets: Array, weight: Array, previous: Any) -> Any:
        """Parameters of the network."""
        size, num_actions = steps.inputs.shape[-1], steps.policy.shape[-1]
        network = eqx.nn.MLP(size, num_actions, self.width, 2, jnp.tanh, key=jax.random.key(self.seed))
        start, static = eqx.partition(network, eqx.is_array)
        start = start if previous is None else previous[0]
        optimizer = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.updates))

        def loss(parameters: Any) -> Array:
            q = self.predict((parameters, static), steps.inputs[:, :-1])
            taken = jnp.take_along_axis(q, steps.action[..., None], axis=-1)[..., 0]
            return jnp.sum(weight * (taken - targets) ** 2) / jnp.sum(weight)

        def update(carry: Any, _: None) -> tuple[Any, None]:
            parameters, state = carry
            return descend(optimizer, jax.grad(loss)(parameters), state, parameters), None

        (parameters, _), _ = jax.lax.scan(update, (start, optimizer.init(start)), length=self.updates)
        return parameters, static

    def predict(self, parameters: Any, inputs: Array) -> Array:
        """The network at each input."""
        network = eqx.combine(*parameters)
        flat = inputs.reshape(-1, inputs.shape[-1])
        return jax.vmap(network)(flat).reshape(*inputs.shape[:-1], -1)


def default_regression(log: Log) -> QFunction:
    """A table for discrete observations, else linear."""
    space = log.schema.observation_space
    return TableQ(int(space.n)) if isinstance(space, spaces.Discrete) else LinearQ()


class Values(eqx.Module):
    """Q and V with the right number of steps to go at every logged step."""

    q: Array
    """Q_{T-t}(o_t, a_t), `[N, T]`, t from 0."""
    v: Array
    """V_{T-t}(h_t), `[N, T + 1]`; zero at T."""


def seen_by(regression: QFunction) -> Features:
    """What the pass over a log has to keep of observations for a regression."""
    return Features(regression, regression.inputs)


def steps_of(reading: Reading, policy: str, regression: QFunction) -> Steps:
    """The log's steps as the regression sees them, with the policy's probabilities."""
    assert reading.action is not None
    columns = reading.action, reading.reward.astype(np.float32), reading.live, _continues(reading)
    inputs, probabilities = reading.features[regression], reading.probabilities[policy]
    return Steps(*map(jnp.asarray, (inputs, *columns, probabilities)))


def _continues(reading: Reading) -> np.ndarray:
    """Whether the episode went on after each step, or would have, `[N, T]`."""
    last = np.arange(reading.reward.shape[1]) == reading.lengths[:, None] - 1
    # The observation after the end is not known where it is repeated, so that nothing can be expected from it.
    unknown = reading.log.schema.last_observation == "repeated"
    return reading.live & ~(last & (reading.terminated[:, None] | unknown))


@eqx.filter_jit
def fit_values(regression: QFunction, steps: Steps, weight: Array) -> Values:
    """Fit Q_1 … Q_T to the steps, episodes weighted by `weight` `[N]`, and evaluate each where it belongs."""
    step_weight = jnp.where(steps.live, weight[:, None], 0.0)
    if isinstance(regression, TableQ) and regression.num_observations * steps.policy.shape[-1] <= DENSE_CELLS:
        return table_values(regression, steps, step_weight)
    return iterated_values(regression, steps, step_weight)


def table_values(table: TableQ, steps: Steps, weight: Array) -> Values:
    """`iterated_values` of a table, from sums over the log that are made once.

    With cells c = (o, a),

    Q_k(c) = r̄(c) + Σ_c' M(c, c') Q_{k-1}(c'),

    M being the mean of π(a' | h') over those of the steps in c that lead on to o', and zero for the others.
    """
    num_actions = steps.policy.shape[-1]
    size = table.num_observations * num_actions
    cells = steps.inputs[:, :-1] * num_actions + steps.action
    count = jax.ops.segment_sum(weight.ravel(), cells.ravel(), size)
    share = weight / jnp.where(count > 0, count, 1.0)[cells]
    reward = jax.ops.segment_sum((share * steps.reward).ravel(), cells.ravel(), size)
    onward = jnp.where(steps.continues, share, 0.0)[..., None] * steps.policy[:, 1:]
    pairs = cells * table.num_observations + steps.inputs[:, 1:]
    matrix = jax.ops.segment_sum(onward.reshape(-1, num_actions), pairs.ravel(), size * table.num_observations)
    matrix = matrix.reshape(size, size)

    def step(q: Array, _: None) -> tuple[Array, Array]:
        q = reward + matrix @ q
        return q, q

    _, tables = jax.lax.scan(step, jnp.zeros(size), length=steps.reward.shape[1], reverse=True)
    times = jnp.arange(len(tables))[None]
    q_all = tables.reshape(len(tables), table.num_observations, num_actions)[times, steps.inputs[:, :-1]]
    v = jnp.sum(steps.policy[:, :-1] * q_all, axis=-1)
    return Values(tables[times, cells], jnp.concatenate([v, jnp.zeros_like(v[:, :1])], 1))


def iterated_values(regression: QFunction, steps: Steps, step_weight: Array) -> Values:
    """Q_1, then each next one fitted to targets that the one before it gives."""
    horizon = steps.reward.shape[1]

    def iterate(previous: tuple[Any, Array], t: Array) -> tuple[tuple[Any, Array], tuple[Array, Array]]:
        parameters, next_value = previous
        targets = steps.reward + jnp.where(steps.continues, next_value, 0.0)
        parameters = regression.fit(steps, targets, step_weight, parameters)
        predicted = regression.predict(parameters, steps.inputs)
        value = jnp.sum(steps.policy * predicted, axis=-1)
        q = jnp.take_along_axis(predicted[:, t], steps.action[:, t][:, None], axis=1)[:, 0]
        return (parameters, value[:, 1:]), (q, value[:, t])

    start, last = iterate((None, jnp.zeros_like(steps.reward)), jnp.int32(horizon - 1))
    dynamic, static = eqx.partition(start, eqx.is_array)

    def step(carry: Any, t: Array) -> tuple[Any, tuple[Array, Array]]:
        after, found = iterate(eqx.combine(carry, static), t)
        return eqx.filter(after, eqx.is_array), found

    _, earlier = jax.lax.scan(step, dynamic, jnp.arange(horizon - 1), reverse=True)
    q, v = (jnp.concatenate([some.T, one[:, None]], 1) for some, one in zip(earlier, last, strict=True))
    return Values(q, jnp.concatenate([v, jnp.zeros_like(v[:, :1])], 1))


@dataclass(frozen=True)
class FittedQ(SinglePolicyMethod):
    """The expected return by fitted Q evaluation; needs no behavior probabilities.

    The interval is the bootstrap's over episodes with Q fitted anew each time, for tables and linear functions; a
    network is fitted once, and the interval then only covers the spread of first observations.
    """

    regression: QFunction | None = None
    """A table for discrete observations and linear for others by default."""
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
        key, key_markov = jax.random.split(key)
        regression = self.regression or default_regression(reading.log)
        steps = steps_of(reading, policy, regression)
        first = np.asarray(fit_values(regression, steps, jnp.ones(len(reading))).v[:, 0], float)
        value, found = float(first.mean()), student(first, precision.level)
        refitted = not isinstance(regression, NetworkQ)
        if refitted:
            spread = np.asarray(_refits(jax.random.split(key, self.resamples), regression, steps), float)
            half = stats.t.ppf(0.5 + precision.level / 2, self.resamples - 1) * spread.std(ddof=1)
            found = Interval(value - half, value + half, precision.level, "bootstrap")
        diagnostics = unseen_actions(regression, steps), *past_matters(key_markov, regression, steps)
        diagnostics += log_diagnostics(reading)
        if not refitted:
            sentence = "The network was fitted once; its own error is not in the interval."
            diagnostics += (Diagnostic("one fit", 1.0, "caution", sentence),)
        return Estimate("FQE", value, found, first, float(len(reading)), diagnostics=diagnostics)


@eqx.filter_jit
def _refits(keys: Array, regression: QFunction, steps: Steps) -> Array:
    """The value on logs drawn with replacement, one a key."""
    n = steps.reward.shape[0]

    def one(key: Array) -> Array:
        counts = jnp.bincount(jax.random.randint(key, (n,), 0, n), length=n).astype(float)
        return counts @ fit_values(regression, steps, counts).v[:, 0] / n

    return jax.lax.map(one, keys)


def past_matters(key: Array, regression: QFunction, steps: Steps) -> tuple[Diagnostic, ...]:
    """Whether the observations are Markov, for tables; a function of features is not asked. Consumes `key`."""
    if not isinstance(regression, TableQ):
        return ()
    found = jax.tree.map(np.asarray, steps)
    return markov_diagnostic(
        generator(key), found.inputs, found.action, found.reward.astype(float), found.live, found.continues
    )


def unseen_actions(regression: QFunction, steps: Steps) -> Diagnostic:
    """How much of what the policy would do was never tried in the same discrete observation."""
    live = steps.live.astype(float)
    if isinstance(regression, TableQ):
        seen = regression.predict(regression.fit(steps, jnp.ones_like(live), live, None), steps.inputs)[:, :-1] > 0
    else:
        taken = jax.nn.one_hot(steps.action, steps.policy.shape[-1]) * live[..., None]
        seen = jnp.broadcast_to(taken.sum((0, 1)) > 0, taken.shape)
    mass = steps.policy[:, :-1] * live[..., None]
    unseen = float(jnp.sum(jnp.where(seen, 0.0, mass)) / jnp.sum(mass))
    return Diagnostic(
        "unseen actions",
        unseen,
        # What is unseen counts as worth nothing, so the bias is up to this share of the value.
        "trust" if unseen < 0.01 else "caution" if unseen < 0.1 else "do not trust",
        f"{unseen:.1%} of what the policy would do at logged observations was never done there, and counts as worth 0.",
    )
