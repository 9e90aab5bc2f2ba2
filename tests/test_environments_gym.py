"""A Gymnasium environment, unchanged, is a model: the same tape and actions give the same episode, to the bit."""

import subprocess
import sys
from functools import partial

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
from scipy import stats

from coulda.environments import GymSimulator, SimulatorError
from coulda.environments.taping import taped_reset, taped_step
from coulda.episodes import collect, write_log
from coulda.errors import CouldaError
from coulda.evaluation import OnPolicy, OnScenarios, Precision, compare
from coulda.hindsight import Inverted, Prior, choose
from coulda.policies import AnyAction, TabularPolicy
from coulda.pomdp import rollout
from tests import gym_envs
from tests.conftest import ROOT

DAYS = gym_envs.Shop.DAYS
TABLE = np.where(np.arange(13)[:, None] < 5, [0.02, 0.02, 0.02, 0.92, 0.02], [0.92, 0.02, 0.02, 0.02, 0.02])


@pytest.fixture(scope="module")
def shop():
    return GymSimulator(gym_envs.Shop, horizon=DAYS, workers=0)


@eqx.filter_jit
def episodes(model, policy, scenarios):
    return jax.vmap(lambda u: rollout(model, policy, u).episode)(scenarios)


@eqx.filter_jit
def inferred(source, keys, episodes):
    return jax.vmap(lambda key, one: source.infer_many(key, one, 4))(keys, episodes)


def drawn(model, count=16, seed=0):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.tree.map(np.asarray, jax.vmap(model.scenario_prior.sample)(keys))


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.fixture(scope="module")
def log(shop):
    return numpy(episodes(shop, AnyAction.of(shop), drawn(shop)))


def by_hand(env, scenario, actions):
    """What the environment itself makes of a tape, without any of the machinery above it."""
    seen, paid = [taped_reset(env, scenario.initial)], []
    for t, action in enumerate(actions):
        observation, reward, *_ = taped_step(env, int(action), scenario.transition[t])
        seen.append(observation)
        paid.append(reward)
    return seen, paid


def test_an_episode_is_what_the_environment_makes_of_its_tape(shop, log):
    scenarios, env = drawn(shop), gym_envs.Shop()
    for i in range(16):
        seen, paid = by_hand(env, jax.tree.map(lambda leaf, i=i: leaf[i], scenarios), log.action[i])
        assert seen == log.observation[i].tolist()
        assert np.array_equal(np.float32(paid), log.reward[i])
    # The twin: a neighbor's tape makes something else.
    seen, _ = by_hand(env, jax.tree.map(lambda leaf: leaf[1], scenarios), log.action[0])
    assert seen != log.observation[0].tolist()


def test_steps_are_pure(shop, log):
    """A state that others were run after is stepped as before, though the environments stand elsewhere by then."""
    scenario = jax.tree.map(lambda leaf: leaf[0], drawn(shop))

    @jax.jit
    def run(u, actions):
        states = [shop.initial(u.initial)]
        for t in range(3):
            states.append(shop.transition(states[-1], actions[t], u.transition[t]))
        return states

    states = run(scenario, log.action[0])
    step = jax.jit(lambda state, action, u: shop.transition(state, action, u))
    again = numpy(step(states[1], log.action[0, 1], scenario.transition[1]))
    other = numpy(step(states[1], (log.action[0, 1] + 2) % 5, scenario.transition[1]))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(numpy(states[2])), strict=True):
        np.testing.assert_array_equal(a, b)
    assert other.reward != again.reward


def chances(stock, action):
    """P(next stock, reward) of one day at the shop, by its own words."""
    found = {}
    asked = stats.poisson(2.5).pmf(np.arange(60))
    for late, weight in ((True, 0.2), (False, 0.8)):
        for demand, chance in enumerate(asked):
            before = stock + (0 if late else action)
            sold = min(before, demand)
            after = min(before - sold + (action if late else 0), 12)
            key = after, np.float32(3.0 * sold - 0.5 * after - 1.0 * action)
            found[key] = found.get(key, 0.0) + weight * chance
    return found


