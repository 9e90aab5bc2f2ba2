"""IMPALA: its loss against plain loops, staleness and resume to the bit, and the probe ladder with twins that fail."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coulda.environments import TabularPOMDP, tiger
from coulda.errors import CouldaError
from coulda.executors import InProcess
from coulda.learners import ActorCriticLoss, Impala, ImpalaState, episodes_of
from coulda.learners.loss import unroll
from coulda.policies import RecurrentPolicy, UniformPolicy
from coulda.pomdp import POMDP, batched, rollout
from coulda.recipes.worlds import hidden_bit_model
from tests.test_search_probes import one_step, two_steps
from tests.test_training_vtrace import direct_sum

ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.02))  # one object, so that probes share programs


class Forgetful(RecurrentPolicy):
    """The twin without memory: each step begins anew."""

    def with_value(self, carry, observation):
        _, distribution, value = super().with_value(self.initial_carry(), observation)
        return carry, distribution, value


def made(environment: POMDP, kind=RecurrentPolicy, seed=0) -> RecurrentPolicy:
    return kind(jax.random.key(seed), environment.observation_space, environment.action_space, width=8)


def impala(environment: POMDP, policy: RecurrentPolicy, max_staleness=0, **loss) -> Impala:
    work = episodes_of(environment, policy, batch=32, seed=3)
    settings = jax.tree.map(jnp.float32, ActorCriticLoss(**loss))  # data, so that twins share programs
    return Impala(InProcess(work), ADAM, settings, max_staleness)


def run(environment: POMDP, kind=RecurrentPolicy, steps=80, **options) -> tuple[float, list]:
    """The exact or sampled return after so many steps, and the infos."""
    policy = made(environment, kind)
    learner = impala(environment, policy, **options)
    state, infos = learner.init(policy), []
    for key in jax.random.split(jax.random.key(0), steps):
        state, info = learner.step(key, state)
        infos.append(info)
    return value_of(environment, state.policy), infos


def value_of(environment: POMDP, policy: RecurrentPolicy, episodes: int = 2000) -> float:
    """Mean return over 2,000 episodes: for returns in [0, 1] the standard error is at most 0.011."""
    return float(np.mean(_returns(environment, policy, jax.random.split(jax.random.key(9), episodes))))


@eqx.filter_jit
def _returns(environment: POMDP, policy: RecurrentPolicy, keys):
    one = lambda key: rollout(environment, policy, environment.scenario_prior.sample(key)).episode_return
    return batched(one, keys)


# The ladder. Every threshold is at least eight standard errors from what a learner that fails can reach, so that a
# probe that is passed without learning is rarer than once in 10¹⁴.


@pytest.mark.parametrize(("clip_rho", "learns"), [(1.0, True), (0.0, False)])
def test_one_step_reward(clip_rho, learns):
    # Context c pays for action c: 1 at best, 1/2 by chance. The twin's V-trace trusts nothing that was done.
    value, _ = run(one_step(), clip_rho=clip_rho, entropy_weight=0.0)
    assert value > 0.95 if learns else value < 0.75


@pytest.mark.slow
@pytest.mark.parametrize(("discount", "learns"), [(1.0, True), (0.0, False)])
def test_two_step_reward(discount, learns):
    # 1 is paid after the second step for action 1 and then 0. The twin's V-trace carries nothing back to the first
    # action, so that it stays a coin: 1/2 at best.
    value, _ = run(two_steps(True), discount=discount, entropy_weight=0.0)
    assert value > 0.95 if learns else value < 0.75


@cache
def repeat_the_bit() -> TabularPOMDP:
    """A bit is shown, then nothing, then 1 is paid for naming it. States: shown bit, hidden bit, right, wrong."""
    shown, hidden, right, wrong = (0, 1), (2, 3), 4, 5
    transition = np.zeros((2, 6, 6))
    for bit in (0, 1):
        transition[:, shown[bit], hidden[bit]] = 1
        transition[bit, hidden[bit], right] = transition[1 - bit, hidden[bit], wrong] = 1
    transition[:, right, wrong] = transition[:, wrong, wrong] = 1
    reward = np.zeros((2, 6, 1))
    reward[0, 2] = reward[1, 3] = 1
    return TabularPOMDP(
        [0.5, 0.5, 0, 0, 0, 0],
        transition,
        observation=np.eye(4)[[0, 1, 2, 2, 3, 3]],
        reward=reward,
        horizon=2,
        reparameterization="gumbel_max",
        terminal=[False] * 4 + [True] * 2,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "learns"), [(RecurrentPolicy, True), (Forgetful, False)])
def test_a_bit_that_must_be_remembered(kind, learns):
    value, _ = run(repeat_the_bit(), kind, steps=150, entropy_weight=0.0)
    assert value > 0.95 if learns else value < 0.6


@cache
def leaking_bit() -> TabularPOMDP:
    """The hidden bit, shown before the guess."""
    sound = hidden_bit_model(0.7)
    return TabularPOMDP(
        [0.3, 0.7, 0, 0],
        np.stack([np.eye(4)[[2, 3, 2, 3]]] * 2),
        observation=np.eye(3)[[1, 2, 1, 2]],
        reward=np.array([[[1], [0], [0], [0]], [[0], [1], [0], [0]]]),
        horizon=sound.horizon,
        reparameterization="gumbel_max",
        terminal=[False, False, True, True],
    )


@pytest.mark.slow
@pytest.mark.parametrize("leaks", [False, True])
def test_a_hidden_bit_is_not_known_before_it_is_shown(leaks):
    # The bit is 1 in 70% of the episodes: 0.7 is the best without knowing it, 1 with a state that leaks.
    value, _ = run(leaking_bit() if leaks else hidden_bit_model(0.7), steps=120, entropy_weight=0.0)
    assert value > 0.95 if leaks else 0.65 < value < 0.75


def test_support_is_reported():
    """Episodes of actors that are far behind have ratios that are not 1, and some of them are clipped."""
    _, fresh = run(one_step(), steps=20)
    value, stale = run(one_step(), steps=100, max_staleness=8, entropy_weight=0.0)
    assert all(float(info.loss.clipped) < 1e-3 or abs(float(info.loss.ratio) - 1) < 1e-5 for info in fresh)
    assert max(float(info.loss.clipped) for info in stale) > 0.3
    assert value > 0.95, "V-trace corrects for it"


# The loss.


def log_of(environment, policy, n):
    one = lambda key: rollout(environment, policy, environment.scenario_prior.sample(key)).episode
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), n)))


def test_the_loss_equals_plain_loops():
    environment = tiger(horizon=4, reparameterization="gumbel_max")
    policy, settings = made(environment), {"discount": 0.9, "decay": 0.8, "clip_rho": 1.1, "clip_c": 0.9}
    episodes = log_of(environment, UniformPolicy(3), 4)
    live = np.arange(4)[None] < np.array([[4], [2], [1], [3]])
    episodes = type(episodes)(episodes.observation, episodes.action, episodes.reward, live, episodes.log_prob)
    act, remember = eqx.filter_jit(policy.with_value), eqx.filter_jit(policy.remember)
    terms = {"policy": [], "value": [], "entropy": []}
    for i in range(4):
        carry, said = policy.initial_carry(), []
        for t in range(4):
            carry, distribution, value = act(carry, episodes.observation[i, t])
            said.append((np.asarray(jax.nn.log_softmax(distribution.logits)), float(value)))
            carry = remember(carry, episodes.action[i, t], episodes.reward[i, t])
        taken = np.array([said[t][0][episodes.action[i, t]] for t in range(4)])
        values, alive = np.array([v for _, v in said]), np.asarray(live[i])
        target, advantage = direct_sum(taken + np.log(3), np.asarray(episodes.reward[i]), values, alive, **settings)
        for t in np.flatnonzero(alive):
            terms["policy"].append(-taken[t] * advantage[t])
            terms["value"].append((target[t] - values[t]) ** 2 / 2)
            terms["entropy"].append(-np.sum(np.exp(said[t][0]) * said[t][0]))
    policy_loss, value_loss, entropy = (np.mean(term) for term in terms.values())
    found, info = eqx.filter_jit(ActorCriticLoss(entropy_weight=0.03, value_weight=0.7, **settings))(policy, episodes)
    np.testing.assert_allclose(
        [info.policy_loss, info.value_loss, info.entropy], [policy_loss, value_loss, entropy], rtol=2e-4
    )
    np.testing.assert_allclose(found, policy_loss + 0.7 * value_loss - 0.03 * entropy, rtol=2e-4)


def test_targets_are_constants_to_the_gradient():
    """The gradient of the policy's term is that of Σ log π · A with A held fixed, and the value gets none of it."""
    policy = made(one_step())
    episodes = log_of(one_step(), policy, 8)
    term = lambda policy: ActorCriticLoss()(policy, episodes)[1].policy_loss

    @jax.jit
    def gradients(policy):
        advantage = episodes.reward - jax.vmap(lambda episode: unroll(policy, episode).value)(episodes)
        log_probs = lambda policy: jax.vmap(lambda episode: unroll(policy, episode).log_prob)(episodes)
        return jax.grad(term)(policy), jax.grad(lambda policy: -jnp.mean(log_probs(policy) * advantage))(policy)

    found, plain = gradients(policy)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, plain)
    assert float(abs(found.value.weight).max()) == 0


