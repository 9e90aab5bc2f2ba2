"""A Gymnasium environment in worker processes means what `rollout` means."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import HostSimulator, SimulatorError
from coulda.errors import CouldaError
from coulda.noise import Categorical, Normal, Uniform
from coulda.pomdp import POMDP, GumbelMaxChoice, Planner, Policy, rollout
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


class Homesick(Policy):
    """Remembers what it was paid, so that rewards must come back from the workers to it."""

    def initial_carry(self):
        return jnp.float32(0)

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.stack([carry, 0.2 * observation[0], 0.5 - carry]))

    def remember(self, carry, action, reward):
        return carry + reward


def simulator(make_env, workers=2, envs_per_worker=4):
    return HostSimulator(
        make_env,
        host_envs.begin,
        horizon=HORIZON,
        action_mechanism=GumbelMaxChoice(3),
        workers=workers,
        envs_per_worker=envs_per_worker,
        **NOISE,
    )


@pytest.fixture(scope="module")
def walks():
    with simulator(host_envs.Walk) as pool:
        yield pool


def test_host_rollout_is_rollout(walks):
    """On the same scenarios, 19 of them in turns of 8: observations, actions, rewards, ends and log-probabilities."""
    scenarios = jax.vmap(walks.scenario_prior.sample)(jax.random.split(jax.random.key(0), 19))
    host = walks.rollout(Homesick(), scenarios)
    model = jax.jit(jax.vmap(lambda u: rollout(Walk(), Homesick(), u).episode))(scenarios)
    assert 0 < int((~model.live).sum()) < model.live.size
    np.testing.assert_array_equal(host.live, model.live)
    seen = np.concatenate([np.ones((19, 1), bool), model.live], axis=1)
    np.testing.assert_array_equal(host.observation[seen], model.observation[seen])
    for name in ("action", "reward", "log_prob"):
        np.testing.assert_allclose(
            np.asarray(getattr(host, name))[model.live], np.asarray(getattr(model, name))[model.live], rtol=1e-5
        )
    assert not np.asarray(host.reward)[~np.asarray(host.live)].any()


def test_the_same_scenario_gives_the_same_episode(walks):
    scenarios = jax.vmap(walks.scenario_prior.sample)(jax.random.split(jax.random.key(1), 5))
    first, second = (walks.rollout(Homesick(), scenarios) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_planner_is_refused(walks):
    class Seer(Planner):
        def __call__(self, carry, state, observation):
            return carry, Categorical(logits=jnp.zeros(3))

    scenarios = jax.vmap(walks.scenario_prior.sample)(jax.random.split(jax.random.key(1), 5))
    with pytest.raises(CouldaError, match="hides its state"):
        walks.rollout(Seer(), scenarios)


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (host_envs.failing, "(?s)failed in your environment.*the ice is thin"),
        (host_envs.dying, "died with exit code 7"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(make_env, message):
    with simulator(make_env, workers=1) as pool:
        scenarios = jax.vmap(pool.scenario_prior.sample)(jax.random.split(jax.random.key(0), 3))
        with pytest.raises(SimulatorError, match=message):
            pool.rollout(Homesick(), scenarios)
        assert not pool._workers[0].process.is_alive()


def test_spaces_that_are_not_arrays_are_refused():
    class Words(gymnasium.Env):
        observation_space = gymnasium.spaces.Text(5)
        action_space = gymnasium.spaces.Discrete(2)

    with pytest.raises(CouldaError, match="not a space of arrays"):
        HostSimulator(Words, host_envs.begin, initial_noise=Normal(), horizon=2, action_mechanism=GumbelMaxChoice(2))