def test_inversion_knows_the_probability_of_what_happened_and_replays_it(shop, log):
    """Late deliveries and lost demand are not seen; the evidence is that of the tables, summed over them."""
    source = Inverted(shop)
    scenarios, inference = numpy(inferred(source, jax.random.split(jax.random.key(1), 16), log))
    assert (inference.step == -1).all()
    for i in range(16):
        expected = np.log(1 / 5)
        for t in range(DAYS):
            key = int(log.observation[i, t + 1]), log.reward[i, t]
            expected += np.log(chances(int(log.observation[i, t]), int(log.action[i, t]))[key])
        np.testing.assert_allclose(inference.log_evidence[i], expected, rtol=1e-4)
    env = gym_envs.Shop()
    for i, k in np.ndindex(16, 4):
        seen, paid = by_hand(env, jax.tree.map(lambda leaf, i=i, k=k: leaf[i, k], scenarios), log.action[i])
        assert seen == log.observation[i].tolist()
        assert np.array_equal(np.float32(paid), log.reward[i])
    # What the history says nothing about is the prior's, to the bit: t = 0 is MB-PE.
    keys = jax.random.split(jax.random.key(1), 16)
    nothing, _ = numpy(inferred(source.given(0), keys, log))
    prior, _ = numpy(inferred(Prior(shop), keys, log))
    for a, b in zip(jax.tree.leaves(nothing), jax.tree.leaves(prior), strict=True):
        np.testing.assert_array_equal(a, b)
    # The twin: an episode that the shop cannot have made is not explained, and it is told from where on.
    wrong = eqx.tree_at(lambda e: e.observation, log, np.where(np.arange(DAYS + 1) == 3, 12, log.observation))
    _, inference = numpy(inferred(source, keys, wrong))
    assert (inference.step == 3).mean() > 0.8


def test_a_draw_is_uniform_within_what_explains_it(shop):
    """The posterior of the first number, given 3 … 7 at first: its fifth, moved there from the fresh draw."""
    source = Inverted(shop).given(1)
    scenarios = drawn(shop)
    log = numpy(episodes(shop, AnyAction.of(shop), scenarios))
    found, _ = numpy(inferred(source, jax.random.split(jax.random.key(2), 16), log))
    place = 5 * found.initial[..., 0] - (log.observation[:, :1] - 3)
    assert ((place >= 0) & (place <= 1)).all()
    fresh, _ = numpy(inferred(Prior(shop), jax.random.split(jax.random.key(2), 16), log))
    np.testing.assert_allclose(place, fresh.initial[..., 0], atol=1e-4)


@pytest.mark.parametrize("make_env", [gym_envs.Drift, gym_envs.Micro])
def test_numbers_that_are_seen_are_solved_for(make_env):
    drift = GymSimulator(make_env, horizon=5, workers=0)
    scenarios = drawn(drift)
    log = numpy(episodes(drift, AnyAction.of(drift), scenarios))
    found, inference = numpy(inferred(Inverted(drift), jax.random.split(jax.random.key(1), 16), log))
    assert (inference.step == -1).all()
    np.testing.assert_allclose(found.initial[:, 0, 0], scenarios.initial[:, 0], atol=1e-6)
    live = log.live
    np.testing.assert_allclose(found.transition[:, 0, :, 0][live], scenarios.transition[:, :, 0][live], atol=1e-4)


