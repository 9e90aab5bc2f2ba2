"""The public checks pass on a good part and catch each way of breaking it, with a message that says what to mend."""

from collections.abc import Callable

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda import SCM, Mechanism, Normal
from coulda.environments import TabularPOMDP, tiger
from coulda.environments.sokoban import Sokoban, UniformLevels, generate
from coulda.hindsight import Exact, Prior, ScenarioSource
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import Learned
from coulda.hindsight.source import ALL_STEPS, fresh
from coulda.mechanisms import Additive
from coulda.noise import Categorical, Uniform
from coulda.pomdp import POMDP, GumbelMaxChoice, Planner, Policy
from coulda.testing import CheckError, check_policy, check_pomdp, check_scenarios, check_scm


class Boat(POMDP):
    """A boat on a windy line, seen roughly."""

    horizon: int = eqx.field(static=True, default=3)
    action_mechanism: GumbelMaxChoice = GumbelMaxChoice(2)  # pyright: ignore[reportIncompatibleVariableOverride]
    observation_space = gymnasium.spaces.Box(-50.0, 50.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    initial_noise = Uniform(-1.0, 1.0)
    transition_noise = Uniform(-1.0, 1.0)
    observation_noise = Uniform(-1.0, 1.0)

    def initial(self, u):
        return {"place": u, "time": jnp.int32(0)}

    def transition(self, state, action, u):
        return {"place": state["place"] + action.astype(float) + u, "time": state["time"] + 1}

    def reward(self, state, action, next_state):
        return -jnp.abs(next_state["place"])

    def observe(self, state, u):
        return state["place"][None] + u

    def observation_log_prob(self, observation, state):
        return Uniform(-1.0, 1.0).log_prob(observation[0] - state["place"])


class Forgetful(Boat):
    def transition(self, state, action, u):
        return {"place": state["place"] + u}


class Rounding(Boat):
    def transition(self, state, action, u):
        return {"place": jnp.round(state["place"]).astype(int), "time": state["time"]}


class TakesAKey(Boat):
    def transition(self, state, action, u):
        gust = jax.random.normal(jax.random.key(3))
        return {"place": state["place"] + gust, "time": state["time"] + 1}


class Moody(Boat):
    def observe(self, state, u):
        return state["place"][None] + float(np.random.default_rng().normal())


class Bottomless(Boat):
    def reward(self, state, action, next_state):
        return jnp.log(next_state["place"])


class WholeRewards(Boat):
    def reward(self, state, action, next_state):
        return jnp.int32(1)


class TwoRewards(Boat):
    def reward(self, state, action, next_state):
        return jnp.zeros(2)


class NumberedEnd(Boat):
    def terminal(self, state):
        return state["time"]


class OverAtOnce(Boat):
    def terminal(self, state):
        return state["time"] >= 0


class OutOfSight(Boat):
    observation_space = gymnasium.spaces.Box(-0.5, 0.5, (1,), np.float32)


class WrongShape(Boat):
    observation_space = gymnasium.spaces.Box(-50.0, 50.0, (2,), np.float32)


class OtherActions(Boat):
    action_mechanism: GumbelMaxChoice = GumbelMaxChoice(4)  # pyright: ignore[reportIncompatibleVariableOverride]
    action_space = gymnasium.spaces.Discrete(4, start=10)


class NoTime(Boat):
    horizon: int = eqx.field(static=True, default=0)


class NotNoise(Boat):
    transition_noise = 0.5


class SureOfItself(Boat):
    def observation_log_prob(self, observation, state):
        return jnp.where(observation[0] == state["place"], 0.0, -jnp.inf)


def test_a_good_model_passes():
    check_pomdp(Boat())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Forgetful, "transition turns a state .*time.* Keep structure"),
        (Rounding, "transition turns a state .*Keep structure, shapes and dtypes"),
        (TakesAKey, "transition draws random numbers itself .* take them from `u`"),
        (Moody, "observe gives different values for the same inputs"),
        (Bottomless, "reward is .*nan.* Rewards must be finite"),
        (WholeRewards, r"reward is int32\[\]; return a float scalar"),
        (TwoRewards, r"reward is float32\[2\]; return a float scalar"),
        (NumberedEnd, r"terminal is int32\[\]; return a boolean scalar"),
        (OverAtOnce, "every episode is over before its first step"),
        (OutOfSight, "observation .* is not in Box.* Correct `observation_space`"),
        (WrongShape, "observation .* is not in Box"),
        (OtherActions, "action .* is not in Discrete.* Correct `action_space`"),
        (NoTime, "horizon is 0; make it an int of at least 1"),
        (NotNoise, "transition_noise is a float; return a NoiseDistribution"),
        (SureOfItself, "observation_log_prob is .*inf.* for an observation that `observe` gave"),
    ],
)
def test_a_broken_model_is_caught(model, message):
    with pytest.raises(CheckError, match=message):
        check_pomdp(model())


