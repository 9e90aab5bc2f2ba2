"""A log of vectors as rows to regress on: what was seen and done, and what came of it."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from coulda.episodes import EpisodeLog
from coulda.episodes.log import spans
from coulda.errors import CouldaError


@dataclass(frozen=True)
class Steps:
    """All steps of a log, `[n, ...]` each."""

    state: np.ndarray
    """`[n, d]`."""
    action: np.ndarray
    """Numbers from 0 `[n]`, or vectors `[n, k]`."""
    reward: np.ndarray
    following: np.ndarray
    """`[n, d]`: the observation after the step."""
    followed: np.ndarray
    """Whether that observation was logged."""
    ended: np.ndarray
    """Whether the episode came to its end with the step."""
    judged: np.ndarray
    """Whether the end says something: the horizon ends every episode, and a cut none."""
    episode: np.ndarray
    time: np.ndarray


def steps_of(log: EpisodeLog) -> Steps:
    """The rows of a log of vectors; refuses what has none, or cannot be regressed on."""
    seen, done = log.schema.observation_space, log.schema.action_space
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        raise CouldaError(
            f"NeuralFit needs observations that are vectors, Box(d,); this log's are {seen}. Numbered observations are "
            "for TabularFit."
        )
    if not isinstance(done, spaces.Discrete | spaces.Box):
        raise CouldaError(f"NeuralFit needs discrete or continuous actions; this log's are {done}.")
    before = spans(log.starts + np.arange(len(log)), log.lengths)
    last = np.zeros(log.num_steps, bool)
    last[np.cumsum(log.lengths) - 1] = True
    episode = np.repeat(np.arange(len(log)), log.lengths)
    time = np.arange(log.num_steps) - log.starts[episode]
    observed = np.asarray(log.observation, float)
    for row in np.argwhere(~np.isfinite(observed))[:1]:
        names = log.schema.observation_names
        column = names[row[1]] if names else row[1]
        raise CouldaError(
            f"observation {row[0]} of the log has {observed[row[0], row[1]]} in column {column}; a fit to seen states "
            "needs finite numbers. Fill them in, or fit hidden states (HiddenFit)."
        )
    action = log.action - int(done.start) if isinstance(done, spaces.Discrete) else log.action.reshape(len(time), -1)
    return Steps(
        state=observed[before],
        action=np.asarray(action),
        reward=np.asarray(log.reward, float),
        following=observed[before + 1],
        followed=~last | (log.schema.last_observation == "logged"),
        ended=last & log.terminated[episode],
        judged=time < log.max_length - 1,
        episode=episode,
        time=time,
    )
