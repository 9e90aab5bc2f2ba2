"""Do the dimensions of a log of vectors share their noise? Then a fit that draws each by itself is wrong."""

from itertools import permutations
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from coulda.episodes import EpisodeLog
from coulda.fitting.judging import LARGE_SHARE
from coulda.fitting.memory import PARTS, features, left_of
from coulda.fitting.steps import steps_of

MOST_ROWS = 5000
"""Steps that are looked at: the first, of which a share of 5 % is seen with a hundred."""
LEAST_ROWS = 100


class Shared(NamedTuple):
    """How much of the changes of a dimension is told by the noise of another."""

    share: float
    """Of their variance."""
    what: str
    by: str

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"dimensions share their noise (given state and action, that of {self.by} tells {self.share:.0%} of the "
            f"changes of {self.what})"
        )


def shared_noise(log: EpisodeLog) -> Shared | None:
    """The two that share most; None where it is less than independent noise is forgiven.

    Noise is what regressions on state and action leave of the changes, in parts of the log that they have not seen.
    """
    steps, done = steps_of(log), log.schema.action_space
    known = np.flatnonzero(steps.followed)[:MOST_ROWS]
    change = (steps.following - steps.state)[known]
    spread = change.std(0)
    moves = np.flatnonzero(spread > 1e-6 * np.abs(steps.state).max(0))
    if len(moves) < 2 or len(known) < LEAST_ROWS:
        return None
    acts = np.eye(int(done.n))[steps.action[known]] if isinstance(done, spaces.Discrete) else steps.action[known]
    before = features(np.random.default_rng(0), np.concatenate([steps.state[known], acts], 1))
    noise = left_of(before, change[:, moves] / spread[moves], steps.episode[known] % PARTS)
    names = log.schema.observation_names or tuple(f"dimension {j}" for j in range(len(spread)))
    found = [
        Shared(_told(noise[:, i], noise[:, j]), names[moves[i]], names[moves[j]])
        for i, j in permutations(range(len(moves)), 2)
    ]
    most = max(found, key=lambda shared: shared.share)
    return most if most.share >= LARGE_SHARE else None


def _told(noise: np.ndarray, other: np.ndarray) -> float:
    """The share of the variance of changes, which is one, that another noise and its square tell."""
    x = np.stack([np.ones_like(other), other, other**2], 1)
    weights = np.linalg.lstsq(x, noise, rcond=None)[0]
    return min(1.0, float(np.var(x @ weights)))
