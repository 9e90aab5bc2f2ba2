"""`TabularFit`: frequencies of a log of numbered observations, with a Dirichlet prior on what was seen."""

from dataclasses import dataclass
from functools import cached_property

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.errors import CouldaError
from coulda.fitting.tables import FittedTable, states_of
from coulda.mechanisms import choice
from coulda.scales import unit_of

LARGEST_TABLE = 2**27
"""Numbers in a table: half a gigabyte."""
SAME_REWARD = 1e-4
"""Relative: logs may have passed through another float type."""


@dataclass(frozen=True)
class TabularFit:
    """Counted transitions for logs of numbered observations and actions, in which the observation is the state."""

    reparameterization: str
    """"gumbel_max" or "inverse_cdf": they agree on every distribution and differ on counterfactuals."""
    prior: float = 0.5
    """Pseudo-counts of each next state that was seen to follow a state and an action: of the Dirichlet distribution of
    Jeffreys. What was not seen to follow gets none."""
    folds: int = 5
    """In which the log is dealt, to ask how much of a fold the others have not seen."""

    def __post_init__(self) -> None:
        """Names are checked before anything is read."""
        choice(self.reparameterization, 2)
        if self.prior < 0:
            raise CouldaError(f"prior is {self.prior}; it is a number of pseudo-counts, 0 or more.")


@dataclass(frozen=True)
class Counts:
    """What was counted in a log: the different transitions (action, state, next state), each with its number."""

    place: np.ndarray
    """`[M, 3]`."""
    number: np.ndarray
    """`[M]`."""
    reward: np.ndarray
    """Mean reward of each, `[M]`."""
    initial: np.ndarray
    """First states, `[S]`."""
    actions: int
    states: int
    seen: int
    twins: bool
    varies: bool
    terminal: np.ndarray
    """`[S]`."""
    horizon: int

    @cached_property
    def tried(self) -> np.ndarray:
        """How often each action was taken in each state, `[A, S]`."""
        found = np.zeros((self.actions, self.states))
        np.add.at(found, (self.place[:, 0], self.place[:, 1]), self.number)
        return found

    def model(self, weight: np.ndarray, initial: np.ndarray, reparameterization: str) -> FittedTable:
        """The table with these weights of transitions `[M]` and first states `[S]`; what was never tried is unknown."""
        action, state, following = self.place.T
        transition = np.zeros((self.actions, self.states, self.states), np.float32)
        transition[action, state, following] = weight
        reward = np.zeros_like(transition)
        reward[action, state, following] = self.reward
        total = transition.sum(-1, keepdims=True)
        over = np.broadcast_to(self.terminal[None, :], self.tried.shape)
        # An end leads to itself.
        transition[..., -1] += (total[..., 0] == 0) & ~over
        here = np.flatnonzero(self.terminal)
        transition[:, here] = 0
        transition[:, here, here] = 1
        transition /= transition.sum(-1, keepdims=True)
        return FittedTable(
            initial / initial.sum(),
            transition,
            reward,
            self.terminal,
            horizon=self.horizon,
            reparameterization=reparameterization,
            seen=self.seen,
            twins=self.twins,
            varies=self.varies,
        )


def count(log: EpisodeLog) -> Counts:
    """Count a log of numbered observations and actions."""
    seen, done = log.schema.observation_space, log.schema.action_space
    if not isinstance(seen, spaces.Discrete) or not isinstance(done, spaces.Discrete) or int(seen.start):
        raise CouldaError(
            f"TabularFit needs observations numbered from 0 and discrete actions; this log's are {seen} and {done}. "
            "Vectors are for NeuralFit."
        )
    n, actions = int(seen.n), int(done.n)
    if n * n * actions * 4 > LARGEST_TABLE:
        raise CouldaError(
            f"the log numbers {n} observations and {actions} actions, and has {log.num_steps} steps: a table of them "
            "does not fit in memory. Number what was seen more coarsely, or log vectors and take NeuralFit."
        )
    if n > log.num_steps:
        raise CouldaError(
            f"the log numbers {n} observations in {log.num_steps} steps: most were never left, and a table of them "
            "would be empty. Number what was seen more coarsely."
        )
    return _counted(log, n, actions, int(done.start))


