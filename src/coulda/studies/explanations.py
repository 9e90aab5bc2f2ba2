"""Which decisions mattered: a sepsis death, a pump that broke, a Sokoban level; and what flatters.

The published way to explanations draws 1,000 Gumbel samples for each counterfactual transition and then maximizes over
the table of their frequencies. A maximum over noise is too large on the average: the last part measures by how much,
against the exact tables, in the synthetic world of Tsirtsis et al. (2021).

`python -m coulda.studies.explanations` writes `results/explanations/explanations.json` and its figure.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from coulda.drawing import as_png, new_figure
from coulda.environments import Pump, Sepsis, TabularPOMDP
from coulda.environments.sokoban import Sokoban, SolverPlanner, UniformLevels, generate, tabulate, tiles
from coulda.episodes import EpisodeLog, Schema, checked_log, collect
from coulda.evaluation import OnScenarios, compare
from coulda.explanations import Question, explain, explain_log
from coulda.hindsight import Exact, Prior, choose
from coulda.hindsight.tables import observed_tables
from coulda.noise import Categorical
from coulda.policies import TabularPolicy, UniformPolicy
from coulda.pomdp import Episode, GumbelMaxChoice, Policy, rollout
from coulda.storage import replace_file, replace_json
from coulda.studies.sepsis import (
    ACTIONS,
    DEAD,
    SOFTNESS,
    behavior_planner,
    best_planner,
    in_model_terms,
    learn,
    project,
    projected,
)
from coulda.studies.sepsis_control import FullyObserved

DRAWS = (10, 30, 100, 300, 1000)
"""Samples of each counterfactual transition; the last is the published number."""
SHOWN = (2, 5, 10)
"""Numbers of changes."""


@dataclass(frozen=True)
class ExplanationsStudy:
    """Four explanations, and the flattery of sampled tables."""

    log_size: int = 500
    """Patients in the log of the fully observed world."""
    episodes: int = 8
    """Synthetic episodes whose tables are sampled."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/explanations")
    """Where the numbers and the figure go."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        start, keys = time.time(), jax.random.split(jax.random.key(self.seed), 5)
        flattery = flattered_values(keys[4], self.episodes)
        result = {
            "seed": self.seed,
            "flattery": flattery,
            "sokoban": sokoban_level(keys[3]),
            "pump": pump_failure(keys[2]),
            "sepsis, learned from the log": sepsis_learned(keys[1]),
            "sepsis, everything observed": sepsis_observed(keys[0], self.log_size),
        }
        result["seconds"] = round(time.time() - start, 1)
        self.out.mkdir(parents=True, exist_ok=True)
        replace_json(self.out / "explanations.json", result)
        draw_flattery(flattery, self.out / "flattery.png")
        return result


def sepsis_observed(key: Array, size: int) -> dict[str, Any]:
    """The first death of 3 to 8 steps in a log of the world in which everything is seen, by its true probabilities."""
    world, best = FullyObserved(reparameterization="gumbel_max_vitals"), best_planner()
    policy = lambda planner: TabularPolicy(np.exp(np.asarray(planner.logits)))
    physician = policy(best.noisy(SOFTNESS * ACTIONS / (ACTIONS - 1)))
    key_log, key_table = jax.random.split(key)
    log = collect(key_log, world, physician, size)
    method = OnScenarios(world, Exact(world))
    trust = compare(key_table, log, {"best": policy(best)}, [method]).estimates["best"]["CF-PE"]
    asked = Question(2, target=0.0, afterwards=physician)
    return explain(key, world, log[_death(log)], question=asked, trust=trust).plain()


def sepsis_learned(key: Array) -> dict[str, Any]:
    """A death in the log of the world that hides glucose and diabetes, by the model that was learned from that log."""
    key_log, key_table = jax.random.split(key)
    log = collect(key_log, Sepsis(reparameterization="gumbel_max"), behavior_planner(), 1000)
    learned = learn(log)
    target = TabularPolicy(learned.policy)
    method = OnScenarios(learned.model, Exact(learned.model), estimated_from=projected(log))
    trust = compare(key_table, in_model_terms(log), {"policy": target}, [method]).estimates["policy"]["CF-PE"]
    died = log[_death(log)]
    # The learned model pays for a death with the step after it, which was not logged.
    seen = np.append(project(np.asarray(died.observation)), DEAD).astype(np.int32)
    actions = np.append(died.action, died.action[-1]).astype(np.int32)
    rewards = np.append(np.zeros(len(died.reward)), -1.0).astype(np.float32)
    count = len(actions)
    episode = checked_log(projected(log).schema, seen, actions, rewards, np.array([count]), np.array([True]))[0]
    return explain(key, learned.model, episode, question=Question(2, afterwards=target), trust=trust).plain()


class Seldom(Policy):
    """Services a pump on one day in eight, whatever is heard."""

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:  # noqa: ARG002
        """The same on every day."""
        return carry, Categorical(logits=jnp.log(jnp.array([7.0, 1.0])))


def pump_failure(key: Array) -> dict[str, Any]:
    """The first of 100 pumps that broke after five days or more at a loss; its wear is hidden."""
    model = Pump(horizon=12)
    key_log, key_table, key_search = jax.random.split(key, 3)
    log, chosen = collect(key_log, model, Seldom(), 100), choose(model)
    method = OnScenarios(model, chosen.source)
    trust = list(compare(key_table, log, {"seldom": Seldom()}, [method]).estimates["seldom"].values())[-1]
    broke = int(np.flatnonzero((log.episode_returns < 0) & (log.lengths >= 5))[0])
    asked = Question(2, target=0.0, afterwards=Seldom())
    found = explain(key_search, model, log[broke], chosen.source, asked, trust=trust).plain()
    return found | {"days": int(log.lengths[broke]), "source": chosen.why}


def sokoban_level(key: Array) -> dict[str, Any]:
    """The shortest solution of a level with one wrong move early on, after which the rest was done in vain."""
    levels = generate(key, 1, 7, 7, 1)
    kwargs: dict[str, Any] = {"height": 7, "width": 7, "num_boxes": 1, "horizon": 20, "mask_probability": 0.0}
    model = Sokoban(levels=UniformLevels(levels), action_mechanism=GumbelMaxChoice(tiles.NUM_ACTIONS), **kwargs)
    scenario = model.scenario_prior.sample(key)
    solved = rollout(model, SolverPlanner(tabulate(levels, 1), jnp.int32(0)), scenario).episode
    actions = np.asarray(solved.action).copy()
    actions[2] = (actions[2] + 1) % 4
    spoiled = _played(model, scenario, jnp.asarray(actions))
    walk = UniformPolicy(tiles.NUM_ACTIONS)
    table = compare(key, collect(key, model, walk, 50), {"any": walk}, [OnScenarios(model, Prior(model))])
    trust = list(table.estimates["any"].values())[-1]
    found = explain(key, model, spoiled, Prior(model), Question(3, target=10.0), trust=trust).plain()
    return found | {"solved": float(solved.episode_return)}


def _played(model: Sokoban, scenario: Any, actions: Array) -> Episode:
    """What comes of a sequence of actions on one scenario."""
    state, seen, rewards, live = model.initial(scenario.initial), [], [], []
    for t in range(model.horizon):
        seen.append(np.asarray(state))
        alive = not bool(model.terminal(state))
        moved = model.transition(state, actions[t], ()) if alive else state
        rewards.append(float(model.reward(state, actions[t], moved)) if alive else 0.0)
        live.append(alive)
        state = moved
    observed = np.stack([*seen, np.asarray(state)])
    return Episode(observed, np.asarray(actions), np.array(rewards, np.float32), np.array(live), np.zeros(len(live)))  # pyright: ignore[reportArgumentType]


def flattered_values(key: Array, episodes: int) -> dict[str, Any]:
    """The mean value of the best k changes by exact tables, and by tables of sampled frequencies."""
    model, log = synthetic_world(1, 1.0, episodes)
    exact = explain_log(key, model, log, question=Question(max(SHOWN)), guarantees=False)
    tables = observed_tables(model)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    found: dict[str, Any] = {"exact": [float(exact.answers.value[:, k].mean()) for k in SHOWN]}
    for draws in DRAWS:
        values = [_sampled_value(rng, tables, log[i], draws) for i in range(episodes)]
        found[f"{draws} draws"] = [float(np.mean([value[k] for value in values])) for k in SHOWN]
    return found | {"logged": float(log.episode_returns.mean()), "changes": list(SHOWN)}


def _sampled_value(rng: np.random.Generator, tables: Any, episode: Episode, draws: int) -> np.ndarray:
    """What the dynamic program makes of frequencies in the place of probabilities, `[k + 1]`."""
    transition, pay = np.asarray(tables.probabilities, float), np.asarray(tables.reward, float)[:, :, 0]
    observed, acted = np.asarray(episode.observation), np.asarray(episode.action)
    value = np.zeros((transition.shape[1], max(SHOWN) + 1))
    for t in reversed(range(len(acted))):
        # Of the last step no counterfactual is known in the published episodes.
        last = t == len(acted) - 1
        table = transition if last else _frequencies(rng, transition, acted[t], observed[t], observed[t + 1], draws)
        worth = pay[..., None] + table @ value
        stay, others = worth[acted[t]], np.delete(worth, acted[t], axis=0).max(0)
        value = stay.copy()
        value[:, 1:] = np.maximum(stay[:, 1:], others[:, :-1])
    return value[observed[0]]


def _frequencies(
    rng: np.random.Generator, transition: np.ndarray, action: int, state: int, arrived: int, draws: int
) -> np.ndarray:
    """How often each state and action lead where, on draws of the Gumbels given one logged transition, `[A, S, S]`."""
    size = transition.shape[-1]
    own, top = np.log(transition[action, state]), rng.gumbel(size=(draws, 1))
    noise = -np.logaddexp(-(rng.gumbel(size=(draws, size)) + own), -top)
    noise[:, arrived] = top[:, 0]
    reached = (np.log(transition)[:, :, None] + (noise - own)).argmax(-1)
    return (reached[..., None] == np.arange(size)).mean(2)


def synthetic_world(param_seed: int, alpha: float, episodes: int) -> tuple[TabularPOMDP, EpisodeLog]:
    """A world of Tsirtsis et al. (2021): 20 states that pay their number, 10 actions, and an almost best policy."""
    states, actions, steps = 20, 10, 20
    rng = np.random.default_rng(param_seed)
    transition = np.zeros((actions, states, states))
    for action in range(actions):
        for state in range(states):
            weights = rng.uniform(0, alpha, states)
            weights[rng.choice(states)] = 1
            transition[action, state] = weights / weights.sum()
    pay = np.arange(states, dtype=float)
    reward = np.broadcast_to(pay[None, :, None], transition.shape)
    uniform = np.full(states, 1 / states)
    kwargs: dict[str, Any] = {"horizon": steps, "reparameterization": "gumbel_max"}
    model = TabularPOMDP(uniform, transition, np.eye(states), reward, **kwargs)
    value, best = np.zeros(states), np.zeros((steps, states), int)
    for t in reversed(range(steps)):
        worth = pay + transition @ value
        value, best[t] = worth.max(0), worth.argmax(0)
    seen, acted = zip(*(_episode(transition, best, seed) for seed in range(episodes)), strict=True)
    seen, acted = np.array(seen, np.int32), np.array(acted, np.int32)
    schema = Schema(model.observation_space, model.action_space)
    lengths, ends = np.full(episodes, steps), np.zeros(episodes, bool)
    rewards = pay[seen[:, :-1]].astype(np.float32)
    return model, checked_log(schema, seen.ravel(), acted.ravel(), rewards.ravel(), lengths, ends)


def _episode(transition: np.ndarray, best: np.ndarray, seed: int) -> tuple[list[int], list[int]]:
    rng = np.random.default_rng(seed)
    actions, states, _ = transition.shape
    seen, acted = [int(rng.choice(states))], []
    for t in range(len(best)):
        action = own = int(best[t, seen[-1]])
        if rng.binomial(1, 0.05) == 1:
            while action == own:
                action = int(rng.choice(actions))
        row = transition[action, seen[-1]]
        # The published episodes end before the last transition, which pays nothing: any possible state will do.
        seen.append(int(rng.choice(states, p=row)) if t < len(best) - 1 else int(row.argmax()))
        acted.append(action)
    return seen, acted


def draw_flattery(found: dict[str, Any], path: Path) -> None:
    """How much larger the value of the best changes looks by sampled tables."""
    figure = new_figure(5, 3.4)
    axis = figure.subplots()
    for place, k in enumerate(SHOWN):
        excess = [found[f"{draws} draws"][place] - found["exact"][place] for draws in DRAWS]
        axis.loglog(DRAWS, excess, "o-", label=f"at most {k} changes: {found['exact'][place]:.1f}")
    axis.set(xlabel="draws of each counterfactual transition", ylabel="too much, in units of the return")
    axis.legend(title=f"exact value; the log has {found['logged']:.1f}", fontsize="small")
    replace_file(path, as_png(figure))


def _death(log: EpisodeLog) -> int:
    """The first episode of 3 to 8 steps that ended in death."""
    return int(np.flatnonzero((log.episode_returns < 0) & (log.lengths >= 3) & (log.lengths <= 8))[0])


if __name__ == "__main__":
    print(json.dumps(tyro.cli(ExplanationsStudy).run(), indent=1))  # noqa: T201
