"""Counterfactual transition probabilities of observed finite models, in closed form.

Where the state is seen, a logged transition (s, a) → s' says all that there is to know of its own noise, and nothing of
any other. What the same noise would have done to another state and action is a distribution over next states, a *row*,
which the coupling of the two probabilities gives exactly: no scenario is drawn.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.errors import CouldaError
from coulda.mechanisms import gumbel_coupling, inverse_cdf_coupling
from coulda.pomdp import Episode, FinitePOMDP
from coulda.scales import unit_of

COUPLINGS = {"gumbel_max": gumbel_coupling, "inverse_cdf": inverse_cdf_coupling}
PLAIN, PLAIN_ROW = -1, 0
"""In the place of a logged transition, nothing was logged; the rows there are the model's own, and the first of all."""

AT_ONCE = 2**21
"""Numbers of the tables that are worked on together: for a small model all of a log's, for a large one a few."""


class ObservedTables(eqx.Module):
    """An observed finite model as arrays: S states, A actions, and K categories that a transition chooses among."""

    probabilities: Array
    """`[A, S, K]`."""
    next_state: Array | None
    """The state that each category leads to, `[A, S, K]`; None where category k is state k."""
    reward: Array
    """`[A, S, K]`."""
    terminal: Array
    """`[S]`."""
    reparameterization: str = eqx.field(static=True)

    def expect(self, rows: Array, value: Array) -> Array:
        """E[r + V(s')] of each action and state, `[A, S, C]`, from rows `[A, S, K]` and C values `[S, C]`."""
        onward = jnp.where(self.terminal[:, None], 0.0, value)
        paid = jnp.sum(rows * self.reward, axis=-1, keepdims=True)
        if self.next_state is None:
            return paid + jnp.einsum("ask,kc->asc", rows, onward)
        return paid + jnp.einsum("ask,askc->asc", rows, onward[self.next_state])

    def arrive(self, state: Array, action: Array, category: Array) -> Array:
        """The number of the state that a category leads to."""
        return category if self.next_state is None else self.next_state[action, state, category]


class LoggedSteps(eqx.Module):
    """An episode of an observed finite model as numbers, T steps."""

    state: Array
    """s_1 … s_{T+1}, `[T + 1]`."""
    action: Array
    """`[T]`; after the end the last one."""
    category: Array
    """Which category was chosen by chance, `[T]`; it means nothing after the end."""
    row: Array
    """Which of the counterfactual rows are those of this step, `[T]`; `PLAIN_ROW` after the end."""
    live: Array
    """`[T]`."""
    counts: Array
    """Whether what happens at a step counts, `[T]`: while the log goes on, and after an end that the state itself
    brought, which other actions may have put off. What lies beyond a log that was cut off does not."""


class LoggedBatch(NamedTuple):
    """Episodes with all the counterfactual rows that they need."""

    steps: LoggedSteps
    """`[N, ...]`."""
    rows: Array
    """One table `[A, S, K]` for each distinct logged transition, `[U, A, S, K]`; the model's own among them."""


def observed_tables(model: FinitePOMDP) -> ObservedTables:
    """The arrays of a model whose counterfactual transitions have a closed form."""
    if not isinstance(model, FinitePOMDP):
        raise CouldaError(f"exact tables need a finite model whose state is seen; {type(model).__name__} is none.")
    if model.rewards_vary:
        raise CouldaError(
            f"exact tables need rewards that the states decide; those of {type(model).__name__} vary round its own. "
            "Draw scenarios instead."
        )
    choices, (_, reward, terminal) = model.transition_choices(), model.tables()
    if choices.next_state is not None:
        reward = jnp.take_along_axis(reward, choices.next_state, axis=2)
    return ObservedTables(choices.probabilities, choices.next_state, reward, terminal, choices.reparameterization)


