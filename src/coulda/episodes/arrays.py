"""Flat arrays as d3rlpy's MDPDataset takes them: one row per step, episodes end where a flag says so."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from coulda.episodes.log import EpisodeLog, Schema, spans
from coulda.episodes.validation import Source, checked_log, log_of_probability
from coulda.errors import CouldaError

MOST_CATEGORIES = 2**16
"""Of a discrete space that is guessed: larger numbers are identifiers or measurements, and tables of so many cells fill
the memory."""


def from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any,
    terminals: Any,
    timeouts: Any = None,
    *,
    probability: Any = None,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    source: Source | None = None,
) -> EpisodeLog:
    """A log of the arrays of an MDPDataset, `[n, ...]` each, one row per step; `probability` is of the action taken.

    They lack the observation after an episode's last action: the one before it is repeated, and the schema
    says so. Spaces that are not given are those of `guess_space`.
    """
    source = Source() if source is None else source
    observations, actions = np.asarray(observations), np.asarray(actions)
    rewards, terminals = _flat(rewards), as_flags(terminals, "terminals", source)
    timeouts = np.zeros_like(terminals) if timeouts is None else as_flags(timeouts, "timeouts", source)
    if actions.ndim == 2 and actions.shape[1] == 1 and actions.dtype.kind in "iu":
        actions = actions[:, 0]
    columns = {"observations": observations, "actions": actions, "rewards": rewards}
    given = {} if probability is None else {"probability": _flat(probability)}
    if not rewards.ndim:
        source.refuse("is a single number; there is one for each step", field="rewards")
    for name, column in (columns | {"terminals": terminals, "timeouts": timeouts} | given).items():
        if not column.ndim:
            source.refuse("is a single number; there is one for each step", field=name)
        if len(column) != len(rewards):
            source.refuse(f"has {len(column)} rows, but there are {len(rewards)} rewards", field=name)
    for row in np.flatnonzero(_infinite(observations))[:1]:
        source.refuse("is infinite; write NaN where it is not known", field=f"observations[{row}]")
    ends = np.flatnonzero(terminals | timeouts) + 1
    if len(ends) == 0 or ends[-1] != len(rewards):
        source.refuse(
            "the last row is neither terminal nor a timeout; flag the end of the last episode",
            episode=len(ends),
            step=len(rewards) - 1 - (int(ends[-1]) if len(ends) else 0),
            field="terminals",
        )
    starts = np.concatenate([[0], ends[:-1]])
    schema = Schema(
        guess_space(observations) if observation_space is None else observation_space,
        guess_space(actions) if action_space is None else action_space,
        last_observation="repeated",
    )
    rows = repeat_last(ends - starts)
    lengths = ends - starts
    log_prob = None if probability is None else log_of_probability(_flat(probability), lengths, source)
    return checked_log(
        schema, observations[rows], actions, rewards, lengths, terminals[ends - 1], log_prob, source=source
    )


def to_arrays(log: EpisodeLog) -> dict[str, np.ndarray]:
    """The arrays of an MDPDataset; the observations after the last actions have no place in it."""
    if not isinstance(log.observation, np.ndarray) or not isinstance(log.action, np.ndarray):
        raise CouldaError("an MDPDataset holds one array of observations and one of actions, not trees of them")
    ends = np.cumsum(log.lengths)
    terminals, timeouts = np.zeros(log.num_steps, np.float32), np.zeros(log.num_steps, np.float32)
    terminals[ends - 1], timeouts[ends - 1] = log.terminated, ~log.terminated
    return {
        "observations": log.observation[spans(ends - log.lengths + np.arange(len(log)), log.lengths)],
        "actions": log.action,
        "rewards": log.reward,
        "terminals": terminals,
        "timeouts": timeouts,
    } | ({"probability": np.exp(log.log_prob.astype(float))} if log.has_probabilities else {})


def guess_space(column: np.ndarray, categories: bool = True) -> gymnasium.Space:
    """`Discrete(max + 1)` for a column of integers ≥ 0 if they are not too many, else an unbounded `Box`.

    >>> guess_space(np.array([0, 3, 1]))
    Discrete(4)
    """
    small = column.dtype.kind in "iu" and column.min(initial=0) >= 0 and column.max(initial=0) < MOST_CATEGORIES
    if column.ndim == 1 and small and categories:
        return spaces.Discrete(int(column.max(initial=0)) + 1)
    integer = column.dtype.kind in "iu"
    low, high = (np.iinfo(np.int32).min, np.iinfo(np.int32).max) if integer else (-np.inf, np.inf)
    return spaces.Box(low, high, column.shape[1:], np.int32 if integer else np.float32)


def repeat_last(lengths: np.ndarray) -> np.ndarray:
    """Row numbers that repeat the last row of each episode once.

    >>> repeat_last(np.array([2, 1])).tolist()
    [0, 1, 1, 2, 2]
    """
    times = np.ones(int(lengths.sum()), int)
    times[np.cumsum(lengths) - 1] = 2
    return np.repeat(np.arange(len(times)), times)


def as_flags(column: Any, name: str, source: Source, episode: int | None = None) -> np.ndarray:
    """Numbers 0 and 1, or booleans, one for each step."""
    column = np.atleast_1d(_flat(column))
    if column.ndim > 1:
        source.refuse(f"expected one flag a step, got the shape {list(column.shape)}", episode, field=name)
    if column.dtype.kind not in "biuf":
        source.refuse(f"expected 0 or 1, got {column.dtype}", episode, field=name)
    for row in np.flatnonzero(~np.isin(column, (0, 1)))[:1]:
        source.refuse(f"is {column[row]}; a flag is 0 or 1", episode, field=f"{name}[{row}]")
    return np.asarray(column != 0)


def _infinite(observations: np.ndarray) -> np.ndarray:
    if observations.dtype.kind != "f":
        return np.zeros(len(observations), bool)
    return np.asarray(np.isinf(observations).reshape(len(observations), -1).any(1))


def _flat(column: Any) -> np.ndarray:
    column = np.asarray(column)
    return column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
