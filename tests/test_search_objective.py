"""Equation 1 against brute force: every scenario and every action sequence of a tiny POMDP, in NumPy."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import TabularPOMDP
from coulda.errors import CouldaError
from coulda.noise import Categorical
from coulda.planners import TabularPlanner
from coulda.policies import TabularPolicy
from coulda.pomdp import Scenario, rollout
from coulda.search import ReturnWeightedRegression
from coulda.search.objective import (
    AT_ONCE,
    climb,
    effective_sample_size,
    heaviest_first,
    multiplicity,
    normalize,
    resample,
    weighted_log_likelihood,
)

# Every probability is a multiple of 1/2 or 1/4, so that the midpoints of a grid of noise are a whole distribution.
INITIAL = np.array([0.25, 0.5, 0.25])
TRANSITION = np.array([[[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]], [[0, 0.5, 0.5], [0.5, 0.5, 0], [0, 0, 1]]])
OBSERVATION = np.array([[0.5, 0.5], [0, 1], [1, 0]])
REWARD = np.array([[0.7, -0.2, 1.0], [0.1, 1.3, -0.5]])  # of the action and the state entered
PLANNER = np.array([[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
POLICY = np.array([[0.3, 0.7], [0.6, 0.4]])
TERMINAL = 2
STEPS = 2

MODEL = TabularPOMDP(
    INITIAL,
    TRANSITION,
    OBSERVATION,
    REWARD[:, None, :],
    horizon=STEPS,
    reparameterization="inverse_cdf",
    terminal=np.arange(3) == TERMINAL,
)
SIZES = {"initial": (4,), "transition": (2, 2), "observation": (2, 2, 1), "action": (4, 4)}


def midpoints(sizes) -> np.ndarray:
    """All combinations of midpoints, `[n, len(sizes)]`."""
    return np.array(list(itertools.product(*[(np.arange(n) + 0.5) / n for n in sizes])), np.float32)


def trajectories(planner=PLANNER):
    """Every scenario with every action noise, `[S, n, ...]`, by the library."""
    initial, transition, observation, action = (midpoints(sizes) for sizes in SIZES.values())
    index = np.array(list(itertools.product(range(len(initial)), range(len(transition)), range(len(observation)))))
    world = initial[index[:, 0], 0], transition[index[:, 1]], observation[index[:, 2]]
    return run(TabularPlanner(planner), world, action)


@jax.jit
def run(planner, world, actions):
    one = lambda u, a: rollout(MODEL, planner, Scenario(*u, action=a)).episode
    return jax.vmap(lambda u: jax.vmap(lambda a: one(u, a))(actions))(world)


@eqx.filter_jit
def gradient_on(regression, policy, batch, noise=0.0):
    return regression.ascent_on(policy, batch)(policy, jnp.asarray(noise))


def brute_force(temperature: float, ratio: bool, normalization: str) -> np.ndarray:
    """d/dlogits of Σ_τ w(τ) log p^π(τ), by enumeration; nothing of the library is used."""

    def category(probabilities, u):
        return int(np.searchsorted(np.cumsum(probabilities), u, side="right"))

    sums = []
    for u1, us, uo in itertools.product(*(midpoints(SIZES[name]) for name in ("initial", "transition", "observation"))):
        weighted, total, alive = np.zeros((2, 2)), 0.0, False
        for actions in itertools.product(range(2), repeat=STEPS):
            state, gain, log_prob, score, chance = category(INITIAL, u1[0]), 0.0, 0.0, np.zeros((2, 2)), 1.0
            for t, action in enumerate(actions):
                chance *= PLANNER[state, action]  # after the end too: then the actions add up to nothing
                if state == TERMINAL:
                    continue
                alive = True
                seen = category(OBSERVATION[state], uo[t])
                score[seen] += np.eye(2)[action] - POLICY[seen]
                log_prob += np.log(POLICY[seen, action] / PLANNER[state, action])
                state = category(TRANSITION[action, state], us[t])
                gain += REWARD[action, state]
            weight = chance * np.exp(gain / temperature + (log_prob if ratio else 0.0))
            weighted, total = weighted + weight * score, total + weight
        if alive:
            sums.append((weighted, total))
    if normalization == "scenario":
        return np.mean([weighted / total for weighted, total in sums], axis=0)
    return sum(weighted for weighted, _ in sums) / sum(total for _, total in sums)


@pytest.mark.parametrize("normalization", ["scenario", "batch"])
@pytest.mark.parametrize("ratio", [True, False])
def test_the_gradient_is_that_of_brute_force(normalization, ratio):
    regression = ReturnWeightedRegression(temperature=0.7, ratio=ratio, normalization=normalization)
    gradient, info = gradient_on(regression, TabularPolicy(POLICY), trajectories())
    np.testing.assert_allclose(gradient.logits, brute_force(0.7, ratio, normalization), atol=1e-5)
    assert info.dead == 0.25, "a quarter of the scenarios begin in the terminal state"
    others = itertools.product([True, False], ["scenario", "batch"])
    wrong = [brute_force(0.7, *other) for other in others if other != (ratio, normalization)]
    assert all(np.abs(gradient.logits - w).max() > 1e-2 for w in wrong), "a wrong weighting must be told apart"


def test_with_the_ratio_the_planner_does_not_matter():
    # Importance sampling over all trajectories: the weighted score under λ is that under π^k, whatever λ.
    batches = trajectories(), trajectories(np.full((3, 2), 0.5))
    for ratio in (True, False):
        regression = ReturnWeightedRegression(ratio=ratio, normalization="batch")
        one, other = (gradient_on(regression, TabularPolicy(POLICY), batch)[0].logits for batch in batches)
        assert (np.abs(one - other).max() < 1e-5) == ratio


def test_resampling_is_unbiased_and_takes_only_what_has_weight():
    weights = np.array([0.1, 0.0, 0.55, 0.35], np.float32)
    noise = midpoints([1000])[:, 0]
    index = np.asarray(jax.vmap(lambda u: resample(u, jnp.asarray(weights), 6))(noise))
    counts = (index[:, :, None] == np.arange(4)).sum(1)
    np.testing.assert_allclose(counts.mean(0) / 6, weights, atol=1e-3)
    assert (np.abs(counts - 6 * weights) < 1).all()
    assert not (index == 1).any()


def test_the_gradient_on_resampled_trajectories_has_the_same_mean():
    policy, batch = TabularPolicy(POLICY), trajectories()
    noise = jnp.asarray(midpoints([64])[:, 0])
    regression = ReturnWeightedRegression(num_resampled=16)
    mean = jax.jit(jax.vmap(lambda u: regression.ascent_on(policy, batch)(policy, u)[0].logits))(noise).mean(0)
    exact, _ = gradient_on(ReturnWeightedRegression(), policy, batch)
    # A grid of 64 noise values and 16 places integrates a step function with an error below 1/1024 a step.
    np.testing.assert_allclose(mean, exact.logits, atol=5e-3)
    one, _ = gradient_on(regression, policy, batch, noise[0])
    assert np.abs(one.logits - exact.logits).max() > 1e-2, "one resample is noisier than that"


def test_copies_are_counted_and_what_has_no_weight_is_not_run():
    """The gradient of a chunk without weight is not taken: what would poison it does no harm."""
    policy, batch = (
        TabularPolicy(POLICY),
        jax.tree.map(lambda leaf: leaf[:8, :4].reshape(32, *leaf.shape[2:]), trajectories()),
    )
    index = jnp.asarray([3] * 5 + [9] * 2 + [11])
    copies = jax.tree.map(lambda leaf: leaf[index], batch)
    one_by_one = eqx.filter_value_and_grad(weighted_log_likelihood)(policy, copies, jnp.full(8, 0.1))
    share = jnp.zeros(32).at[index].add(0.1)
    order = heaviest_first(share, 1)
    weighed = jax.tree.map(lambda leaf: leaf[order], (batch, share))
    value, gradient = climb(policy, weighed)
    np.testing.assert_allclose(value, one_by_one[0], rtol=1e-5)
    np.testing.assert_allclose(gradient.logits, one_by_one[1].logits, atol=1e-6)
    assert multiplicity(index).tolist() == [5, 0, 0, 0, 0, 2, 0, 1]

    class Poisoned(TabularPolicy):
        def __call__(self, carry, observation):
            carry, distribution = super().__call__(carry, observation % 7)
            return carry, Categorical(logits=distribution.logits * jnp.where(observation == 7, jnp.nan, 1.0))

    for first, harmless in ((AT_ONCE, True), (AT_ONCE - 1, False)):
        seen = jnp.where(jnp.arange(32)[:, None] >= first, 7, weighed[0].observation)
        poisoned = eqx.tree_at(lambda episode: episode.observation, weighed[0], seen)
        _, gradient = climb(Poisoned(POLICY), (poisoned, weighed[1]))
        assert np.isfinite(gradient.logits).all() == harmless


@pytest.mark.parametrize(
    ("size", "devices", "filled"), [(32, 2, 32), (20, 2, 32), (160, 1, 160), (5, 2, 5), (16, 2, 16)]
)
def test_each_device_has_as_many_of_the_heavy(size, devices, filled):
    weights = jnp.where(jnp.arange(size) % 4 == 1, 1.0, 0.0)
    order = np.asarray(heaviest_first(weights, devices))
    assert sorted(order) == [*range(size), *[size] * (filled - size)]
    if filled % devices == 0:
        heavy = np.append(np.asarray(weights), 0.0)[order].reshape(devices, -1)
        assert np.ptp(heavy.sum(1)) <= 1
        assert (np.diff(heavy) <= 0).all(), "the heavy are first"


def test_no_support_gives_no_gradient_and_is_counted():
    certain = TabularPolicy([[1.0, 0.0], [1.0, 0.0]])
    batch = trajectories()
    forbidden = type(batch)(batch.observation, jnp.ones_like(batch.action), batch.reward, batch.live, batch.log_prob)
    gradient, info = gradient_on(ReturnWeightedRegression(), certain, forbidden)
    assert (gradient.logits == 0).all()
    assert info.unsupported == 1
    assert info.effective_sample_size == 0
    gradient, info = gradient_on(ReturnWeightedRegression(num_resampled=4), certain, forbidden)
    assert (gradient.logits == 0).all()
    _, info = gradient_on(ReturnWeightedRegression(), TabularPolicy(POLICY), batch)
    assert info.unsupported == 0


def test_weights_survive_returns_that_overflow():
    weights = normalize(jnp.asarray([[1000.0, 999.0], [-1000.0, -jnp.inf]]), jnp.ones(2, bool), "scenario")
    np.testing.assert_allclose(weights, [[0.5 / (1 + np.exp(-1)), 0.5 / (1 + np.e)], [0.5, 0]], rtol=1e-6)
    np.testing.assert_allclose(
        effective_sample_size(weights, axis=1), [1 / (0.7310586**2 + 0.2689414**2), 1], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"), [({"normalization": "none"}, "name one of"), ({"temperature": 0.0}, "positive; got 0.0")]
)
def test_mistakes_are_named(options, message):
    with pytest.raises(CouldaError, match=message):
        ReturnWeightedRegression(**options)
