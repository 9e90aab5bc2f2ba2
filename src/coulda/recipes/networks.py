"""The two networks of section 3.2 on PO-Sokoban: the policy from the exact solver, and the scenario model p(U | h_t).

Both are trained through `coulda.trainer`, on levels of pools of their own, and both are measured on levels that
neither has seen.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from coulda.environments.sokoban import Sokoban, count_defects, solve
from coulda.environments.sokoban.solver import SOLVED
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import Learned
from coulda.hindsight.source import history_length
from coulda.learners.imitation import Imitation
from coulda.learners.scenario_model import ScenarioTraining
from coulda.planners.solver import SolverPlanners, solver_planners
from coulda.policies import UniformPolicy
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.pomdp import Episode, Policy, Scenario, batched, rollout
from coulda.recipes.sokoban import SokobanWorld, draw_levels, sokoban, sokoban_policy
from coulda.trainer import Trained, TrainerConfig, train
from coulda.trainer.loop import Evaluate


@dataclass(frozen=True)
class PolicyRecipe:
    """How a policy is made from the solver, by DAgger."""

    layers: int = 1
    channels: int = 16
    ticks: int = 1
    units: int = 128
    focus: bool = True
    """Whether the heads look at the agent's cell and at the mean of all, in the place of every cell (paper: no)."""
    updates: int = 3200
    batch: int = 16
    """Episodes an update."""
    learning_rate: float = 1e-2
    """Of Adam, constant for the first half and then falling to 0 along a cosine."""
    cloning_updates: int = 100
    """Over so many updates the solver's share in acting falls from 1 to 0."""
    levels: int = 100_000
    """Different levels to learn from, at most."""


@dataclass(frozen=True)
class ScenarioRecipe:
    """How a scenario model is made from privileged pairs (u, h_t)."""

    num_layers: int = 4
    """K."""
    channels: int = 16
    latents: int = 8
    shared: bool = False
    """Whether the K layers share their weights."""
    updates: int = 1500
    batch: int = 32
    """Pairs an update (paper: 4)."""
    learning_rate: float = 7e-3
    """Of Adam (paper: 3e-4), constant at first and falling to 0 along a cosine over the last 40%."""
    steps: int | None = None
    """t of a model for this t alone, as in the paper; by default one model serves every t."""
    expert: bool = False
    """Also learn from episodes in which the solver acts, as policy search needs."""
    levels: int = 100_000


@dataclass(frozen=True)
class HeldOut:
    """A world with levels that nothing was trained on, of the pool "truth", and how many episodes measure it."""

    environment: Sokoban
    episodes: int = 1000

    @classmethod
    def drawn(cls, seed: int, size: SokobanWorld, episodes: int) -> "HeldOut":
        """With as many levels as episodes."""
        return cls(sokoban(draw_levels(jax.random.key(seed), size, "truth", episodes), size), episodes)

    def solve_rate(self, key: Array, policy: Policy) -> dict[str, Array]:
        """The share of levels that the policy solves, and its mean return."""
        return _solve_rate(self.environment, policy, jax.random.split(key, self.episodes))


Measure = Callable[[HeldOut, Array, Any], dict[str, Array]]
"""(held-out levels, key, state of the training) -> metrics."""


@dataclass(frozen=True)
class Running:
    """Of a run, not of what it makes: where it is kept, and what is shown."""

    folder: Path | None = None
    resume: bool = True
    tensorboard: bool = False
    progress: bool = True
    checkpoint_every: int = 400
    evaluation_levels: int = 1000
    """Held-out levels that measure what is trained at each checkpoint; 0 measures nothing."""

    def train(self, key: Array, training: Any, first: Any, updates: int, settings: Any, evaluate: Any) -> Trained:
        """`coulda.trainer.train` with these options."""
        config = TrainerConfig(updates, checkpoint_every=self.checkpoint_every, log_every=20)
        return train(
            key,
            training.step,
            training.init(first),
            config,
            folder=self.folder,
            settings=settings,
            evaluate=evaluate,
            resume=self.resume and self.folder is not None,
            tensorboard=self.tensorboard,
            progress=self.progress,
        )

    def evaluation(self, seed: int, size: SokobanWorld, measure: Measure) -> Evaluate | None:
        """The trainer's `evaluate`, which measures on levels that nothing is trained on; None if nothing is wanted."""
        if not self.evaluation_levels:
            return None
        held_out = HeldOut.drawn(seed + 1, size, self.evaluation_levels)
        return lambda key, state: measure(held_out, key, state)