@pytest.mark.parametrize("make_env", [gym_envs.Own, gym_envs.Hiding])
def test_generators_elsewhere_are_found(make_env):
    model = GymSimulator(make_env, horizon=DAYS, workers=0)
    assert model.initial_noise.shape == (4,)
    assert model.transition_noise.shape == (5,)


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (
            gym_envs.untaped_python,
            "reward at step 1 was .* It draws from Python's `random`; let it draw from self.np_r",
        ),
        (gym_envs.untaped_numpy, "It draws from NumPy's global generator"),
        (gym_envs.untaped_hidden, "look for a generator that is hidden"),
        (gym_envs.untaped_time, "not deterministic given its tape"),
    ],
)
def test_other_chance_is_found_and_named(make_env, message):
    with pytest.raises(CouldaError, match=message):
        GymSimulator(make_env, horizon=DAYS, workers=0)


def test_bad_input_is_refused_at_the_door():
    with pytest.raises(CouldaError, match="Shop has no limit of steps; give horizon="):
        GymSimulator(gym_envs.Shop)
    with pytest.raises(CouldaError, match=r"cannot import `.*<lambda>`.*workers=0"):
        GymSimulator(lambda: gym_envs.Shop(), horizon=DAYS)
    with pytest.raises(CouldaError, match=r"shape \(2,\), but its space says \(1,\)"):
        GymSimulator(gym_envs.Growing, horizon=DAYS, workers=0)
    with pytest.raises(CouldaError, match=r"makes a dict, not a gymnasium.Env"):
        GymSimulator(dict, horizon=DAYS, workers=0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CouldaError, match=r"Spaceless has no observation_space; let it say what is seen"):
        GymSimulator(gym_envs.Spaceless, horizon=DAYS, workers=0)
    with pytest.raises(
        CouldaError, match=r"(?s)unmade makes no environment. It raised RuntimeError: no license.*in unmade"
    ):
        GymSimulator(gym_envs.unmade, horizon=DAYS, workers=0)
    with pytest.raises(CouldaError, match=r"step of Dated returned 4 things; return observation, reward, terminated"):
        GymSimulator(gym_envs.Dated, horizon=DAYS, workers=0)
    with pytest.raises(
        CouldaError, match=r"(?s)raising failed in a dry run of random actions, in step .*shelf is empty"
    ):
        GymSimulator(gym_envs.raising, horizon=DAYS, workers=0)


def test_an_observation_may_be_a_list():
    model = GymSimulator(gym_envs.Listed, horizon=DAYS, workers=0)
    assert collect(jax.random.key(0), model, AnyAction.of(model), 2).observation.shape == (2 * (DAYS + 1), 1)


def test_a_failure_names_the_scenario_and_is_replayed_alone(tmp_path):
    breaking = GymSimulator(gym_envs.Shop, horizon=DAYS, workers=0)
    program = breaking.pool.program._replace(make_env=gym_envs.raising)
    breaking.pool.program = breaking.pool.here.program = program
    with pytest.raises(SimulatorError, match=r"(?s)raising failed at step . of .*the shelf is empty") as caught:
        collect(jax.random.key(0), breaking, TabularPolicy(np.eye(5)[np.zeros(13, int)]), 16)
    inputs = caught.value.inputs
    assert inputs is not None
    assert len(inputs.action) == inputs.step
    place = str(caught.value).split("replay('")[1].split("'")[0]
    for again in (inputs, place):
        with pytest.raises(SimulatorError, match="the shelf is empty"):
            breaking.replay(again)
    # On an environment that does not fail there, the same inputs are an episode.
    breaking.pool.program = program._replace(make_env=gym_envs.Shop)
    assert breaking.replay(place).observation[-1] == 0


def test_more_draws_than_on_the_tape_is_an_error_that_says_which():
    model = GymSimulator(gym_envs.Shop, horizon=DAYS, workers=0, draws_per_step=1)
    with pytest.raises(SimulatorError, match=r"`poisson` needs 1 after 1 that this step has drawn.*draws_per_step=4"):
        collect(jax.random.key(0), model, AnyAction.of(model), 16)


