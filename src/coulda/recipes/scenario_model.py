"""The scenario model p(U | h_t) of PO-Sokoban, from privileged pairs or from a log, and what it draws in new levels."""

from dataclasses import asdict, dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from coulda.environments.sokoban import LevelEvidence, Sokoban, count_defects, solve
from coulda.environments.sokoban.solver import SOLVED
from coulda.episodes import EpisodeLog
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import Learned
from coulda.hindsight.source import history_length
from coulda.learners.scenario_model import LogTraining, ScenarioTraining
from coulda.policies import UniformPolicy
from coulda.pomdp import Episode, batched, rollout
from coulda.recipes.held_out import HeldOut, measured
from coulda.recipes.running import Running, falling
from coulda.recipes.sokoban import SokobanWorld, make_sokoban, solvers, without_levels
from coulda.trainer import Trained


@dataclass(frozen=True)
class ScenarioNetwork:
    """The architecture of a conv-DRAW."""

    num_layers: int = 4
    """Layers of the conv-DRAW, K (paper: 8)."""
    channels: int = 16
    """Channels of each of its conv-LSTMs (paper: 32)."""
    latents: int = 8
    """Latent variables per tile and layer."""
    shared: bool = False
    """Whether the K layers share their weights."""

    def first_model(self, key: Array) -> ConvDRAW:
        """The network before it learns."""
        return ConvDRAW(key, **asdict(self))


@dataclass(frozen=True)
class ScenarioRecipe:
    """How a scenario model is made, from privileged pairs (u, h_t) or from a log."""

    network: ScenarioNetwork = field(default_factory=ScenarioNetwork)
    """The model's architecture."""
    updates: int = 1500
    """Updates of the network in all, those before a resume included."""
    batch: int = 32
    """Pairs per update (paper: 4)."""
    learning_rate: float = 7e-3
    """The learning rate of Adam (paper: 3e-4), constant at first and falling to 0 along a cosine over the last 40%."""
    steps: int | None = None
    """The t of a model for this t alone, as in the paper; by default one model serves every t."""
    expert: bool = False
    """Also learn from episodes in which the solver acts, as policy search needs; a log has whoever acted in it."""
    levels: int = 100_000
    """Different levels to learn from, at most; of a log, its episodes."""

    def training(self, environment: Sokoban, world: SokobanWorld) -> ScenarioTraining:
        """The ELBO on episodes of the uniform policy, and of the solver if the recipe says so."""
        experts = solvers(world) if self.expert else None
        return ScenarioTraining(environment, UniformPolicy(5), self.optimizer, self.batch, self.steps, experts)

    def training_on(self, log: EpisodeLog, environment: Sokoban) -> LogTraining:
        """The ELBO on what the episodes of a log reveal; of the environment only its rules are used."""
        evidence = LevelEvidence(environment.mask_probability, environment.window)
        return LogTraining(log, environment.horizon, evidence, self.optimizer, self.batch, self.steps)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam at the recipe's rate."""
        return falling(self.learning_rate, self.updates, int(0.4 * self.updates))


SCENARIO_RECIPES = {
    "smoke": ScenarioRecipe(ScenarioNetwork(1, 4, 2), updates=3, batch=4, levels=64),
    "quick": ScenarioRecipe(updates=1000, levels=60_000),
    "desktop": ScenarioRecipe(),
    "paper": ScenarioRecipe(ScenarioNetwork(8, 32), updates=1_000_000, batch=4, learning_rate=3e-4, levels=1_000_000),
}
"""Recipes by preset. "paper" has the network, batch and learning rate of the paper's appendices."""


def train_scenarios(
    seed: int, world: SokobanWorld, levels: np.ndarray, recipe: ScenarioRecipe, running: Running
) -> Trained:
    """A scenario model, on `levels [n, side, side]` of the pool "scenarios"; `state.network` is the model."""
    return _train(seed, world, recipe.training(make_sokoban(levels, world), world), recipe, running)


def train_scenarios_on(
    seed: int, world: SokobanWorld, log: EpisodeLog, recipe: ScenarioRecipe, running: Running
) -> Trained:
    """A scenario model from logged episodes of a world alone, whose levels nobody sees."""
    return _train(seed, world, recipe.training_on(log, without_levels(world)), recipe, running)


def _train(
    seed: int, world: SokobanWorld, training: ScenarioTraining | LogTraining, recipe: ScenarioRecipe, running: Running
) -> Trained:
    _, key_network, key_train = jax.random.split(jax.random.key(seed), 3)
    steps = jnp.int32(world.horizon + 1 if recipe.steps is None else recipe.steps)

    def measure(held_out: HeldOut, key: Array, state: Any) -> dict[str, Array]:
        keys = jax.random.split(key, held_out.episodes)
        found = _posteriors(held_out.environment, state.network, steps, keys)
        wrong = jnp.sum(found.drawn != found.level, (1, 2))
        return {"held_out/elbo": jnp.mean(found.elbo), "held_out/exact": jnp.mean((wrong == 0).astype(jnp.float32))}

    settings = {"seed": seed, "world": asdict(world), "recipe": asdict(recipe)}
    first = recipe.network.first_model(key_network)
    evaluate = measured(seed, world, running.evaluation_episodes, measure)
    return running.train(key_train, training, first, recipe.updates, settings, evaluate)


def quality(key: Array, network: ConvDRAW, held_out: HeldOut, steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """What a scenario model draws for each t, on episodes of the uniform policy in levels it has not seen.

    One row per t: the ELBO and its parts in nats, tiles wrong, exact levels, every defect, well-formed, solvable.
    """
    keys = jax.random.split(key, held_out.episodes)
    return [
        _row(t, _posteriors(held_out.environment, network, jnp.int32(t), keys), held_out.environment.num_boxes)
        for t in steps
    ]


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
        elbo, drawn = network.elbo(network.certain(scenario.initial), episode, history_length(episode, steps), noise)
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
