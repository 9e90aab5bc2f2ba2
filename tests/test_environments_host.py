"""A Gymnasium environment that takes its noise by hand is a model, and means what `rollout` means."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import HostSimulator
from coulda.environments.host_playing import Inputs, Player, Program
from coulda.errors import CouldaError
from coulda.hindsight import Tempered
from coulda.noise import Categorical, Normal, Uniform
from coulda.pomdp import POMDP, GumbelMaxChoice, Policy, rollout
from tests import host_envs

HORIZON = 6
NOISE = {"initial_noise": Uniform(3.0, 8.0), "transition_noise": Uniform()}


class Walk(POMDP):
    """The same walk as a JAX model."""

    horizon: int = eqx.field(static=True, default=HORIZON)
    action_mechanism: GumbelMaxChoice = GumbelMaxChoice(3)  # pyright: ignore[reportIncompatibleVariableOverride]
    observation_space = host_envs.Walk.observation_space
    action_space = host_envs.Walk.action_space
    initial_noise = NOISE["initial_noise"]
    transition_noise = NOISE["transition_noise"]

    def initial(self, u):
        return jnp.floor(u), jnp.float32(0)

    def transition(self, state, action, u):
        return state[0] + action.astype(float) - 1 + (u > 0.8).astype(float), state[1] + 1

    def reward(self, state, action, next_state):
        return next_state[0] / 10

    def observe(self, state, u):
        return jnp.stack(state)

    def terminal(self, state):
        return ~((state[0] > 0) & (state[0] < 10))

    def observation_log_prob(self, observation, state):
        return Normal(jnp.stack(state), 0.5).log_prob(observation)


class Homesick(Policy):
    """Remembers what it was paid, so that rewards must come back from the host to it."""

    def initial_carry(self):
        return jnp.float32(0)

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.stack([carry, 0.2 * observation[0], 0.5 - carry]))

    def remember(self, carry, action, reward):
        return carry + reward


def simulator(workers):
    mechanism = GumbelMaxChoice(3)
    return HostSimulator(
        host_envs.Walk,
        host_envs.begin,
        host_envs.step,
        horizon=HORIZON,
        action_mechanism=mechanism,
        observation_scale=0.5,
        workers=workers,
        **NOISE,
    )


@eqx.filter_jit
def episodes(model, scenarios):
    return jax.vmap(lambda u: rollout(model, Homesick(), u).episode)(scenarios)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_host_rollout_is_rollout(workers):
    """On the same scenarios: observations, actions, rewards, ends and log-probabilities."""
    with simulator(workers) as walks:
        scenarios = jax.vmap(walks.scenario_prior.sample)(jax.random.split(jax.random.key(0), 19))
        host = jax.tree.map(np.asarray, episodes(walks, scenarios))
    model = jax.tree.map(np.asarray, episodes(Walk(), scenarios))
    assert 0 < int((~model.live).sum()) < model.live.size
    np.testing.assert_array_equal(host.live, model.live)
    np.testing.assert_array_equal(host.observation, model.observation)
    for name in ("action", "reward", "log_prob"):
        np.testing.assert_allclose(getattr(host, name)[model.live], getattr(model, name)[model.live], rtol=1e-5)
    assert not host.reward[~host.live].any()


@pytest.mark.slow
def test_tempering_by_whole_rollouts_is_that_of_the_model():
    """Of the walk on the host and of the same walk in JAX, from the same keys: the same draws, the same evidence."""

    @eqx.filter_jit
    def tempered(model, key, episode):
        return Tempered(model, particles=40, moves=4).infer_many(key, episode, 8)

    with simulator(0) as walks:
        scenarios = jax.vmap(walks.scenario_prior.sample)(jax.random.split(jax.random.key(0), 19))
        episode = jax.tree.map(lambda leaf: leaf[0], episodes(Walk(), scenarios))
        host = jax.tree.map(np.asarray, tempered(walks, jax.random.key(1), episode))
    model = jax.tree.map(np.asarray, tempered(Walk(), jax.random.key(1), episode))
    for a, b in zip(jax.tree.leaves(host), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    assert np.isfinite(host[1].log_evidence)


def test_spaces_that_are_not_arrays_are_refused():
    class Words(gymnasium.Env):
        observation_space = gymnasium.spaces.Text(5)
        action_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(CouldaError, match="not a space of arrays"):
        HostSimulator(Words, host_envs.begin, initial_noise=Normal(), horizon=2, action_mechanism=GumbelMaxChoice(2))


def test_programs_side_by_side_do_not_disturb_each_other():
    """Two batches that take turns are begun once each, and answered as if alone; an older state is played again."""
    begun = []

    def begin(env, start):
        begun.append(float(start))
        return host_envs.begin(env, start)

    examples = np.zeros(2, np.float32), np.zeros((), np.int32), np.zeros((), np.float32), np.zeros((), np.float32)
    player = Player(Program(host_envs.Walk, begin, host_envs.step, None, HORIZON, examples))

    def advance(start, steps):
        noise, ones = np.full((1, steps), 0.9, np.float32), np.ones((1, steps), np.int32)
        inputs = Inputs(np.float32([start]), noise, ones, np.int32([steps]))
        return player.advance(inputs, np.zeros(1, bool))[0][0, 0]

    for steps in range(4):
        assert advance(3.0, steps) == 3 + steps
        assert advance(5.0, steps) == 5 + steps
    assert begun == [3.0, 5.0]
    assert advance(3.0, 2) == 5
    assert begun == [3.0, 5.0, 3.0]