def test_choosing_says_why(shop):
    assert "inverted" in choose(shop).why
    cards = GymSimulator(partial(gymnasium.make, "Blackjack-v1"), horizon=10, workers=0)
    with pytest.raises(CouldaError, match=r"more than .* outcomes.*tempered"):
        choose(cards)
    with pytest.raises(CouldaError, match="number 1 of a reset of Moody is not seen at once but may be remembered"):
        Inverted(GymSimulator(gym_envs.Moody, horizon=DAYS, workers=0))
    with pytest.raises(CouldaError, match=r"numbers \[2, 3.*\] of a step of Tipped are seen only together"):
        Inverted(GymSimulator(gym_envs.Tipped, horizon=DAYS, workers=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"]
)
def test_environments_of_gymnasium_are_replayed_bit_for_bit(name):
    model = GymSimulator(partial(gymnasium.make, name), horizon=60, workers=0)
    scenarios = drawn(model, 8)
    first, second = (numpy(episodes(model, AnyAction.of(model), scenarios)) for _ in range(2))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_table_takes_a_simulator(shop):
    """MB-PE, CF-PE and the truth agree: 4 standard errors (false failures: 1 in 10,000)."""
    log = collect(jax.random.key(0), shop, AnyAction.of(shop), 200)
    methods = [OnScenarios(shop), OnPolicy(shop, 2000)]
    found = compare(jax.random.key(1), log, {"refill": TabularPolicy(TABLE)}, methods, precision=Precision(scenarios=4))
    rows = found.estimates["refill"]
    truth = rows["on-policy"].value
    for name in ("MB-PE", "CF-PE"):
        error = rows[name].terms.std() / np.sqrt(200)
        assert abs(rows[name].value - truth) < 4 * np.hypot(error, rows["on-policy"].terms.std() / np.sqrt(2000))
        assert rows[name].verdict == "trust", rows[name].reasons


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (gym_envs.raising, "(?s)failed at step . of scenario .*the shelf is empty"),
        (gym_envs.dying, "failed at step . of scenario .*died with exit code 7"),
        (gym_envs.hanging, "failed at step . of scenario .*hung in your environment: no answer in 2 s"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(make_env, message):
    nothing = TabularPolicy(np.eye(5)[np.zeros(13, int)])
    with GymSimulator(gym_envs.Shop, horizon=DAYS, workers=2, time_limit=2.0) as model:
        model.pool.program = model.pool.program._replace(make_env=make_env)
        with pytest.raises(SimulatorError, match=message):
            collect(jax.random.key(0), model, nothing, 16)
        assert model.pool.workers == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (gym_envs.dying, "dying, tried at random: worker 0 died with exit code 7"),
        (gym_envs.hanging, "hanging, tried at random: worker 0 hung in your environment: no answer in 2 s"),
    ],
)
def test_an_environment_that_dies_or_hangs_is_found_before_it_is_used(make_env, message):
    with pytest.raises(SimulatorError, match=message):
        GymSimulator(make_env, horizon=DAYS, workers=2, time_limit=2.0)


@pytest.mark.slow
def test_the_command_line_takes_a_function_that_makes_an_environment(tmp_path, shop):
    write_log(tmp_path / "log", collect(jax.random.key(0), shop, AnyAction.of(shop), 60))
    (tmp_path / "my.py").write_text(
        "import numpy as np\nfrom tests.gym_envs import shop as make_env\nfrom coulda.policies import TabularPolicy\n"
        "policy = TabularPolicy(np.eye(5)[np.full(13, 2)])\n"
    )
    for arguments, told in (
        ("evaluate log --model my.py:make_env --policy my.py:policy --out out", ("inverted", "CF-PE")),
        ("export my.py:policy acting --model my.py:make_env", ("from acting.act import load",)),
    ):
        found = subprocess.run(
            f"{sys.executable} -m coulda {arguments}".split(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "", "COLUMNS": "160"},
        )
        assert found.returncode == 0, found.stderr
        assert all(words in found.stdout for words in told)
