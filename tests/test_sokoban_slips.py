"""PO-Sokoban whose steps slip, and hindsight of the slips."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.sokoban import SlipperySokoban, Sokoban, UniformLevels, generate
from coulda.errors import CouldaError
from coulda.hindsight import Stepwise
from coulda.policies import UniformPolicy
from coulda.pomdp import GumbelMaxChoice, rollout
from coulda.studies.slips import Sizes, run

EPISODES, STEPS, SLIP = 512, 25, 0.1
SIZES = {"height": 7, "width": 7, "num_boxes": 1, "horizon": STEPS, "mask_probability": 0.8}


def world(slip: float) -> SlipperySokoban:
    levels = UniformLevels(generate(jax.random.key(0), 8, 7, 7, 1))
    return SlipperySokoban(levels=levels, action_mechanism=GumbelMaxChoice(5), slip_probability=slip, **SIZES)


@eqx.filter_jit
def inferred(environment: SlipperySokoban, model: SlipperySokoban, steps):
    """True scenarios, inferred ones, which steps would have moved something, and how long each episode was."""

    def one(key):
        key_scenario, key_infer = jax.random.split(key)
        u = environment.scenario_prior.sample(key_scenario)
        trajectory = rollout(environment, UniformPolicy(5), u)
        found, how = Stepwise(model).given(steps).infer_many(key_infer, trajectory.episode, 1)
        before, episode = trajectory.state[:-1], trajectory.episode
        both = jax.vmap(lambda s, a: environment.outcomes(s, a).next_state)(before, episode.action)
        moves = jnp.any(both[:, 0] != both[:, 1], axis=(1, 2)) & episode.live
        return u, jax.tree.map(lambda leaf: leaf[0], found), moves, how

    return jax.vmap(one)(jax.random.split(jax.random.key(1), EPISODES))


def test_slips_and_levels_are_inferred_exactly():
    """Every slip that could be seen is found, and no other; what was not seen has its prior."""
    u, found, moves, how = inferred(world(SLIP), world(SLIP), jnp.int32(STEPS + 1))
    assert (np.asarray(how.reason) == 0).all()
    right = np.asarray(jnp.all(u.initial == found.initial, axis=(1, 2)))
    assert right.mean() > 0.99  # eight levels, seen for 25 steps
    slipped, guessed, moves = (np.asarray(x)[right] for x in (u.transition < SLIP, found.transition < SLIP, moves))
    np.testing.assert_array_equal(slipped[moves], guessed[moves])
    # Over all steps the draws have their prior: 5 standard errors, one in 10^6.
    draws = np.asarray(found.transition)
    assert abs(draws.mean() - 0.5) < 5 / np.sqrt(12 * draws.size)
    assert abs(guessed.mean() - SLIP) < 5 * np.sqrt(SLIP * (1 - SLIP) / guessed.size)
    # The twin: who believes in more slips finds the same ones and draws too many of those that nobody saw.
    _, other, _, _ = inferred(world(SLIP), world(0.3), jnp.int32(STEPS + 1))
    twin = np.asarray(other.transition)
    np.testing.assert_array_equal((twin[right] < 0.3)[moves], slipped[moves])
    assert abs((twin < 0.3).mean() - SLIP) > 5 * np.sqrt(SLIP * (1 - SLIP) / twin.size)


def test_nothing_past_the_history_is_used():
    """With one observation nothing is known of the slips: they are those of the fresh draw."""
    _, found, _, _ = inferred(world(SLIP), world(SLIP), jnp.int32(1))
    _, again, _, _ = inferred(world(SLIP), world(SLIP), jnp.int32(0))
    np.testing.assert_array_equal(found.transition, again.transition)


def test_without_slips_it_is_the_same_world():
    """Step by step, whatever the noise."""
    plain = Sokoban(levels=world(0.0).levels, action_mechanism=GumbelMaxChoice(5), **SIZES)
    ice = world(0.0)

    @jax.jit
    @jax.vmap
    def both(key):
        u = ice.scenario_prior.sample(key)
        other = eqx.tree_at(lambda s: s.transition, plain.scenario_prior.sample(key), replace=())
        same = eqx.tree_at(lambda s: (s.initial, s.observation, s.action), other, (u.initial, u.observation, u.action))
        return rollout(ice, UniformPolicy(5), u), rollout(plain, UniformPolicy(5), same)

    one, other = both(jax.random.split(jax.random.key(2), 64))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_cannot_be_is_refused():
    with pytest.raises(CouldaError, match="slip_probability must lie in"):
        world(1.0)
    plain = Sokoban(levels=world(0.0).levels, action_mechanism=GumbelMaxChoice(5), **SIZES)
    with pytest.raises(CouldaError, match="the model has no `outcomes`"):
        Stepwise(plain)


@pytest.mark.slow
def test_the_study_runs(tmp_path):
    found = run(Sizes(levels=4, episodes=64, scenarios=2, truth=256), tmp_path)
    assert len(found["rows"]) == 24
    assert (tmp_path / "slips.svg").read_text().startswith("<?xml")