# Staleness and resume.


def states(environment: POMDP, steps: int, max_staleness: int, start: ImpalaState | None = None):
    """Every state and info of a run with an executor of its own."""
    policy = made(environment)
    learner = impala(environment, policy, max_staleness)
    state, found = learner.init(policy) if start is None else start, []
    for _ in range(steps):
        state, info = learner.step(jax.random.key(0), state)
        found.append((state, info))
    return found


def equal(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_actors_are_as_far_behind_as_they_may_be(max_staleness):
    found = states(one_step(), 5, max_staleness)
    assert [int(info.staleness) for _, info in found] == [min(n, max_staleness) for n in range(5)]


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_state_is_all_that_a_run_needs_to_go_on(max_staleness):
    whole = states(one_step(), 5, max_staleness)
    resumed = states(one_step(), 2, max_staleness, start=whole[2][0])
    assert equal(whole[-1][0], resumed[-1][0])
    assert not equal(whole[-1][0].policy, whole[-2][0].policy), "the twin: one update makes a difference"


def test_staleness_makes_another_run():
    assert not equal(states(one_step(), 3, 0)[-1][0].policy, states(one_step(), 3, 2)[-1][0].policy)


def test_a_policy_without_a_value_is_refused():
    policy = made(one_step())
    with pytest.raises(CouldaError, match="an ActorCritic; got a UniformPolicy"):
        impala(one_step(), policy).init(UniformPolicy(2))
