"""Every format gives back the numbers that were written, whatever the spaces."""

import tempfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
from gymnasium import spaces

from coulda.episodes import EpisodeLog, Schema, StoredLog, checked_log, read_any, write_any

FORMATS = ("log", "log.csv", "log.parquet", "log.npz", "log-v0")
REPEATS_LAST = ("log.npz",)
"""Formats without a place for the observation after the last action."""
BOXES = st.sampled_from([(), (1,), (3,)]).map(lambda shape: spaces.Box(-np.inf, np.inf, shape, np.float32))
SPACES = st.one_of(st.integers(2, 5).map(spaces.Discrete), BOXES)


def values(dice: np.random.Generator, space: spaces.Space, count: int) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return dice.integers(int(space.n), size=count)
    return dice.normal(size=(count, *space.shape)).astype(np.float32)


def make(dice: np.random.Generator, seen: spaces.Space, done: spaces.Space, known: bool) -> EpisodeLog:
    lengths = dice.integers(1, 5, size=6)
    steps = int(lengths.sum())
    return checked_log(
        Schema(seen, done),
        values(dice, seen, steps + len(lengths)),
        values(dice, done, steps),
        dice.normal(size=steps).astype(np.float32),
        lengths,
        dice.integers(2, size=len(lengths)).astype(bool),
        np.log(dice.uniform(0.1, 1, size=steps)).astype(np.float32) if known else None,
    )


@hypothesis.given(st.integers(0, 2**31), SPACES, SPACES, st.booleans())
@hypothesis.settings(max_examples=12)
def test_every_format_gives_back_what_was_written(seed, seen, done, known):
    log = make(np.random.default_rng(seed), seen, done, known)
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            write_any(Path(folder) / name, log)
            back = read_any(Path(folder) / name)
            back = back.read() if isinstance(back, StoredLog) else back
        hypothesis.note(name)
        np.testing.assert_array_equal(back.lengths, log.lengths)
        np.testing.assert_array_equal(back.terminated, log.terminated)
        np.testing.assert_array_equal(back.reward, log.reward)
        np.testing.assert_array_equal(np.ravel(back.action), np.ravel(log.action))
        np.testing.assert_allclose(back.log_prob, log.log_prob, rtol=1e-4, atol=1e-6)
        kept = slice(None, -1) if name in REPEATS_LAST else slice(None)
        for one, other in zip(back, log, strict=True):
            np.testing.assert_array_equal(np.ravel(one.observation[kept]), np.ravel(other.observation[kept]))
