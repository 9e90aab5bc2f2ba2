"""The exact dynamic program over (state, changes left, step), for observed finite models (Tsirtsis et al., 2021).

With the counterfactual rows of each logged step, what would have happened is a Markov decision process of its own, and
the best way of deciding otherwise at most k times is found by backward induction. The values for k, k - 1, …, 0 changes
left are made together, so that every k costs one pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.evaluation.sensitivity import fill
from coulda.hindsight.tables import PLAIN_ROW, LoggedSteps, ObservedTables
from coulda.scales import unit_of


class Choices(eqx.Module):
    """Which decisions may be changed, and at what cost."""

    free: Array
    """Whether the decision at each step may be changed, `[T]`."""
    allowed: Array
    """Whether each action may be taken instead, `[A]`."""
    cost: Array
    """Of a change, in units of the return."""
    discount: Array
    """γ."""
    worth: Array
    """γ^t, `[T]`."""
    afterwards: Array | None
    """Who decides after the logged end, π(a | s) `[S, A]`; None where the last action is kept."""


class Path(NamedTuple):
    """The likeliest course of events with at most k changes, for each k: C = 0 … k."""

    state: Array
    """`[C, T + 1]`."""
    action: Array
    """`[C, T]`."""
    reward: Array
    """As it counts in the return, `[C, T]`; 0 after the end."""
    live: Array
    """`[C, T]`: before the end."""
    influence: Array
    """Total variation between the counterfactual row and the model's own, `[C, T]`; 0 after the end."""


class Solved(NamedTuple):
    """One episode, for each k: C = 0 … k."""

    value: Array
    """The best expected return, net of what changes cost, `[C]`."""
    worst: Array
    """The best that holds for every SCM with the model's probabilities, `[C]`."""
    best: Array
    """The best in the kindest of them, `[C]`."""
    policy: Array
    """The action at each step, in each state, with each number of changes left, `[T, S, C]`."""
    single: Array
    """What the best single change at each step gains, if everything else is done as it was, `[T]`."""
    path: Path


Expect = Callable[[Array, Array, Array, Array, Array], Array]
"""(s, a, k, row, V `[S, C]`) of a logged step -> the worth of each action in each state, `[A, S, C]`."""


def solve(tables: ObservedTables, rows: Array, choices: Choices, changes: int, bounds: bool, steps: LoggedSteps):
    """`Solved` for one episode; without `bounds` the worst and the best are those of the named mechanism.

    `rows` are `LoggedBatch.rows`.
    """

    def named(state: Array, action: Array, category: Array, row: Array, value: Array) -> Array:  # noqa: ARG001
        return tables.expect(rows[row], value)

    value, policy, single = _induction(tables, named, choices, changes, steps)
    path = jax.vmap(lambda left: _follow(tables, rows, policy, choices, steps, left))(jnp.arange(changes + 1))
    if not bounds:
        return Solved(value, value, value, policy, single, path)
    worst, best = (_induction(tables, _robust(tables, sign), choices, changes, steps)[0] for sign in (-1.0, 1.0))
    return Solved(value, worst, best, policy, single, path)