def state_numbers(model: FinitePOMDP) -> np.ndarray:
    """The one state in which each observation is made, `[O]`; -1 for what is never seen. Refuses hidden states."""
    space, name = model.observation_space, type(model).__name__
    if not isinstance(space, spaces.Discrete):
        raise CouldaError(f"exact tables need numbered observations; those of {name} are {space}.")
    count, number = (np.asarray(found) for found in _look(model, int(space.n)))
    if (count > 1).any() or (number != number[0]).any():
        where = int(np.argwhere((count > 1) | (number != number[0]))[0][1])
        raise CouldaError(
            f"observation {where} of {name} may be made in {count[:, where].max()} states: the state is hidden. Give a "
            "source of scenarios, such as Exact(model)."
        )
    return number[0]


@eqx.filter_jit
def _look(model: FinitePOMDP, observations: int) -> tuple[Array, Array]:
    """In how many states each observation may be made, and the number of one, by the action before, `[A + 1, O]`."""

    def one(action: Array, observation: Array) -> tuple[Array, Array]:
        states = model.states(action, observation)
        possible = jax.vmap(lambda state: model.observation_log_prob(observation, state))(states) > -jnp.inf
        return jnp.sum(possible), jnp.max(jnp.where(possible, states.index, -1))

    seen = jnp.arange(observations)
    return jax.vmap(lambda action: jax.vmap(lambda o: one(action, o))(seen))(jnp.arange(-1, model.num_actions))


def logged_batch(tables: ObservedTables, numbers: np.ndarray, episodes: Episode, first: int = 0) -> LoggedBatch:
    """Padded episodes `[N, ...]`, with the counterfactual rows of every distinct transition in them.

    Refuses, with its number counted from `first`, an episode that the model cannot have produced.
    """
    state, action, category = _transitions(tables, numbers, episodes, first)
    live = np.asarray(episodes.live)
    ended = np.asarray(tables.terminal)[state[:, -1]]  # padding repeats the last observation
    codes = np.where(live, np.ravel_multi_index((state[:, :-1], action, category), _sizes(tables)), PLAIN)
    distinct, row = np.unique(np.append(codes.ravel(), PLAIN), return_inverse=True)
    steps = LoggedSteps(
        state=jnp.asarray(state, jnp.int32),
        action=jnp.asarray(action, jnp.int32),
        category=jnp.asarray(category, jnp.int32),
        row=jnp.asarray(row[:-1].reshape(codes.shape), jnp.int32),
        live=jnp.asarray(live),
        counts=jnp.asarray(live | ended[:, None]),
    )
    return LoggedBatch(steps, counterfactual_rows(tables, distinct))


def check_made(model: FinitePOMDP, batches: Iterable[Episode], first: int = 0) -> None:
    """Refuse an episode that an observed model cannot have produced, before anything is computed of it.

    Args:
        model: whose states are seen.
        batches: padded episodes, `[n, ...]`.
        first: the number of the first of them.
    """
    tables, numbers = observed_tables(model), state_numbers(model)
    for episodes in batches:
        _transitions(tables, numbers, episodes, first)
        first += len(episodes.live)


