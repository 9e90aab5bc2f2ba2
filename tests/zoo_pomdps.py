"""Small POMDPs on which every law is tested, each with two policies that use their history.

They are cached, so that tests that ask the same question share one compiled program.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from coulda.environments import LinearQuadratic, Sepsis, TabularPOMDP, contextual_bandit, parse_cassandra, tiger
from coulda.noise import Categorical, Normal
from coulda.pomdp import POMDP, ActionMechanism, GumbelMaxChoice, Policy


@dataclass(frozen=True)
class Specimen:
    """A model, the policy that acted in it, and another one."""

    model: POMDP
    behavior: Policy
    target: Policy
    observes_reward: bool = True
    """Whether h_T determines the rewards under any inferred scenario."""


class Remembering(Policy):
    """A policy over numbered observations that depends on all it has seen, done and been paid."""

    weights: jax.Array

    def __init__(self, observations: int, actions: int, seed: int):
        self.weights = jnp.asarray(np.random.default_rng(seed).normal(size=(observations, actions)), jnp.float32)

    def initial_carry(self):
        return jnp.zeros(self.weights.shape[1])

    def __call__(self, carry, observation):
        carry = 0.5 * carry + self.weights[observation]
        return carry, Categorical(logits=carry)

    def remember(self, carry, action, reward):
        return carry + 0.3 * jnp.tanh(reward) * jax.nn.one_hot(action, carry.shape[0])


class Steering(Policy):
    """A Gaussian policy that steers against a running mean of what it sees."""

    gain: float
    actions: int = eqx.field(static=True)
    observations: int = eqx.field(static=True)

    def initial_carry(self):
        return jnp.zeros(self.observations)

    def __call__(self, carry, observation):
        carry = 0.5 * (carry + observation)
        return carry, Normal(jnp.full(self.actions, -self.gain * carry.sum()), jnp.full(self.actions, 0.5))


def numbered(model: Any) -> Specimen:
    sizes = int(model.observation_space.n), int(model.action_space.n)
    return Specimen(model, Remembering(*sizes, seed=1), Remembering(*sizes, seed=2))


def maze(kind: str) -> TabularPOMDP:
    """Random tables over five states of which two are terminal and look like others."""
    rng = np.random.default_rng(3)
    transition = rng.dirichlet(np.full(5, 0.6), size=(3, 5))
    observation = rng.dirichlet(np.full(4, 0.6), size=5)
    observation[3] = observation[4] = observation[0]
    return TabularPOMDP(
        initial=[0.5, 0.3, 0.2, 0, 0],
        transition=transition,
        observation=observation,
        reward=np.round(rng.normal(size=(3, 5, 1)), 1),
        horizon=3,
        reparameterization=kind,
        terminal=[False, False, False, True, True],
    )


def linear(hidden: bool) -> LinearQuadratic:
    seen = {"C": [[1.0, 0.5]], "observation_scale": [[0.3]]} if hidden else {}
    return LinearQuadratic(
        A=[[0.9, 0.2], [-0.1, 0.8]],
        B=[[0.0], [1.0]],
        Q=np.eye(2),
        R=[[0.5]],
        horizon=3,
        initial_mean=[1.0, -1.0],
        initial_scale=[[0.5, 0.0], [0.2, 0.4]],
        transition_scale=[[0.3, 0.0], [0.1, 0.2]],
        **seen,
    )


class Plain(POMDP):
    """One action, nothing paid, observed with Gaussian noise; what follows says the rest."""

    horizon: int = eqx.field(static=True, default=5)
    scale: float = 0.5
    action_mechanism: ActionMechanism = GumbelMaxChoice(1)

    @property
    def observation_space(self):
        return gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)

    @property
    def action_space(self):
        return gymnasium.spaces.Discrete(1)

    @property
    def initial_noise(self):
        return Normal()

    @property
    def transition_noise(self):
        return Normal()

    @property
    def observation_noise(self):
        return Normal(0.0, self.scale)

    def initial(self, u):
        return u

    def transition(self, state, action, u):
        return state + u

    def observe(self, state, u):
        return state + u

    def reward(self, state, action, next_state):
        return jnp.zeros(())


PAID_BY_SOUND = """
states: 2
actions: 2
observations: 3
start: 0.25 0.75
T: 0 identity
T: 1 : 0
0.4 0.6
T: 1 : 1
0.9 0.1
O: *
0.6 0.3 0.1
0.2 0.2 0.6
R: * : * : * : 2 1
R: 1 : 0 : * : * -2
"""


NAMES = (
    "bandit",
    "tiger",
    "maze gumbel_max",
    "maze inverse_cdf",
    "sound",
    "sepsis gumbel_max",
    "sepsis simulator",
    "linear observed",
    "linear hidden",
)
"""Known without making them, which takes a second in every process that collects the tests."""


@cache
def pomdps() -> dict[str, Specimen]:
    alice = ([0.3, 0.7], [[[0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.5, 0.5]]], [0.0, 1.0])
    hidden = linear(hidden=True)
    specimens = [
        numbered(contextual_bandit(*alice, reparameterization="inverse_cdf")),
        numbered(tiger(horizon=3, reparameterization="gumbel_max")),
        numbered(maze("gumbel_max")),
        numbered(maze("inverse_cdf")),
        numbered(parse_cassandra(PAID_BY_SOUND).model(horizon=3, reparameterization="inverse_cdf")),
        numbered(Sepsis(reparameterization="gumbel_max", horizon=3)),
        numbered(Sepsis(reparameterization="simulator", horizon=3)),
        Specimen(linear(hidden=False), Steering(0.4, 1, 2), Steering(-0.2, 1, 2)),
        Specimen(hidden, Steering(0.4, 1, 1), Steering(-0.2, 1, 1), observes_reward=False),
    ]
    return dict(zip(NAMES, specimens, strict=True))
