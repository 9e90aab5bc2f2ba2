"""Small reports of three kinds of models: PO-Sokoban, sepsis and a hidden linear-Gaussian state."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.environments.sepsis import Sepsis
from coulda.environments.sokoban import (
    Sokoban,
    SolverPlanners,
    UniformLevels,
    action_table,
    generate,
    solve,
    tiles,
)
from coulda.environments.sokoban.solver import SOLVED
from coulda.episodes import collect
from coulda.evaluation import OnScenarios, compare, model_free
from coulda.explanations import Question, credit_log, explain_log
from coulda.hindsight import Exact, ScenarioSource
from coulda.hindsight.source import fresh, history_length, other_key
from coulda.noise import Normal
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Episode, GumbelMaxChoice, Planner, Policy, Scenario
from coulda.pomdp.rollout import run_actions
from coulda.report import Figure, Report, explore, explore_changes, provenance, summarize, tabulate
from tests.explained_worlds import synthetic
from tests.triage import BEHAVIOR, TARGET, triage

HOSTILE = "</script><script>alert('title')</script> & <img src=x onerror=alert(1)> {{script}} \u2028"
PLOT = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20"><rect width="40" height="20" fill="white"/>'
    '<path d="M2 18L14 9L26 7L38 2" fill="none" stroke="#5b3fd6"/><script>alert(1)</script></svg>'
)


class PoolPosterior(ScenarioSource):
    """Exact hindsight where the level is one of a pool: play the actions on each, and weigh by what was seen."""

    model: Sokoban
    pool: Array
    steps: Array

    def infer(self, key: Array, episode: Episode) -> Scenario:
        scenario = fresh(key, self.model)
        seen = jnp.arange(self.model.horizon + 1) < history_length(episode, self.steps)

        def log_prob(level: Array) -> Array:
            states, _, _ = run_actions(
                self.model, Scenario(level, scenario.transition, scenario.observation, ()), episode.action
            )
            each = jax.vmap(self.model.observation_log_prob)(episode.observation.astype(jnp.uint8), states)
            return jnp.sum(jnp.where(seen, each, 0.0))

        chosen = jax.random.categorical(other_key(key), jax.vmap(log_prob)(self.pool))
        return Scenario(self.pool[chosen], scenario.transition, scenario.observation, scenario.action)


class PoolExpert(Planner):
    """The exact solver on any level of a pool, which it knows again by its first state."""

    pool: Array
    solvers: SolverPlanners

    def initial_carry(self):
        return jnp.int32(-1)

    def __call__(self, carry, state, observation):
        here = jnp.argmax(jnp.all(self.pool == state[None], axis=(1, 2))).astype(jnp.int32)
        level = jnp.where(carry < 0, here, carry)
        return level, self.solvers(level)((), state, observation)[1]


class Gain(Policy):
    """a = -k o, almost without noise."""

    gain: float

    def __call__(self, carry, observation):
        return carry, Normal(-self.gain * observation[:1], jnp.full(1, 0.05))


def sokoban_world(horizon: int = 12) -> Sokoban:
    """A pool of levels of which some differ in one tile only, so that a glance leaves doubt."""
    levels = generate(jax.random.key(0), 4, 7, 7, 1)
    pool = [levels]
    for i, level in enumerate(levels):
        floor = np.argwhere(level == tiles.EMPTY)
        others = np.repeat(level[None], len(floor), axis=0)
        others[np.arange(len(floor)), *floor.T] = tiles.WALL
        pool.append(others[solve(others, 1).status == SOLVED][i :: len(levels)])
    return Sokoban(UniformLevels(np.concatenate(pool)), GumbelMaxChoice(5), 7, 7, 1, horizon, 0.8)


def sokoban_explorer(model: Sokoban, num_episodes: int = 12, steps: int = 1, num_samples: int = 8):
    pool = np.asarray(model.levels.levels)
    source = PoolPosterior(model, jnp.asarray(pool), jnp.int32(steps))
    policies = {
        "expert": PoolExpert(jnp.asarray(pool), SolverPlanners(action_table.tabulate(pool, 1))),
        "chance": UniformPolicy(5),
    }
    log = collect(jax.random.key(1), model, UniformPolicy(5), num_episodes)
    return explore(jax.random.key(2), model, log, policies, source, num_samples=num_samples, threshold=10.0)


def triage_table():
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 1000)
    policies = {"treat when ill": TARGET, "as logged": BEHAVIOR}
    methods = [*model_free(log), OnScenarios(triage(), Exact(triage()))]
    return tabulate(replace(compare(jax.random.key(1), log, policies, methods), truth={"treat when ill": 0.3}))


def sokoban_report(title: str = "Sokoban in hindsight") -> Report:
    table = triage_table()
    figures = (Figure("Error against t", "It falls as more is seen.", PLOT),)
    facts = provenance({"log": 1}, {"world": "7x7"}, {"log": "0" * 64})
    return Report(title, summarize(table), table, sokoban_explorer(sokoban_world()), figures, facts)


def sepsis_report() -> Report:
    model = Sepsis(reparameterization="gumbel_max", horizon=10)
    log = collect(jax.random.key(0), model, UniformPolicy(8), 8)
    policies = {
        "antibiotics": TabularPolicy(np.eye(8)[np.full(720, 4)]),
        "everything": TabularPolicy(np.eye(8)[np.full(720, 7)]),
    }
    return Report(
        "Sepsis", explorer=explore(jax.random.key(1), model, log, policies, Exact(model), num_samples=6, threshold=0.5)
    )


def linear_model() -> LinearQuadratic:
    return LinearQuadratic(
        [[1.0, 0.2], [-0.2, 0.95]], [[0.0], [0.4]], np.eye(2), [[0.1]],
        horizon=15, initial_mean=[1.0, 0.0], initial_scale=0.3 * np.eye(2), transition_scale=0.1 * np.eye(2),
        C=[[1.0, 0.0]], observation_scale=[[0.15]],
    )  # fmt: skip


def linear_report() -> Report:
    model = linear_model()
    log = collect(jax.random.key(0), model, Gain(0.0), 6)
    policies = {"damped": Gain(0.8), "pushed": Gain(-0.4)}
    return Report(
        "A hidden spring", explorer=explore(jax.random.key(1), model, log, policies, Exact(model), num_samples=10)
    )


def explained_report() -> Report:
    """Which of four decisions at most mattered, in five episodes of a published world."""
    model, log = synthetic(1, 1.0, 5)
    found = explain_log(jax.random.key(0), model, log, question=Question(4))
    credited = credit_log(jax.random.key(0), model, log, UniformPolicy(10), Exact(model), scenarios=8)
    explorer = explore_changes(model, log, found, credited)
    return Report("Which decisions mattered", tuple(found.sentences), explorer=explorer)
