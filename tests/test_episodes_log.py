"""The in-memory form: what goes in comes out, ragged or padded."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from coulda.episodes import (
    Recorder,
    Schema,
    checked_log,
    collect,
    collect_batches,
    fit_behavior,
    from_arrays,
    from_episodes,
    to_arrays,
)
from coulda.episodes.log import concatenate
from coulda.episodes.spaces import features, spec_of
from coulda.errors import CouldaError
from coulda.pomdp import rollout
from tests.triage import BEHAVIOR, Stubborn, exact_value, triage


@pytest.fixture(scope="module")
def log():
    return collect(jax.random.key(0), triage(), BEHAVIOR, 200)


def assert_same(a, b):
    assert a.schema == b.schema
    for name in ("observation", "action", "reward", "log_prob", "lengths", "terminated"):
        x, y = jax.tree.leaves(getattr(a, name)), jax.tree.leaves(getattr(b, name))
        assert [v.dtype for v in x] == [v.dtype for v in y], name
        for left, right in zip(x, y, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_episodes_are_what_rollout_made(log):
    world = triage()
    for i in (0, 3, 17):
        scenario = world.scenario_prior.sample(jax.random.fold_in(jax.random.key(0), i))
        expected = rollout(world, BEHAVIOR, scenario).episode
        length = int(expected.length)
        episode = log[i]
        np.testing.assert_array_equal(episode.observation, expected.observation[: length + 1])
        np.testing.assert_array_equal(episode.action, expected.action[:length])
        np.testing.assert_array_equal(episode.reward, expected.reward[:length])
        np.testing.assert_allclose(episode.log_prob, expected.log_prob[:length], rtol=1e-6)
        assert bool(log.terminated[i]) == bool(episode.observation[-1] >= 2)


def test_lengths_vary_and_returns_add_up(log):
    assert 1 in log.lengths
    assert log.max_length == 5
    np.testing.assert_allclose(log.episode_returns, [episode.reward.sum() for episode in log], atol=1e-6)
    # 200 returns of standard deviation < 1.1: five standard errors, false failure 6e-7.
    assert abs(log.episode_returns.mean() - exact_value(BEHAVIOR)) < 5 * 1.1 / np.sqrt(200)


def test_padding_repeats_and_is_masked(log):
    padded = log.padded(7)
    assert padded.observation.shape == (200, 8)
    assert padded.action.shape == padded.reward.shape == padded.live.shape == (200, 7)
    for i, episode in enumerate(log):
        length = len(episode.reward)
        np.testing.assert_array_equal(padded.observation[i, : length + 1], episode.observation)
        assert (np.asarray(padded.observation[i, length:]) == episode.observation[-1]).all()
        np.testing.assert_array_equal(padded.action[i, :length], episode.action)
        assert np.asarray(padded.live[i]).sum() == length
        assert not np.asarray(padded.reward[i, length:]).any()
    with pytest.raises(CouldaError, match=r"horizon 3 is shorter than episode \d+, which has 5 steps"):
        log.padded(3)


def test_taking_and_slicing_agree_with_a_loop(log):
    indices = [5, 0, 5, 199]
    for chosen, i in zip(log.take(indices), indices, strict=True):
        np.testing.assert_array_equal(chosen.observation, log[i].observation)
        np.testing.assert_array_equal(chosen.reward, log[i].reward)
    assert_same(concatenate(list(log.batches(33))), log)
    assert len(log[-3:]) == 3
    np.testing.assert_array_equal(log[-1].reward, log[199].reward)


def test_minibatches_are_uniform_and_reproducible(log):
    a, b = (log.sample(jax.random.key(4), 1000) for _ in range(2))
    assert_same(a, b)
    # Mean length of 1000 draws against that of the log: five standard errors (6e-7).
    assert abs(a.lengths.mean() - log.lengths.mean()) < 5 * log.lengths.std() / np.sqrt(1000)


def test_collecting_in_pieces_is_collecting(log):
    pieces = list(collect_batches(jax.random.key(0), triage(), BEHAVIOR, 200, batch_size=64))
    assert [len(piece) for piece in pieces] == [64, 64, 64, 8]
    assert_same(concatenate(pieces), log)


def test_from_episodes_is_the_inverse_of_iterating(log):
    assert_same(from_episodes(log.schema, iter(log), log.terminated), log)


NESTED = spaces.Dict(
    {
        "grid": spaces.Box(0, 6, (2, 2), np.uint8),
        "pair": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
        "many": spaces.MultiDiscrete([2, 4]),
    }
)


def test_observations_may_be_trees():
    samples = [NESTED.sample() for _ in range(4)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *samples)
    schema = Schema(NESTED, spaces.Box(-1, 1, (2,)))
    log = checked_log(schema, stacked, np.zeros((2, 2)), [0.5, 1], [1, 1], np.array([True, False]))
    assert log.observation["pair"][0].dtype == np.int32
    assert log[1].observation["grid"].shape == (2, 2, 2)
    first = jax.tree.map(lambda x: jnp.asarray(x[0]), log.observation)
    assert features(NESTED, first).shape == (4 + 3 + 2 + 2 + 4,)


@pytest.mark.parametrize(
    "space",
    [NESTED, spaces.Box(np.float32([-np.inf, 0.1]), np.float32([1.0, np.inf])), spaces.Box(-3, 9, (2, 3), np.int16)],
)
def test_spaces_survive_the_manifest(space):
    assert spec_of(space).space() == space


def test_unsupported_spaces_are_named():
    with pytest.raises(CouldaError, match="a log cannot hold Text"):
        spec_of(spaces.Text(3))


def test_mdp_dataset_arrays_come_back(log):
    arrays = to_arrays(log)
    back = from_arrays(**arrays, observation_space=log.schema.observation_space, action_space=spaces.Discrete(2))
    assert back.schema.last_observation == "repeated"
    for name in ("action", "reward", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(back, name), getattr(log, name))
    for a, b in zip(back, log, strict=True):
        np.testing.assert_array_equal(a.observation[:-1], b.observation[:-1])
        assert a.observation[-1] == a.observation[-2]
    np.testing.assert_allclose(back.log_prob, log.log_prob, rtol=1e-6)
    columns = {name: np.reshape(arrays[name], (-1, 1)) for name in ("actions", "rewards", "terminals")}
    np.testing.assert_array_equal(from_arrays(**(arrays | columns)).action, log.action)


class Counter(gymnasium.Env):
    """Counts to three in a buffer that it reuses, as many environments do."""

    observation_space = spaces.Box(0, 10, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.buffer = np.zeros(1, np.float32)
        return self.buffer, {}

    def step(self, action):
        self.buffer += 1
        return self.buffer, 0.5 * action, bool(self.buffer[0] == 3), False, {}


def test_recording_a_gymnasium_environment():
    env = Recorder(Counter())
    with pytest.raises(CouldaError, match="nothing is recorded"):
        env.log()
    env.reset(seed=0)
    for action in (1, 0, 1):
        env.step(action, probability=0.25)
    env.reset()
    env.step(1)
    env.reset()
    log = env.log()
    assert log.lengths.tolist() == [3, 1]
    assert log.terminated.tolist() == [True, False]
    assert log[0].observation.tolist() == [[0], [1], [2], [3]]
    assert log[0].reward.tolist() == [0.5, 0, 0.5]
    np.testing.assert_allclose(log[0].log_prob, np.log(0.25), rtol=1e-6)
    assert np.isnan(log[1].log_prob).all()


def test_a_wrong_action_is_refused_when_the_record_is_read():
    env = Recorder(Counter())
    env.reset()
    for _ in range(3):
        env.step(2)
    with pytest.raises(CouldaError, match="episode 0, step 0, field 'action': 2 is outside 0 … 1"):
        env.log()


def test_fitted_behavior_is_the_policy_that_acted():
    log = collect(jax.random.key(1), triage(), BEHAVIOR, 4000)
    unknown = log.with_log_prob(np.full_like(log.log_prob, np.nan), behavior="logged")
    fitted = fit_behavior(unknown)
    assert fitted.schema.behavior == "fitted"
    # Some 4,000 choices in the rarer state: three standard errors of a frequency are 0.024.
    np.testing.assert_allclose(np.exp(fitted.log_prob), np.exp(log.log_prob), atol=0.03)
    # The twin: a behavior policy with memory cannot be fitted from observations.
    memory = collect(jax.random.key(1), triage(), Stubborn(), 4000)
    assert np.abs(np.exp(fit_behavior(memory).log_prob) - np.exp(memory.log_prob)).mean() > 0.1


def test_fitted_behavior_of_numbers_equals_a_second_solver():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (500, 2)).astype(np.float32)
    action = (rng.random(500) < 1 / (1 + np.exp(-(x[:, 0] - 3)))).astype(np.int64)
    schema = Schema(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2))
    twice = np.repeat(x, 2, axis=0)
    log = checked_log(schema, twice, action, np.zeros(500), np.ones(500, int), np.ones(500, bool))
    fitted = fit_behavior(log, penalty=1e-3)
    # Newton's method on the binary logistic likelihood, unpenalized.
    inputs = np.concatenate([(x - x.mean(0)) / x.std(0), np.ones((500, 1))], 1).astype(float)
    w = np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-inputs @ w))
        w += np.linalg.solve((inputs.T * (p * (1 - p))) @ inputs, inputs.T @ (action - p))
    p = 1 / (1 + np.exp(-inputs @ w))
    np.testing.assert_allclose(np.exp(fitted.log_prob), np.where(action == 1, p, 1 - p), atol=2e-3)


def test_trees_of_actions_cannot_be_fitted():
    schema = Schema(spaces.Discrete(2), spaces.MultiDiscrete([2, 2]))
    log = checked_log(schema, np.array([0, 1]), np.zeros((1, 2), int), np.zeros(1), [1], np.array([True]))
    with pytest.raises(CouldaError, match="discrete or continuous actions"):
        fit_behavior(log)
