"""Small worlds to search in: an environment, the model we believe in, a policy, hindsight and an expert.

A world of your own is a model and a policy, named to the command line as `package.module:name` or `file.py:name`
(`own_world`); or a function without arguments that returns a `World`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jax import Array

from coulda.environments import LinearQuadratic, Sepsis, TabularPOMDP, contextual_bandit, tiger
from coulda.environments.gym import load_model
from coulda.episodes import read_any
from coulda.errors import CouldaError
from coulda.hindsight import Choice, Exact, Prior, ScenarioSource
from coulda.hindsight.choosing import chosen
from coulda.naming import load
from coulda.planners import finite_horizon, lqr
from coulda.policies import HostPolicy, TabularPolicy, find_policy
from coulda.policies.checks import check_policy_fits
from coulda.policies.trainable import LinearGaussianPolicy, RecurrentPolicy
from coulda.pomdp import POMDP, Policy
from coulda.recipes.sokoban import SOKOBAN_WORLDS
from coulda.search import Logged

Scenarios = Literal["prior", "first-observation", "hindsight", "exact", "observed", "particles", "tempered", "nuts"]
"""Where scenarios come from. The last five are ways of hindsight, to overrule what a world has."""


@dataclass(frozen=True)
class World:
    """What a search needs to be told."""

    environment: POMDP | Logged
    """The real world, or what was logged there."""
    model: POMDP
    """The SCM that we believe in."""
    policy: Callable[[Array], Policy]
    """π^0, from a key."""
    hindsight: ScenarioSource | str = "auto"
    """p(U | h_T) over the model, or the name of a source; `choose`n for the model by default."""
    expert: Any = None
    """A policy or planner λ_e, where one is known."""

    @property
    def simulator(self) -> POMDP:
        """The environment, to act in."""
        if isinstance(self.environment, Logged):
            raise CouldaError("this world is a log, in which nobody can act; give an environment.")
        return self.environment

    @cached_property
    def choice(self) -> Choice:
        """The source of hindsight, and why it is that one."""
        return chosen(self.model, self.hindsight)

    def source(self, scenarios: str) -> ScenarioSource:
        """Where the scenarios come from: "prior" (MB-PS), "first-observation" (GPS-like) or "hindsight" (CF-GPS).

        A source's own name ("particles", …), or what else `chosen` knows, is CF-GPS with that one.
        """
        if scenarios == "prior":
            return Prior(self.model)
        if scenarios == "first-observation":
            return self.choice.source.given(1)
        if scenarios == "hindsight":
            return self.choice.source
        if scenarios not in get_args(Scenarios) and ":" not in scenarios and not Path(scenarios).is_dir():
            names = ", ".join(map(repr, get_args(Scenarios)))
            raise CouldaError(f"scenarios is {scenarios!r}; name one of {names}, or the folder of a trained source.")
        return chosen(self.model, scenarios).source


def bandit() -> World:
    """Two contexts, two actions, and a chance of success that depends on both. The best policy earns 0.75."""
    outcome = np.array([[[0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.3, 0.7]]])
    model = contextual_bandit([0.5, 0.5], outcome, [0.0, 1.0], reparameterization="gumbel_max")
    policy = TabularPolicy(np.full((4, 2), 0.5))
    return World(model, model, lambda _: policy, Exact(model), finite_horizon(model).planner)


def hidden_bit() -> World:
    """Guess a bit that is revealed after the guess: 1 in 90% of the environment's episodes and 10% of the model's."""
    environment, model = (hidden_bit_model(probability) for probability in (0.9, 0.1))
    policy = TabularPolicy(np.full((3, 2), 0.5))
    return World(environment, model, lambda _: policy, Exact(model))


def tiger_world() -> World:
    """Listen, and open the door without the tiger; the policy remembers."""
    model = tiger(horizon=4, reparameterization="gumbel_max")
    spaces: Any = model.observation_space, model.action_space
    return World(model, model, lambda key: RecurrentPolicy(key, *spaces), Exact(model), finite_horizon(model).planner)


def sepsis() -> World:
    """Treat patients of whom 20% are diabetic; the model believes that 80% are. The expert sees who is."""
    environment, model = (Sepsis(reparameterization="gumbel_max", diabetes=p) for p in (0.2, 0.8))
    policy = TabularPolicy(np.full((720, 8), 1 / 8))
    return World(environment, model, lambda _: policy, Exact(model), finite_horizon(environment).planner)


def linear() -> World:
    """Bring a noisy linear system to zero. It begins at about 1; the model believes that it begins at about 0."""
    environment, model = (
        LinearQuadratic(
            A=[[1.0, 0.1], [0.0, 1.0]],
            B=[[0.0], [0.1]],
            Q=np.diag([1.0, 0.1]),
            R=[[0.01]],
            horizon=20,
            initial_mean=mean,
            initial_scale=0.3 * np.eye(2),
            transition_scale=0.05 * np.eye(2),
        )
        for mean in ([1.0, 0.0], [0.0, 0.0])
    )
    gains = lqr(model.A, model.B, model.Q, model.R, scale=1.0)
    return World(environment, model, lambda _: LinearGaussianPolicy.zero(2, 1), Exact(model), gains.planner)


WORLDS: dict[str, Callable[[], World]] = {
    "bandit": bandit,
    "hidden-bit": hidden_bit,
    "tiger": tiger_world,
    "sepsis": sepsis,
    "linear": linear,
}
"""Worlds by name. Those of PO-Sokoban are in `coulda.recipes.sokoban`."""


@cache
def find_world(name: str) -> World:
    """A world by its name, or the one of your own called `package.module:function` or `file.py:function`.

    It is made once: planning an expert may take seconds.
    """
    if name in WORLDS:
        return WORLDS[name]()
    if name in SOKOBAN_WORLDS:
        raise CouldaError(
            f"'{name}' is PO-Sokoban, whose hindsight is learned first; `coulda reproduce search --world {name}` does "
            f"both. The worlds here are {', '.join(WORLDS)}, or file.py:function."
        )
    if ":" not in name:
        known = ", ".join([*WORLDS, *SOKOBAN_WORLDS])
        raise CouldaError(f"there is no world '{name}'; the worlds are {known}, or your own, file.py:function.")
    return load(name, World)


@cache
def own_world(model: str, policy: str, environment: str | None = None, log: str | None = None) -> World:
    """The world of a model and a policy of your own, by their names; its hindsight is `choose`n.

    Args:
        model: a POMDP, `package.module:name` or `file.py:name`, or a function that makes it; or the folder of a
            fitted one, which has a hindsight of its own.
        policy: π^0, likewise.
        environment: the real world, likewise; the model itself by default.
        log: the path of a log, in any format, from which episodes are drawn instead.
    """
    if environment is not None and log is not None:
        raise CouldaError(f"episodes come from environment '{environment}' or from log '{log}'; name one of them.")
    from coulda.fitting.storing import found_at

    fitted = found_at(model)
    believed = load_model(model) if fitted is None else fitted.model
    hindsight = "auto" if fitted is None else fitted.source
    first = find_policy(policy, believed.action_space)
    if isinstance(first, HostPolicy):
        raise CouldaError(
            f"{first.host.name} runs outside of JAX, so that its parameters cannot be searched. Begin with a policy "
            "such as coulda.policies.FeedforwardPolicy; `coulda evaluate` takes both."
        )
    check_policy_fits(first, believed)
    if log is not None:
        return World(Logged.of(read_any(Path(log)), believed), believed, lambda _: first, hindsight)
    real = believed if environment is None else load_model(environment)
    check_policy_fits(first, real)
    return World(real, believed, lambda _: first, hindsight)


def hidden_bit_model(probability: float) -> TabularPOMDP:
    """One step: 1 is paid for guessing a bit that is 1 with this probability, and that is seen afterwards."""
    transition = np.zeros((2, 4, 4))
    transition[:, range(4), [2, 3, 2, 3]] = 1
    reward = np.zeros((2, 4, 1))
    reward[0, 0] = reward[1, 1] = 1
    return TabularPOMDP(
        [1 - probability, probability, 0, 0],
        transition,
        observation=np.eye(3)[[0, 0, 1, 2]],
        reward=reward,
        horizon=1,
        reparameterization="gumbel_max",
        terminal=[False, False, True, True],
    )
