"""Expectation maximization of finitely many hidden states, whose moves depend on the action (Baum et al., 1970).

An episode that came to its end is in the last state then, which no other episode is ever in.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp import Episode, batched

LEAST = 1e-6
"""Pseudo-counts, so that nothing is divided by nothing."""


class HiddenTables(eqx.Module):
    """Probabilities of S hidden states, the last of which is the end."""

    initial: Array
    """`[S]`."""
    transition: Array
    """`[A, S, S]`."""
    observation: Array
    """`[S, O]`."""
    reward: Array
    """Means by action, state and next state, `[A, S, S]`."""


class Statistics(eqx.Module):
    """What an episode adds to the expected counts."""

    initial: Array
    transition: Array
    observation: Array
    paid: Array
    """Rewards by action, state and next state, `[A, S, S]`."""
    log_evidence: Array


def guess(key: Array, states: int, actions: int, observations: int, spread: Array) -> HiddenTables:
    """Probabilities to start from: near those of the log's observations `[O]`, each state's a little different."""
    keys = jax.random.split(key, 3)
    rows = jax.random.dirichlet(keys[0], jnp.full(states, 1.0), (actions, states))
    stays = jnp.eye(states)[None] + jnp.zeros((actions, 1, 1))
    seen = jax.random.dirichlet(keys[1], 0.5 + spread * observations, (states,))
    first = jax.random.dirichlet(keys[2], jnp.full(states, 5.0))
    return HiddenTables(first, 0.5 * rows + 0.5 * stays, seen, jnp.zeros((actions, states, states)))


def _evidence(tables: HiddenTables, episode: Episode, ended: Array) -> tuple[Array, Array]:
    """p(o_t, and whether it was the end | s_t), `[T + 1, S]`, and which observations there are, `[T + 1]`."""
    steps = episode.live.shape[0]
    time, length = jnp.arange(steps + 1), jnp.sum(episode.live)
    over = jnp.arange(tables.initial.shape[0]) == tables.initial.shape[0] - 1
    agrees = over[None] == ((time == length) & ended)[:, None]
    likely = jnp.where(agrees, tables.observation[:, episode.observation].T, 0.0)
    return likely, time <= length


def expect(tables: HiddenTables, episode: Episode, ended: Array, closing: Array) -> Statistics:
    """Expected counts of one episode; `closing` is whether the observation after its last action was logged."""
    likely, there = _evidence(tables, episode, ended)
    there = there & ((jnp.arange(there.shape[0]) < jnp.sum(episode.live)) | closing)
    likely = jnp.where(there[:, None], likely, 1.0)

    def forward(belief: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        action, seen, known = inputs
        arrived = (belief @ tables.transition[action]) * seen
        total = jnp.sum(arrived)
        after = jnp.where(known, arrived / jnp.maximum(total, 1e-30), belief)
        return after, (after, jnp.where(known, total, 1.0))

    start = tables.initial * likely[0]
    total = jnp.sum(start)
    inputs = episode.action, likely[1:], there[1:]
    _, (later, totals) = jax.lax.scan(forward, start / jnp.maximum(total, 1e-30), inputs)
    beliefs = jnp.concatenate([(start / jnp.maximum(total, 1e-30))[None], later])
    totals = jnp.concatenate([total[None], totals])

    def backward(carry: tuple[Array, Any], inputs: Any) -> tuple[tuple[Array, Any], None]:
        message, (moves, seen, paid) = carry
        belief, after, action, reward, observation, evidence, scale, known = inputs
        pair = belief[:, None] * tables.transition[action] * (evidence * message)[None, :] / jnp.maximum(scale, 1e-30)
        pair = jnp.where(known, pair, 0.0)
        moves, paid = moves.at[action].add(pair), paid.at[action].add(reward * pair)
        seen = seen.at[:, observation].add(jnp.where(known, after * message, 0.0))
        before = tables.transition[action] @ (evidence * message) / jnp.maximum(scale, 1e-30)
        return (jnp.where(known, before, message), (moves, seen, paid)), None

    zeros = jnp.zeros_like(tables.transition), jnp.zeros_like(tables.observation), jnp.zeros_like(tables.transition)
    inputs = (
        beliefs[:-1], later, episode.action, episode.reward, episode.observation[1:], likely[1:], totals[1:], there[1:]
    )  # fmt: skip
    start = jnp.ones_like(tables.initial), zeros
    (message, (moves, seen, paid)), _ = jax.lax.scan(backward, start, inputs, reverse=True)
    first = beliefs[0] * message
    seen = seen.at[:, episode.observation[0]].add(first)
    return Statistics(first, moves, seen, paid, jnp.sum(jnp.log(jnp.maximum(totals, 1e-30))))


def maximize(tables: HiddenTables, found: Statistics) -> HiddenTables:
    """The tables that make the expected counts likeliest."""
    normal = lambda counts: (counts + LEAST) / jnp.sum(counts + LEAST, -1, keepdims=True)
    # The end is never left, and never the beginning.
    last = tables.initial.shape[0] - 1
    initial = (found.initial + LEAST).at[last].set(0.0)
    transition = normal(found.transition).at[:, last].set(jnp.eye(last + 1)[last][None])
    reward = found.paid / jnp.maximum(found.transition, LEAST)
    return HiddenTables(initial / jnp.sum(initial), transition, normal(found.observation), reward)


@eqx.filter_jit
def run_em(tables: HiddenTables, episodes: Episode, ended: Array, weight: Array, closing: Array, rounds: int) -> Any:
    """Tables after so many rounds, and the log evidence of the weighted episodes before each, `[rounds]`."""

    def once(tables: HiddenTables, _: None) -> tuple[HiddenTables, Array]:
        one = lambda pair: expect(tables, pair[0], pair[1], closing)
        each = batched(one, (episodes, ended))
        found = jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), each)
        return maximize(tables, found), found.log_evidence

    return jax.lax.scan(once, tables, length=rounds)


@eqx.filter_jit
def evidence_of(tables: HiddenTables, episodes: Episode, ended: Array, closing: Array) -> Array:
    """Log p of what was seen in each episode, `[N]`."""
    return batched(lambda pair: expect(tables, pair[0], pair[1], closing).log_evidence, (episodes, ended))


@eqx.filter_jit
def foreseen(tables: HiddenTables, episodes: Episode) -> Array:
    """P(o_{t+1} | h_t, a_t) while an episode goes on, `[N, T, O]`."""
    going = tables.observation.at[-1].set(0.0)

    def one(episode: Episode) -> Array:
        def step(belief: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            action, seen = inputs
            arrived = (belief @ tables.transition[action]).at[-1].set(0.0)
            arrived = arrived / jnp.maximum(jnp.sum(arrived), 1e-30)
            after = arrived * going[:, seen]
            return after / jnp.maximum(jnp.sum(after), 1e-30), arrived @ going

        start = tables.initial * going[:, episode.observation[0]]
        start = start / jnp.maximum(jnp.sum(start), 1e-30)
        return jax.lax.scan(step, start, (episode.action, episode.observation[1:]))[1]

    return batched(one, episodes)