def test_something_else_is_not_a_pomdp():
    with pytest.raises(CheckError, match="is not a POMDP"):
        check_pomdp("a boat")  # pyright: ignore[reportArgumentType]


class WrongTable(TabularPOMDP):
    def tables(self):
        transition, reward, terminal = super().tables()
        return transition[:, ::-1], reward, terminal


class WrongPosterior(TabularPOMDP):
    def transition_posterior(self, state, action, next_state, fresh):
        return fresh


class FewerStates(TabularPOMDP):
    def states(self, previous_action, observation):
        return jax.tree.map(lambda leaf: leaf[:1], super().states(previous_action, observation))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WrongTable, "transition_log_prob, the transition table and `transition` disagree"),
        (WrongPosterior, "transition_posterior gives noise that does not replay"),
        (FewerStates, "lacks the true state"),
    ],
)
def test_a_broken_finite_model_is_caught(model, message):
    tables = [0.5, 0.5], [[[0.9, 0.1], [0.3, 0.7]]], [[0.8, 0.2], [0.4, 0.6]], [0.0, 1.0]
    with pytest.raises(CheckError, match=message):
        check_pomdp(model(*tables, horizon=3, reparameterization="gumbel_max"))


class Calm(Policy):
    """A good policy."""

    def initial_carry(self):
        return jnp.zeros(1)

    def __call__(self, carry, observation):
        carry = 0.5 * (carry + observation)
        return carry, Categorical(logits=jnp.concatenate([carry, -carry]))


class Growing(Calm):
    def __call__(self, carry, observation):
        return jnp.concatenate([carry, observation]), Categorical(logits=jnp.zeros(2))


class Counting(Calm):
    def remember(self, carry, action, reward):
        return carry.astype(int)


class Continuous(Calm):
    def __call__(self, carry, observation):
        return carry, Normal(jnp.zeros(2), jnp.ones(2))


class Lost(Calm):
    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.full(2, jnp.nan))


class Dicing(Calm):
    def __call__(self, carry, observation):
        return carry, Categorical(logits=jax.random.normal(jax.random.key(0), (2,)))


class Fickle(Calm):
    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.asarray(np.random.default_rng().normal(size=2), jnp.float32))


class Seer(Planner):
    def __call__(self, carry, state, observation):
        return carry, Categorical(logits=jnp.zeros(2))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Growing, r"__call__ gives a carry float32\[2\]; initial_carry is float32\[1\]"),
        (Counting, "remember gives a carry int32"),
        (Continuous, r"returns a Normal; actions in Discrete\(2\) need a Categorical"),
        (Lost, "probability zero or NaN"),
        (Dicing, "Dicing.__call__ draws random numbers itself"),
        (Fickle, "Fickle.__call__ gives different values for the same inputs"),
        (Seer, "sees the state"),
    ],
)
def test_a_broken_policy_is_caught(policy, message):
    with pytest.raises(CheckError, match=message):
        check_policy(policy(), Boat())


def test_a_good_policy_passes():
    check_policy(Calm(), Boat())


def test_a_leak_of_the_state_is_caught():
    """A model and a policy that whisper: the state is put aside in `observe` and picked up by the policy."""
    aside = []

    class Whispering(Boat):
        def observe(self, state, u):
            aside.append(state["place"])
            return super().observe(state, u)

    class Listening(Calm):
        def __call__(self, carry, observation):
            place = aside[-1] if aside else jnp.float32(0)
            return carry, Categorical(logits=jnp.stack([place, -place]))

    with pytest.raises(CheckError, match="not in the history, such as the hidden state"):
        check_policy(Listening(), Whispering())


def test_a_leak_that_hides_its_traces_is_caught():
    """The same, but nothing is left behind: only the replay of the history alone can tell."""
    aside = []

    class Whispering(Boat):
        def terminal(self, state):
            aside[:] = [state["place"]]
            return super().terminal(state)

    class Listening(Calm):
        def __call__(self, carry, observation):
            whispered = aside.pop() if aside else jnp.float32(0)
            return carry, Categorical(logits=jnp.stack([whispered, -whispered]))

    with pytest.raises(CheckError, match="not in the history, such as the hidden state"):
        check_policy(Listening(), Whispering())


def _scm(mechanism):
    return SCM({"X": Normal(), "Y": Normal()}, {"X": Mechanism((), lambda u: u), "Y": mechanism})