def level_key(seed: int) -> Array:
    """From which the levels of all pools are drawn."""
    return jax.random.split(jax.random.key(seed), 3)[0]


def solvers(size: SokobanWorld) -> Any:
    """For a batch of scenarios, the exact solver of each level; it has no answer where a level is not one of ours."""

    def experts(scenarios: Scenario) -> SolverPlanners:
        return solver_planners(scenarios.initial, size.boxes, size.max_states)

    return experts


def policy_of(key: Array, size: SokobanWorld, recipe: PolicyRecipe) -> ConvLSTMPolicy:
    """The policy before it learns."""
    options = {name: getattr(recipe, name) for name in ("focus", "layers", "channels", "ticks", "units")}
    return sokoban_policy(key, size, **options)


def imitation(environment: Sokoban, size: SokobanWorld, recipe: PolicyRecipe) -> Imitation:
    """DAgger from the exact solver."""
    optimizer = falling(recipe.learning_rate, recipe.updates, recipe.updates - recipe.updates // 2)
    return Imitation(environment, solvers(size), optimizer, recipe.batch, recipe.cloning_updates)


def train_policy(
    seed: int, size: SokobanWorld, levels: np.ndarray, recipe: PolicyRecipe, running: Running
) -> tuple[ConvLSTMPolicy, Trained]:
    """DAgger from the exact solver, on `levels [n, size, size]` of the pool "policy"."""
    _, key_network, key_train = jax.random.split(jax.random.key(seed), 3)
    training = imitation(sokoban(levels, size), size, recipe)
    measure = lambda held_out, key, state: held_out.solve_rate(key, state.policy)
    settings = {"seed": seed, "size": asdict(size), "recipe": asdict(recipe)}
    first = policy_of(key_network, size, recipe)
    evaluate = running.evaluation(seed, size, measure)
    trained = running.train(key_train, training, first, recipe.updates, settings, evaluate)
    return trained.state.policy, trained


def first_scenario_model(key: Array, recipe: ScenarioRecipe) -> ConvDRAW:
    """The network before it learns."""
    options = {name: getattr(recipe, name) for name in ("num_layers", "channels", "latents", "shared")}
    return ConvDRAW(key, **options)


def scenario_training(environment: Sokoban, size: SokobanWorld, recipe: ScenarioRecipe) -> ScenarioTraining:
    """The ELBO on episodes of the uniform policy, and of the solver if the recipe says so."""
    optimizer = falling(recipe.learning_rate, recipe.updates, int(0.4 * recipe.updates))
    experts = solvers(size) if recipe.expert else None
    return ScenarioTraining(environment, UniformPolicy(5), optimizer, recipe.batch, recipe.steps, experts)


def train_scenarios(
    seed: int, size: SokobanWorld, levels: np.ndarray, recipe: ScenarioRecipe, running: Running
) -> tuple[ConvDRAW, Trained]:
    """A scenario model, on `levels [n, size, size]` of the pool "scenarios"."""
    _, key_network, key_train = jax.random.split(jax.random.key(seed), 3)
    training = scenario_training(sokoban(levels, size), size, recipe)
    steps = jnp.int32(size.horizon + 1 if recipe.steps is None else recipe.steps)

    def measure(held_out: HeldOut, key: Array, state: Any) -> dict[str, Array]:
        keys = jax.random.split(key, held_out.episodes)
        found = _posteriors(held_out.environment, state.network, steps, keys)
        wrong = jnp.sum(found.drawn != found.level, (1, 2))
        return {"held_out/elbo": jnp.mean(found.elbo), "held_out/exact": jnp.mean((wrong == 0).astype(jnp.float32))}

    settings = {"seed": seed, "size": asdict(size), "recipe": asdict(recipe)}
    first = first_scenario_model(key_network, recipe)
    evaluate = running.evaluation(seed, size, measure)
    trained = running.train(key_train, training, first, recipe.updates, settings, evaluate)
    return trained.state.network, trained


def quality(key: Array, network: ConvDRAW, held_out: HeldOut, steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """What a scenario model draws for each t, on episodes of the uniform policy in levels it has not seen.

    A row a t: the ELBO and its parts in nats, tiles wrong, exact levels, every defect, well-formed, solvable.
    """
    keys = jax.random.split(key, held_out.episodes)
    return [
        _row(t, _posteriors(held_out.environment, network, jnp.int32(t), keys), held_out.environment.num_boxes)
        for t in steps
    ]


@cache
def falling(rate: float, updates: int, last: int) -> optax.GradientTransformation:
    """Adam with clipped gradients, its rate constant and then falling to 0 over the `last` updates.

    One object for the same numbers, so that seeds share their compiled programs.
    """
    schedule = optax.join_schedules(
        [optax.constant_schedule(rate), optax.cosine_decay_schedule(rate, max(last, 1))], [updates - last]
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


class Posterior(eqx.Module):
    """A level, one drawn given its history, and the ELBO's parts."""

    level: Array
    drawn: Array
    elbo: Array
    divergence: Array


@eqx.filter_jit
def _posteriors(environment: Sokoban, network: ConvDRAW, steps: Array, keys: Array) -> Posterior:
    source = Learned(environment, network).given(steps)

    def one(key: Array) -> Posterior:
        key_scenario, key_infer, key_elbo = jax.random.split(key, 3)
        scenario = environment.scenario_prior.sample(key_scenario)
        episode: Episode = rollout(environment, UniformPolicy(5), scenario).episode
        noise = network.noise(*scenario.initial.shape).sample(key_elbo)
        elbo, drawn = network.elbo(scenario.initial, episode, history_length(episode, steps), noise)
        return Posterior(scenario.initial, source.infer(key_infer, episode).initial, elbo, drawn.divergence)

    return batched(one, keys)


def _row(t: int, found: Posterior, num_boxes: int) -> dict[str, Any]:
    drawn, wrong = np.asarray(found.drawn), np.asarray(found.drawn != found.level).sum((1, 2))
    defects = count_defects(drawn, num_boxes)
    well_formed = ~np.any([count > 0 for count in defects.values()], axis=0)
    solvable = solve(drawn[well_formed], num_boxes).status == SOLVED if well_formed.any() else np.zeros(0, bool)
    return {
        "t": t,
        "elbo": float(jnp.mean(found.elbo)),
        "reconstruction": float(jnp.mean(found.elbo + found.divergence)),
        "divergence": float(jnp.mean(found.divergence)),
        "tiles wrong": float(wrong.mean()),
        "exact": float((wrong == 0).mean()),
        "well-formed": float(well_formed.mean()),
        "solvable": float(solvable.sum() / len(drawn)),
        "defects": {name: float((count > 0).mean()) for name, count in defects.items()},
    }


@eqx.filter_jit
def _solve_rate(environment: Sokoban, policy: Policy, keys: Array) -> dict[str, Array]:
    def one(key: Array) -> tuple[Array, Array]:
        trajectory = rollout(environment, policy, environment.scenario_prior.sample(key))
        return environment.solved(trajectory.state[-1]).astype(jnp.float32), trajectory.episode_return

    solved, returns = batched(one, keys)
    return {"held_out/solved": jnp.mean(solved), "held_out/return": jnp.mean(returns)}
