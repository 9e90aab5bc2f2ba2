"""The policy that remembers what it last saw: its map is the truth where nothing moves unseen, and only there."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.sokoban import generate, tiles
from coulda.errors import CouldaError
from coulda.networks import ResidualTower
from coulda.policies import ConvLSTMPolicy, LastSeenPolicy, UniformPolicy, load_policy, save_policy
from coulda.pomdp import rollout
from coulda.recipes import PolicyNetwork, SokobanWorld, make_sokoban

WORLD = SokobanWorld(side=6, boxes=1, horizon=20, mask=0.7)
LEVELS = generate(jax.random.key(0), 16, 6, 6, 1)
NETWORK = PolicyNetwork("last-seen", layers=1, channels=4, units=8)
POLICY = eqx.filter_jit(lambda key: NETWORK.first_policy(key, WORLD))(jax.random.key(1))


@eqx.filter_jit
def seen_and_true(policy, environment, keys):
    """After each observation of episodes at random: the map, and the interior of the state, `[B, T + 1, 4, 4]`."""

    def one(key):
        trajectory = rollout(environment, UniformPolicy(5), environment.scenario_prior.sample(key))
        see = lambda carry, observation: (policy(carry, observation)[0],) * 2
        _, (seen, _) = jax.lax.scan(see, policy.initial_carry(), trajectory.episode.observation)
        return seen, trajectory.state[:, 1:-1, 1:-1]

    return jax.vmap(one)(keys)


def maps(**differences):
    """What the policy remembers in PO-Sokoban, and what is there."""
    environment = make_sokoban(LEVELS, WORLD)
    environment = replace(environment, **differences) if differences else environment
    return map(np.asarray, seen_and_true(POLICY, environment, jax.random.split(jax.random.key(2), 64)))


def test_what_is_on_the_map_is_there():
    seen, true = maps()
    known = seen != tiles.NUM_TILES
    assert (seen == true)[known].all()
    boxes = (true[:, 1:] == tiles.BOX) != (true[:, :-1] == tiles.BOX)
    assert boxes.any()  # they were pushed
    share = known.mean((0, 2, 3))
    assert share[0] < 0.8
    assert share[-1] > share[0] + 0.1
    assert (np.diff(share) >= 0).all()


def test_without_a_window_boxes_leave_ghosts():
    """The twin: where pushes are not seen, boxes and the agent stay on the map where they were."""
    seen, true = maps(window=0)
    ghosts = ((seen == tiles.BOX) | (seen == tiles.AGENT)) & (true == tiles.EMPTY)
    assert ghosts.any()


def test_time_and_map_are_all_that_counts_and_the_border_is_not_seen():
    act = eqx.filter_jit(lambda carry, observation: POLICY.with_value(carry, observation)[1:])
    grid, carry = jnp.asarray(LEVELS[0]), POLICY.initial_carry()
    first, value = act(carry, grid)
    assert first.logits.shape == (5,)
    assert value.shape == ()
    logits = lambda *asked: np.asarray(act(*asked)[0].logits)
    np.testing.assert_array_equal(logits(carry, grid.at[0].set(3).at[:, -1].set(3)), first.logits)
    assert not np.array_equal(logits((carry[0], carry[1] + 1), grid), first.logits)
    assert not np.array_equal(
        logits((carry[0].at[0, 0].set(tiles.TARGET), carry[1]), 0 * grid), logits(carry, 0 * grid)
    )


def test_each_cell_knows_of_all_others():
    """A block of two convolutions and an entry see three cells far; the mean and the largest reach everywhere."""
    tower = eqx.filter_jit(ResidualTower)(jax.random.key(0), 2, blocks=1, channels=4)
    x = jnp.zeros((9, 9, 2))
    far = eqx.filter_jit(tower)(x.at[0, 0, 0].set(9.0))[-1, -1]
    assert not np.allclose(far, eqx.filter_jit(tower)(x)[-1, -1])
    alone = eqx.tree_at(lambda t: t.blocks[0].everywhere.weight, tower, replace_fn=jnp.zeros_like)
    assert np.allclose(eqx.filter_jit(alone)(x.at[0, 0, 0].set(9.0))[-1, -1], eqx.filter_jit(alone)(x)[-1, -1])


@pytest.mark.parametrize(
    "make", [ConvLSTMPolicy, lambda key, height, width: LastSeenPolicy(key, height, width, horizon=5, agent=(4,))]
)
def test_a_grid_that_is_all_border_is_refused(make):
    with pytest.raises(CouldaError, match=r"a grid of 2×5 has no interior; the least is 3×3\."):
        make(jax.random.key(0), 2, 5)


@pytest.mark.parametrize("kind", [LastSeenPolicy, ConvLSTMPolicy])
def test_a_file_knows_which_policy_it_holds(kind, tmp_path):
    network = NETWORK if kind is LastSeenPolicy else replace(NETWORK, memory="conv-lstm")
    policy = eqx.filter_jit(lambda key: network.first_policy(key, WORLD))(jax.random.key(3))
    save_policy(tmp_path / "policy", policy)
    found = load_policy(tmp_path / "policy")
    assert type(found) is kind
    assert eqx.tree_equal(found, policy)