def test_a_good_scm_passes():
    check_scm(_scm(Mechanism(("X",), lambda x, u: x + u)))


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (
            Mechanism(("X",), lambda x, u: x + jax.random.normal(jax.random.key(1))),
            "mechanism 'Y' draws random numbers itself",
        ),
        (
            Mechanism(("X",), lambda x, u: x + float(np.random.default_rng().normal())),
            "mechanism 'Y' gives different values",
        ),
        (Mechanism(("X",), lambda x, u: jnp.log(x)), "'Y' is not finite for some noise"),
        (Additive(("X",), lambda x, u: x + u, lambda x: 2 * x), "posterior of 'Y' gives noise that does not reproduce"),
    ],
)
def test_a_broken_scm_is_caught(mechanism, message):
    with pytest.raises(CheckError, match=message):
        check_scm(_scm(mechanism))


TIGER = tiger(horizon=3, reparameterization="gumbel_max")


class Guess(ScenarioSource):
    """Fresh noise, whatever was seen; broken below in one way each."""

    model: POMDP
    steps: jax.Array

    def __init__(self, model):
        self.model, self.steps = model, jnp.int32(ALL_STEPS)

    def infer(self, key, episode):
        return fresh(key, self.model)


class Unfit(Guess):
    def infer(self, key, episode):
        scenario = fresh(key, self.model)
        return eqx.tree_at(lambda s: s.transition, scenario, scenario.transition[:-1])


class Hindsighted(Guess):
    """Reads the whole episode, whatever t is."""

    def infer(self, key, episode):
        scenario = fresh(key, self.model)
        return eqx.tree_at(lambda s: s.initial, scenario, scenario.initial + episode.observation[-1].astype(float))


class Whimsical(Guess):
    def infer(self, key, episode):
        scenario, mood = fresh(key, self.model), jax.pure_callback(_mood, jax.ShapeDtypeStruct((), np.float32))
        return eqx.tree_at(lambda s: s.initial, scenario, scenario.initial + mood)


def _mood():
    return np.float32(np.random.default_rng().normal())


class Wild(Guess):
    """Noise that no prior draws, on which the boat's reward is not finite."""

    def infer(self, key, episode):
        scenario = fresh(key, self.model)
        return eqx.tree_at(lambda s: s.initial, scenario, scenario.initial * jnp.inf)


class Turned(Guess):
    """Draws that come out otherwise under vmap: as another of the same law, or of another one."""

    turn: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __init__(self, model, turn):
        super().__init__(model)
        self.turn = turn

    def infer(self, key, episode):
        same = jax.custom_batching.custom_vmap(lambda u: u)
        same.def_vmap(lambda size, batched, u: (self.turn(u), True))
        scenario = fresh(key, self.model)
        return eqx.tree_at(lambda s: s.transition, scenario, jax.tree.map(same, scenario.transition))


@pytest.mark.slow
def test_what_a_rounding_may_flip_is_compared_in_law():
    check_scenarios(Turned(TIGER, lambda u: jnp.flip(u, 1)), TIGER)
    with pytest.raises(CheckError, match="another scenario under vmap"):
        check_scenarios(Turned(TIGER, lambda u: u + 1.0), TIGER)


@pytest.mark.parametrize(
    "source",
    [
        Exact(TIGER).given(2),
        Guess(TIGER),
        *(pytest.param(s, marks=pytest.mark.slow) for s in (Exact(TIGER), Prior(TIGER))),
    ],
    ids=["exact, two steps", "guess", "exact", "prior"],
)
def test_good_sources_pass(source):
    check_scenarios(source, TIGER)


@pytest.mark.slow
def test_a_learned_source_passes():
    levels = UniformLevels(generate(jax.random.key(0), 8, 7, 7, 1))
    world = Sokoban(
        levels=levels,
        action_mechanism=GumbelMaxChoice(5),
        height=7,
        width=7,
        num_boxes=1,
        horizon=4,
        mask_probability=0.8,
    )
    check_scenarios(Learned(world, ConvDRAW(jax.random.key(0), num_layers=1, channels=4, latents=2)), world)


@pytest.mark.parametrize(
    ("source", "model", "message"),
    [
        (Unfit(TIGER), TIGER, "scenario_prior gives"),
        (Hindsighted(TIGER), TIGER, r"given\(0\) depends on what comes after"),
        (Whimsical(TIGER), TIGER, "for the same key"),
        (Wild(Boat()), Boat(), "must accept whatever"),
    ],
    ids=["unfit", "hindsighted", "whimsical", "wild"],
)
def test_broken_sources_are_told_how_to_mend(source, model, message):
    with pytest.raises(CheckError, match=message):
        check_scenarios(source, model)