def _transitions(
    tables: ObservedTables, numbers: np.ndarray, episodes: Episode, first: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States `[N, T + 1]`, actions and categories `[N, T]`, of what the model can have produced."""
    state, action = numbers[np.asarray(episodes.observation)], np.asarray(episodes.action)
    category, possible = _categories(tables, state, action)
    _check_possible(tables, state, action, category, possible & (state.min(1) >= 0)[:, None], episodes, first)
    return state, action, category


def counterfactual_rows(tables: ObservedTables, codes: np.ndarray) -> Array:
    """P(k' | s', a', given (s, a) → k) for every s' and a', `[U, A, S, K]`, of transitions (s, a, k) by their `codes`.

    All categories k of a pair (s, a) share one coupling, and so one sort a row. Numbers are filled up to powers of two,
    so that logs of about the same size share a program.
    """
    pairs, of_pair = np.unique(codes // _sizes(tables)[2], return_inverse=True)
    filled = (jnp.asarray(_filled(x), jnp.int32) for x in (pairs, of_pair, codes))
    return _rows(tables, *filled)


@eqx.filter_jit
def _rows(tables: ObservedTables, pairs: Array, of_pair: Array, codes: Array) -> Array:
    couple, (states, actions, size) = COUPLINGS[tables.reparameterization], _sizes(tables)

    def coupled(pair: Array) -> Any:
        logged = tables.probabilities[pair % actions, pair // actions]
        return jax.vmap(jax.vmap(lambda other: couple(logged, other)))(tables.probabilities)

    at_once = max(1, AT_ONCE // tables.probabilities.size)
    couplings = jax.lax.map(coupled, pairs, batch_size=at_once)

    def one(numbers: tuple[Array, Array]) -> Array:
        pair, code = numbers
        category, action, state = code % size, code // size % actions, code // size // actions
        own = jax.tree.map(lambda leaf: leaf[pair], couplings)
        rows = jax.vmap(jax.vmap(lambda coupling: coupling.given(category)))(own)
        # The same state and action lead to the same category again, and not only to rounding.
        same = (jnp.arange(actions)[:, None] == action) & (jnp.arange(states)[None] == state)
        again = (jnp.arange(size) == category).astype(rows.dtype)
        rows = jnp.where(same[:, :, None], again[None, None], rows)
        return jnp.where(code == PLAIN, tables.probabilities, rows)

    return jax.lax.map(one, (of_pair, codes), batch_size=at_once)


def _sizes(tables: ObservedTables) -> tuple[int, int, int]:
    """(S, A, K), the order in which a transition is numbered."""
    actions, states, size = tables.probabilities.shape
    return states, actions, size


def _filled(numbers: np.ndarray) -> np.ndarray:
    """Repeats of the first number at the end, up to the next power of two."""
    return np.pad(numbers, (0, (1 << (len(numbers) - 1).bit_length()) - len(numbers)), constant_values=numbers[0])


def _categories(tables: ObservedTables, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The category of each logged transition `[N, T]`, and whether it is possible."""
    probabilities = np.asarray(tables.probabilities)[action, state[:, :-1]]
    if tables.next_state is None:
        category = np.maximum(state[:, 1:], 0)
    else:
        category = (np.asarray(tables.next_state)[action, state[:, :-1]] == state[:, 1:, None]).argmax(-1)
        arrived = np.take_along_axis(np.asarray(tables.next_state)[action, state[:, :-1]], category[..., None], -1)
        probabilities = np.where(arrived == state[:, 1:, None], probabilities, 0.0)
    return category, np.take_along_axis(probabilities, category[..., None], -1)[..., 0] > 0


def _check_possible(
    tables: ObservedTables,
    state: np.ndarray,
    action: np.ndarray,
    category: np.ndarray,
    possible: np.ndarray,
    episodes: Episode,
    first: int,
) -> None:
    live, logged = np.asarray(episodes.live), np.asarray(episodes.reward)
    for episode, step in np.argwhere(live & ~possible)[:1]:
        raise CouldaError(
            f"the model cannot have produced episode {first + episode}: at step {step} action {action[episode, step]} "
            f"leads from state {state[episode, step]} to state {state[episode, step + 1]} with probability 0. Give the "
            "model that made the log."
        )
    paid = np.asarray(tables.reward)[action, state[:, :-1], category]
    near = 1e-4 * (unit_of(np.where(live, logged, 0.0)) + np.abs(logged))
    for episode, step in np.argwhere(live & (np.abs(paid - logged) > near))[:1]:
        raise CouldaError(
            f"the model cannot have produced episode {first + episode}: at step {step} it pays "
            f"{paid[episode, step]:g}, and the log has {logged[episode, step]:g}. Give the model that made the log."
        )
