"""What an episode reveals of its level: right wherever it claims to know, and by the episode alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments.sokoban import (
    LevelEvidence,
    Revealed,
    Sokoban,
    SolverPlanners,
    UniformLevels,
    generate,
    revealed,
    tabulate,
    tiles,
)
from coulda.errors import CouldaError
from coulda.planners.mixture import ExpertMixture
from coulda.policies import UniformPolicy
from coulda.pomdp import Episode, GumbelMaxChoice, rollout

EPISODES, STEPS, MASK = 4096, 25, 0.8


def world(side: int, boxes: int) -> Sokoban:
    return Sokoban(
        levels=UniformLevels(levels_of(side, boxes)),
        action_mechanism=GumbelMaxChoice(5),
        height=side,
        width=side,
        num_boxes=boxes,
        horizon=STEPS,
        mask_probability=MASK,
    )


def levels_of(side: int, boxes: int) -> np.ndarray:
    return generate(jax.random.key(side), EPISODES // 8, side, side, boxes)


@eqx.filter_jit
def played(environment: Sokoban, keys, experts=None, levels=None):
    """Levels, what episodes reveal of them, and the episodes; of the uniform policy, or for a half of a solver."""

    def one(key, number, level):
        scenario = environment.scenario_prior.sample(key)
        actor = UniformPolicy(5)
        if experts is not None:
            scenario = eqx.tree_at(lambda s: s.initial, scenario, level)
            actor = ExpertMixture(experts(number), actor, jnp.float32(0.5))
        episode = rollout(environment, actor, scenario).episode
        return scenario.initial, revealed(episode, environment.window), episode

    return jax.vmap(one)(keys, jnp.arange(len(keys)), levels)


def wrong(levels, found: Revealed) -> int:
    """How many tiles are said to be known and are another."""
    return int((np.asarray(found.known) & (np.asarray(found.tiles) != np.asarray(levels))).sum())


def shares(levels, found: Revealed) -> tuple[float, float]:
    """The share of inner floor that is known, and of inner tiles that are not floor."""
    inner, known = np.asarray(levels)[:, 1:-1, 1:-1], np.asarray(found.known)[:, 1:-1, 1:-1]
    return known[inner == tiles.EMPTY].mean(), known[inner != tiles.EMPTY].mean()


@pytest.mark.parametrize(("side", "boxes"), [(7, 1), pytest.param(8, 2, marks=pytest.mark.slow)])
def test_what_a_random_episode_reveals_is_always_right(side, boxes):
    """All tiles of 4,096 episodes. Of other tiles than floor mask^26 = .3% are never seen, more where it ends early."""
    levels, found, episodes = played(world(side, boxes), jax.random.split(jax.random.key(1), EPISODES))
    assert wrong(levels, found) == 0
    floor, other = shares(levels, found)
    assert 0.4 < floor < 0.95
    assert other > 0.98
    # Twins: the last observation taken for the first, and the window taken for wider than it is.
    last = episodes.observation[:, -1]
    assert wrong(levels, Revealed(last, last != tiles.EMPTY)) > EPISODES
    assert wrong(levels, jax.jit(jax.vmap(lambda e: revealed(e, 5)))(episodes)) > EPISODES


@pytest.mark.slow
def test_what_an_expert_moves_is_taken_back():
    """Half of the actions are of the solver: boxes are pushed in most episodes, and episodes end early."""
    environment, drawn = world(8, 2), levels_of(8, 2)
    experts = SolverPlanners(tabulate(drawn, 2))
    for seed in range(4):
        keys = jax.random.split(jax.random.key(seed), 512)
        levels, found, episodes = played(environment, keys, experts, jnp.asarray(drawn))
        assert wrong(levels, found) == 0
        assert float(np.mean(np.asarray(episodes.reward).sum(1) > 0)) > 0.3  # else nothing was pushed
        # The twin: without taking boxes back, what they were pushed on to is wrong.
        first_look = jax.vmap(lambda e: _first_non_empty(e.observation))(episodes)
        assert wrong(levels, first_look) > 100


def _first_non_empty(observation) -> Revealed:
    seen = observation != tiles.EMPTY
    first = jnp.argmax(seen, 0)
    return Revealed(jnp.take_along_axis(observation, first[None], 0)[0], seen.any(0))


def push() -> Episode:
    """Two steps to the right, a box before the agent, by hand; all else is masked."""
    grids = ["######\n#@$  #\n######", "######\n# @$ #\n######", "######\n#  @*#\n######"]
    observation = jnp.asarray(np.stack([tiles.from_text(grid) for grid in grids]))
    return Episode(observation, jnp.array([3, 3]), jnp.array([0.0, 1.0]), jnp.ones(2, bool), jnp.zeros(2))


def test_a_box_is_taken_back_to_where_it_stood():
    found = revealed(push())
    assert tiles.to_text(found.tiles) == "######\n#@$ .#\n######"
    assert found.known.all()


def test_what_comes_after_the_end_is_not_looked_at():
    ended = eqx.tree_at(lambda e: e.live, push(), jnp.array([True, False]))
    anything = eqx.tree_at(lambda e: e.observation, ended, ended.observation.at[2].set(jnp.uint8(tiles.TARGET)))
    for one, other in zip(revealed(ended), revealed(anything), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not revealed(ended).known[1, 4]


def test_the_evidence_is_the_likelihood_of_what_follows():
    """What is known is certain; what is not was missed in each of the looks that h_t does not have."""
    ended = eqx.tree_at(lambda e: e.live, push(), jnp.array([True, False]))
    evidence = LevelEvidence(MASK)
    for length in range(3):
        found = np.asarray(evidence(ended, jnp.int32(length)))
        np.testing.assert_array_equal(np.exp(found[1, 1]), np.eye(7)[tiles.AGENT])
        missed = np.where(np.arange(7) == tiles.EMPTY, 1.0, MASK ** (2 - length))
        np.testing.assert_allclose(np.exp(found[1, 4]), missed, rtol=1e-6)
    assert np.isfinite(LevelEvidence(0.0)(ended, jnp.int32(2))[1, 4]).all()


def test_a_window_in_which_pushes_are_not_seen_is_refused():
    with pytest.raises(CouldaError, match="window is 1; pushes are seen in one of at least 3"):
        revealed(push(), window=1)