def _induction(
    tables: ObservedTables, expect: Expect, choices: Choices, changes: int, steps: LoggedSteps
) -> tuple[Array, Array, Array]:
    """Values at the first state `[C]`, the policy `[T, S, C]`, and what single changes gain `[T]`.

    Values of a step are as they count there, so that a cost, which is one of the return, is worth more the later.
    """
    actions, states, _ = tables.probabilities.shape
    unit = unit_of(tables.reward)

    def step(value: Array, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        state, action, category, row, live, counts, free, counted = inputs
        worth = expect(state, action, category, row, choices.discount * value)
        stay, others = worth[action], jnp.where(_others(choices, action), worth, -jnp.inf)
        if choices.afterwards is not None:
            stay = jnp.where(live, stay, jnp.einsum("sa,asc->sc", choices.afterwards, worth))
        best = jnp.max(others, axis=0)
        # Two plain reductions: XLA:CPU does not vectorize an argmax.
        which = jnp.min(jnp.where(others == best[None], jnp.arange(actions)[:, None, None], actions - 1), axis=0)
        changed = jnp.roll(best - choices.cost / counted, 1, axis=1)  # with c changes left, c - 1 remain
        possible = free & live & (jnp.arange(changes + 1) > 0)[None]
        # A tie, to rounding, changes nothing.
        margin = 16 * jnp.finfo(value.dtype).eps * (unit + jnp.abs(stay))
        better = possible & (changed > stay + margin)
        updated = jnp.where(counts, jnp.where(better, changed, stay), value)
        single = jnp.where(live & free, counted * (best[state, 0] - stay[state, 0]) - choices.cost, 0.0)
        return updated, (jnp.where(better, jnp.roll(which, 1, axis=1), action).astype(jnp.int32), single)

    logged = (steps.state[:-1], steps.action, steps.category, steps.row, steps.live, steps.counts)
    start = jnp.zeros((states, changes + 1), tables.probabilities.dtype)
    value, (policy, single) = jax.lax.scan(step, start, (*logged, choices.free, choices.worth), reverse=True)
    return value[steps.state[0]], policy, single


def _others(choices: Choices, action: Array) -> Array:
    """Which actions would be a change, `[A, 1, 1]`."""
    others = choices.allowed & (jnp.arange(choices.allowed.shape[0]) != action)
    return others[:, None, None]


def _robust(tables: ObservedTables, sign: float) -> Expect:
    """The largest (sign = 1) or the least worth over all SCMs with the same probabilities.

    Given that (s, a) led to k by chance p(k), a compatible SCM may send another state and action to any distribution r
    with r(j) ≤ q(j) / p(k); see `coulda.evaluation.sensitivity`. Steps are independent and each pair has a row of its
    own, so that the worst is found row by row. It may differ between numbers of changes left, which a single SCM could
    not: what is found is a bound, and is attained where changes are not limited.
    """
    actions, states, size = tables.probabilities.shape

    def coupled(state: Array, action: Array, category: Array, value: Array) -> Array:
        onward = jnp.where(tables.terminal[:, None], 0.0, value).T
        every = onward[:, None, None, :] if tables.next_state is None else onward[:, tables.next_state]
        worth = tables.reward[None] + jnp.broadcast_to(every, (onward.shape[0], actions, states, size))
        capacity = tables.probabilities / tables.probabilities[action, state, category]
        over_rows = jax.vmap(jax.vmap(lambda q, w: sign * fill(q, sign * w)))
        extreme = jax.vmap(lambda w: over_rows(capacity, w))(worth)
        here = (jnp.arange(actions)[:, None] == action) & (jnp.arange(states)[None] == state)
        again = worth[:, action, state, category]
        return jnp.where(here[None], again[:, None, None], extreme).transpose(1, 2, 0)

    def expect(state: Array, action: Array, category: Array, row: Array, value: Array) -> Array:
        known = lambda: coupled(state, action, category, value)
        # After the logged end the noise is anew in every SCM. A condition: for one episode at a time the costly part is
        # then left out.
        return jax.lax.cond(row == PLAIN_ROW, lambda: tables.expect(tables.probabilities, value), known)

    return expect


def _follow(
    tables: ObservedTables, rows: Array, policy: Array, choices: Choices, steps: LoggedSteps, left: Array
) -> Path:
    """The likeliest path from the logged first state with `left` changes left."""
    afterwards = choices.afterwards

    def step(carry: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        (state, left), (choice, logged, row, was_live, counts, counted) = carry, inputs
        live, action = counts & ~tables.terminal[state], choice[state, left]
        if afterwards is not None:
            action = jnp.where(was_live, action, jnp.argmax(afterwards[state]).astype(action.dtype))
        chances = rows[row, action, state]
        # Not argmax, which XLA:CPU does not vectorize.
        category = jnp.min(jnp.where(chances == jnp.max(chances), jnp.arange(chances.shape[0]), chances.shape[0] - 1))
        arrived = jnp.where(live, tables.arrive(state, action, category), state)
        distance = 0.5 * jnp.sum(jnp.abs(chances - tables.probabilities[action, state]))
        left = left - (live & was_live & (action != logged)).astype(left.dtype)
        paid = counted * tables.reward[action, state, category]
        paid, distance = (jnp.where(live, x, 0.0) for x in (paid, distance))
        return (arrived.astype(jnp.int32), left), (state, action, paid, live, distance)

    inputs = (policy, steps.action, steps.row, steps.live, steps.counts, choices.worth)
    (last, _), (state, *others) = jax.lax.scan(step, (steps.state[0], left), inputs)
    return Path(jnp.append(state, last), *others)