def _counted(log: EpisodeLog, n: int, actions: int, first_action: int) -> Counts:
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    state, following = (np.asarray(log.observation)[before + i].astype(int) for i in (0, 1))
    last = np.zeros(log.num_steps, bool)
    last[np.cumsum(log.lengths) - 1] = True
    episode = np.repeat(np.arange(len(log)), log.lengths)
    time = np.arange(log.num_steps) - log.starts[episode]
    judged = time < log.max_length - 1
    ended = last & log.terminated[episode] & judged
    told = log.schema.last_observation == "logged"
    stops, goes_on = (np.zeros(n, bool) for _ in range(2))
    stops[following[ended & told]] = True
    goes_on[state] = True
    cut = last & ~ended & judged
    goes_on[following[cut & told]] = True
    twins = bool((stops & goes_on).any())
    if twins and (stops[following[cut]] & told).any():
        where = int(following[cut][stops[following[cut]]][0])
        where = log.schema.observation_names[where] if log.schema.observation_names else where
        raise CouldaError(
            f"episodes were cut off after observation {where}, after which others came to their end: which of the two "
            "it was cannot be told from what was seen. Leave out the episodes that were cut off, or log the end."
        )
    states = states_of(n, twins)
    terminal = (
        np.concatenate([np.zeros(n, bool), np.ones(states - n, bool)]) if twins else np.append(stops, [True, True])
    )
    # The horizon ends everything; what was never gone on from is an end there too.
    over = ended | (last & ~judged & told & (stops & ~goes_on)[following])
    arrived = np.where(over, following + (n if twins else 0) if told else states - 2, following)
    known = ~last | told | ended
    if not known.any():
        raise CouldaError(
            f"all {len(log)} episodes have one step, and what was seen after it was not logged: a table learns nothing "
            "of it. Add a row with the observation after each last action, or evaluate without a model."
        )
    place = np.stack([log.action - first_action, state, arrived], 1)[known]
    different, which, number = np.unique(place, axis=0, return_inverse=True, return_counts=True)
    reward = np.asarray(log.reward, float)[known]
    mean = np.bincount(which.ravel(), reward) / number
    varies = bool((np.abs(reward - mean[which.ravel()]) > SAME_REWARD * (unit_of(reward) + np.abs(reward))).any())
    first = np.bincount(np.asarray(log.observation)[log.starts + np.arange(len(log))], minlength=states).astype(float)
    return Counts(different, number, mean, first, actions, states, n, twins, varies, terminal, log.max_length)


def novelty(log: EpisodeLog, fold: np.ndarray) -> tuple[float, float]:
    """Shares of steps whose state and action, and whose transition, no other fold has; `fold` is of each episode."""
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    observed = np.asarray(log.observation).astype(int)
    own = fold[np.repeat(np.arange(len(log)), log.lengths)]
    pair = np.stack([np.asarray(log.action).astype(int), observed[before]], 1)
    return _novel(pair, own), _novel(np.concatenate([pair, observed[before + 1][:, None]], 1), own)


def _novel(rows: np.ndarray, fold: np.ndarray) -> float:
    """The share of rows that are in one fold only."""
    which = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    least, most = np.full(which.max() + 1, fold.max()), np.zeros(which.max() + 1, int)
    np.minimum.at(least, which, fold)
    np.maximum.at(most, which, fold)
    return float((least == most)[which].mean())


def fit_table(log: EpisodeLog, recipe: TabularFit) -> tuple[FittedTable, Counts]:
    """Posterior means of the frequencies."""
    found = count(log)
    return found.model(found.number + recipe.prior, found.initial, recipe.reparameterization), found


def redrawn(key: Array, counts: Counts, recipe: TabularFit) -> FittedTable:
    """A draw of the posterior of all frequencies: what another log of the size might have said. Consumes `key`."""
    key_moves, key_first = jax.random.split(key)
    weight = np.asarray(jax.random.gamma(key_moves, jnp.asarray(counts.number + recipe.prior)))
    first = np.where(counts.initial > 0, np.asarray(jax.random.gamma(key_first, jnp.asarray(counts.initial + 1e-9))), 0)
    return counts.model(np.maximum(weight, 1e-12), first, recipe.reparameterization)


@eqx.filter_jit
def values(model: FittedTable, acts: Array) -> Array:
    """E[G] of a policy without memory, whose probabilities are `acts` `[O, A]`, by backward induction."""
    transition, reward, terminal = model.tables()
    shown = jnp.arange(model.num_states) % model.seen
    acts = acts[shown]
    paid = jnp.einsum("ask,ask->as", transition, reward)
    onward = jnp.where(terminal, 0.0, 1.0)

    def back(value: Array, _: None) -> tuple[Array, None]:
        q = paid + jnp.einsum("ask,k->as", transition, value)
        return onward * jnp.einsum("sa,as->s", acts, q), None

    start = jnp.zeros(model.num_states)
    value, _ = jax.lax.scan(back, start, length=model.horizon)
    return jnp.exp(model.initial_logits) @ value
