"""What came before a step leaves its trace where something was not logged: in what follows, and in other dimensions."""

from itertools import permutations

import gymnasium
import numpy as np
import pytest

from coulda.episodes import EpisodeLog, Schema, checked_log
from coulda.fitting import NeuralFit, recipe_for
from coulda.fitting.confounding import confounding
from coulda.fitting.lasting import PULL, _against_permutations, _first_of_each, lasting
from coulda.fitting.sharing import shared_noise


def patients(
    seed: int, episodes: int, states: int, hidden: float = 0.0, known: float = 0.0, steps: int = 6
) -> EpisodeLog:
    """The next of so many states is up to chance; what lasts moves rewards by `hidden`, and actions by `known`."""
    rng = np.random.default_rng(seed)
    lasts = rng.choice([-1.0, 1.0], episodes)[:, None]
    seen = rng.integers(0, states, (episodes, steps + 1))
    action = (rng.random((episodes, steps)) < 0.5 + 0.4 * known * lasts).astype(int)
    reward = seen[:, :-1] / states + rng.normal(size=(episodes, steps)) + hidden * lasts
    schema = Schema(gymnasium.spaces.Discrete(states), gymnasium.spaces.Discrete(2))
    lengths, ended = np.full(episodes, steps), np.ones(episodes, bool)
    return checked_log(schema, seen.ravel(), action.ravel(), reward.ravel().astype(np.float32), lengths, ended)


def test_permutations_are_those_within_cells():
    """The mean of the statistic over 200 drawn permutations, against that over all 24; five standard errors."""
    y, group = np.array([0.0, 1.0, 3.0, 8.0]), np.array([0, 0, 1, 1])
    squares = lambda v: float((np.bincount(group, v) ** 2 / (2 + PULL)).sum())
    left = y - y.mean()
    every = np.array([squares(left[list(order)]) for order in permutations(range(4))])
    (found,) = _against_permutations(np.random.default_rng(0), np.zeros(4, int), [group], y)
    total = left @ left
    assert found.share == pytest.approx((squares(left) - every.mean()) / total, abs=5 * every.std() / total / 200**0.5)
    # Where each step has a cell of its own, or all pasts are the same, there is nothing to permute.
    assert not _against_permutations(np.random.default_rng(0), np.arange(4), [group], y)
    assert not _against_permutations(np.random.default_rng(0), np.zeros(4, int), [np.zeros(4, int)], y)


def test_of_each_episode_the_first_step_in_a_cell_counts():
    episode, cell = np.array([0, 0, 0, 1, 1]), np.array([5, 5, 2, 5, 2])
    counts = np.array([False, True, True, True, True])
    assert sorted(_first_of_each(episode, cell, counts)) == [1, 2, 3, 4]
    assert sorted(_first_of_each(episode, cell, np.ones(5, bool))) == [0, 2, 3, 4]


@pytest.mark.parametrize(("states", "several"), [(2, 80), (40, 400)])
def test_right_logs_are_found_so_in_thin_cells_as_in_full_ones(states, several):
    """40 logs of 80 episodes, in cells of 5 steps or 80: more than 7 chances below .05 have a probability of 10⁻³."""

    def unusual(seed: int, log: EpisodeLog) -> bool:
        return 3 * min(found.chance for found in lasting(np.random.default_rng(seed), log)) < 0.05

    assert sum(unusual(seed, patients(seed, 80, states)) for seed in range(40)) <= 7
    assert all(unusual(seed, patients(seed, several, states, 1.0, 1.0)) for seed in range(3))


def test_what_drives_both_is_not_to_be_trusted_and_a_small_log_says_that_it_is_small():
    """Where nothing comes of it, it may be memory; where nobody acts by it, actions do not tell of it.

    Right logs are flagged once in a hundred.
    """
    ask = lambda **world: confounding(np.random.default_rng(1), patients(0, 400, 3, **world), np.arange(400) % 5)[0]
    found = {(h, k): ask(hidden=h, known=k) for h in (0.0, 1.0) for k in (0.0, 1.0)}
    assert {key: told.verdict for key, told in found.items()} == {
        (0.0, 0.0): "trust",
        (1.0, 0.0): "trust",
        (0.0, 1.0): "caution",
        (1.0, 1.0): "do not trust",
    }
    assert "drives both what was done and what followed" in found[1.0, 1.0].sentence
    assert "too small to show" in found[0.0, 1.0].sentence


def moves(seed: int, together: float) -> EpisodeLog:
    """Two dimensions, whose noise is the same but for a part."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(100, 6, 2))
    noise[..., 1] = together * noise[..., 0] + np.sqrt(1 - together**2) * noise[..., 1]
    seen = np.concatenate([np.zeros((100, 1, 2)), np.cumsum(noise, 1)], 1).reshape(-1, 2).astype(np.float32)
    box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    acts, lengths = rng.integers(0, 2, 600), np.full(100, 6)
    schema = Schema(box, gymnasium.spaces.Discrete(2))
    return checked_log(schema, seen, acts, np.zeros(600, np.float32), lengths, np.ones(100, bool))


def test_triangular_noise_is_suggested_where_dimensions_share_theirs():
    assert shared_noise(moves(0, 0.0)) is None
    recipe, why = recipe_for(moves(0, 0.8))
    assert isinstance(recipe, NeuralFit)
    assert recipe.reparameterization == "triangular"
    assert "share their noise" in why
