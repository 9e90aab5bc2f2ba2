"""The search on PO-Sokoban runs from end to end; what it shows is in `results/sokoban_search`."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.experiments import sokoban_search
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import Learned
from coulda.policies.conv_lstm import ConvLSTMPolicy

pytestmark = [pytest.mark.usefixtures("quick_compilation"), pytest.mark.slow]

TINY = replace(sokoban_search.SMOKE, horizon=4, evaluation_episodes=16)


def test_the_experiment_runs(tmp_path):
    sokoban_search.reproduce(tmp_path, replace(TINY, seeds=2))
    record = json.loads((tmp_path / "curves.json").read_text())
    assert len(record["runs"]) == 2 * len(sokoban_search.METHODS) * len(sokoban_search.WEIGHTINGS)
    assert all(0 <= rate <= 1 for run in record["runs"] for rate in run["solve rates"])
    assert (tmp_path / "curves.svg").stat().st_size > 1000


def test_the_solver_plans_in_inferred_levels_however_malformed():
    environment = sokoban_search._sokoban(0, TINY)
    source = Learned(environment, ConvDRAW(jax.random.key(0), num_layers=1, channels=4, latents=2))
    search = sokoban_search.make_search(environment, source, TINY, "CF-GPS", "scenario")
    state = search.init(ConvLSTMPolicy(jax.random.key(1), 7, 7, channels=4, units=8))
    updated, info = search.step(jax.random.key(2), state)
    # An untrained scenario model draws tiles at random: levels without an agent, with many, with any number of boxes.
    assert 0 <= info.objective.dead <= 1
    leaves = [leaf for leaf in jax.tree.leaves(updated.policy) if isinstance(leaf, jax.Array)]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
    assert np.isfinite(info.objective.log_likelihood)
