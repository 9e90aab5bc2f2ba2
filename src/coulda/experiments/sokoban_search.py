"""Policy search on PO-Sokoban (section 4.3): CF-GPS against GPS-like search and MB-PS, at a size for two cores.

One scenario model p(U_s1 | h_t) is trained on privileged pairs (level, history) for every t, as in section 3.2. Then
policies are searched with it at t = T (CF-GPS), t = 1 (GPS-like) and t = 0 (MB-PS); nothing else differs. The planner
is the mixture of the policy and the exact solver on each inferred level, where it has an answer. Both weightings of
equation 1 are run: over a scenario's trajectories with the ratio, and over the batch without it.

    python -m coulda.experiments.sokoban_search   # writes results/sokoban_search
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from coulda.environments.sokoban import Sokoban, UniformLevels, generate, tabulate
from coulda.experiments.relatives import mean_interval
from coulda.extras import require
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.learned import Learned, negative_elbo, random_lengths
from coulda.planners.mixture import ExpertMixture, ExpertSchedule
from coulda.planners.solver import SolverPlanners
from coulda.policies import Uniform
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.pomdp import Episode, GumbelMaxAction, Policy, Scenario, batched, rollout
from coulda.search import PolicySearch, Regression

METHODS = {"CF-GPS": None, "GPS-like": 1, "MB-PS": 0}
"""t on which the scenario model is conditioned; all of the episode is None."""
MOST_BOXES = 8
"""In a level that has a table of its own; `tabulate` makes none for more."""
WEIGHTINGS = {"scenario": ("scenario", True), "batch, no ratio": ("batch", False)}


@dataclass(frozen=True)
class Preset:
    """The size of everything."""

    size: int = 7
    boxes: int = 1
    horizon: int = 25
    mask: float = 0.8
    levels: int = 20_000
    scenario_updates: int = 2000
    scenario_batch: int = 32
    updates: int = 400
    evaluate_every: int = 100
    num_episodes: int = 16
    num_resampled: int = 32
    beta: float = 0.5
    time_constant: float = 5000.0
    """Of β, in episodes."""
    learning_rate: float = 2e-3
    evaluation_episodes: int = 1000
    seeds: int = 3


SMOKE = Preset(levels=64, scenario_updates=2, scenario_batch=2, updates=2, evaluate_every=1, num_episodes=2, seeds=1)
DESKTOP = Preset()


def reproduce(folder: Path, preset: Preset) -> None:
    """Train the scenario model, search with all methods, and write `curves.json` and `curves.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment, held_out = (_sokoban(seed, preset) for seed in (0, 1))
    start = time.perf_counter()
    source = Learned(environment, train_scenarios(jax.random.key(2), environment, preset))
    record: dict[str, Any] = {
        "preset": asdict(preset),
        "scenario model, seconds": time.perf_counter() - start,
        "runs": [],
    }
    for seed in range(preset.seeds):
        for weighting in WEIGHTINGS:
            for method in METHODS:
                search = make_search(environment, source, preset, method, weighting)
                run = {
                    "method": method,
                    "weighting": weighting,
                    "seed": seed,
                    **_one_run(search, held_out, preset, seed),
                }
                record["runs"].append(run)
                # Written after each run, so that what was found is kept if it is stopped.
                (folder / "curves.json").write_text(json.dumps(record | {"final": summary(record["runs"])}, indent=1))
    _draw(folder / "curves.svg", record["runs"])


def train_scenarios(key: Array, environment: Sokoban, preset: Preset) -> ConvDRAW:
    """p(u | h_t) for every t, on episodes of the expert mixed with chance."""
    key_network, key_steps = jax.random.split(key)
    network = ConvDRAW(key_network, num_layers=3, channels=16, latents=8)
    schedule = optax.cosine_decay_schedule(2e-3, preset.scenario_updates)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    state = network, optimizer.init(eqx.filter(network, eqx.is_inexact_array))

    @eqx.filter_jit
    def draw(keys: Array) -> Scenario:
        return jax.vmap(environment.scenario_prior.sample)(keys)

    @eqx.filter_jit
    def improve(key: Array, state: Any, scenarios: Scenario, experts: Callable[[Array], Any]) -> Any:
        key_length, key_noise = jax.random.split(key)
        network, optimizer_state = state
        size = preset.scenario_batch
        behavior = lambda number: ExpertMixture(experts(number), Uniform(5), jnp.float32(number % 3) / 2)
        run = lambda number, u: rollout(environment, behavior(number), u).episode
        episodes: Episode = jax.vmap(run)(jnp.arange(size), scenarios)
        noise = jax.vmap(network.noise(preset.size, preset.size).sample)(jax.random.split(key_noise, size))
        lengths = random_lengths(key_length, size, preset.horizon)
        loss = lambda network: negative_elbo(network, scenarios.initial, episodes, lengths, noise)[0]
        gradient = eqx.filter_grad(loss)(network)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        return eqx.apply_updates(network, updates), optimizer_state

    for step in jax.random.split(key_steps, preset.scenario_updates):
        key_draw, key_improve = jax.random.split(step)
        scenarios = draw(jax.random.split(key_draw, preset.scenario_batch))
        state = improve(key_improve, state, scenarios, solvers(scenarios, preset))
    return state[0]


def make_search(
    environment: Sokoban, source: Learned, preset: Preset, method: str, weighting: str, **options: Any
) -> PolicySearch:
    """The search of one method with one weighting."""
    steps, (normalization, ratio) = METHODS[method], WEIGHTINGS[weighting]
    experts = lambda scenarios: solvers(scenarios, preset)
    return PolicySearch(
        environment,
        environment,
        source if steps is None else source.given(steps),
        _adam(preset.learning_rate),
        ExpertSchedule(experts, preset.beta, preset.time_constant),
        Regression(normalization=normalization, ratio=ratio, num_resampled=preset.num_resampled),  # pyright: ignore[reportArgumentType]
        preset.num_episodes,
        **options,
    )


def solvers(scenarios: Scenario, preset: Preset) -> SolverPlanners:
    """The exact solver of each scenario's level; none where there are more boxes than a true level has."""
    floor = (preset.size - 2) ** 2
    most = math.comb(floor, preset.boxes) * floor
    levels = np.asarray(scenarios.initial)
    table = tabulate(levels, preset.boxes, max_states=most)
    # Always the same shapes, so that no batch of levels compiles anew.
    masks = jnp.pad(table.masks[: len(levels) * most], (0, max(0, len(levels) * most - table.masks.size)))
    choose = jnp.pad(table.choose, ((0, 0), (0, MOST_BOXES + 1 - table.choose.shape[1])))
    return SolverPlanners(eqx.tree_at(lambda t: (t.masks, t.choose), table, (masks, choose)))


def solve_rate(key: Array, environment: Sokoban, policy: Policy, num_episodes: int) -> float:
    """The share of the environment's levels that the policy solves."""
    return float(jnp.mean(_solved(environment, policy, jax.random.split(key, num_episodes)).astype(float)))


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Final solve rates by weighting and method, mean and 95% interval over seeds."""
    final: dict[str, dict[str, Any]] = {}
    for weighting in WEIGHTINGS:
        for method in METHODS:
            rates = [r["solve rates"][-1] for r in runs if (r["weighting"], r["method"]) == (weighting, method)]
            if rates:
                final.setdefault(weighting, {})[method] = asdict(mean_interval(np.array(rates)))
    return final


def _one_run(search: PolicySearch, held_out: Sokoban, preset: Preset, seed: int) -> dict[str, Any]:
    state = search.init(ConvLSTMPolicy(jax.random.key(seed), preset.size, preset.size))
    at = list(range(0, preset.updates + 1, preset.evaluate_every))
    rates, dead, start = [], [], time.perf_counter()
    for i, key in enumerate(jax.random.split(jax.random.key(seed), preset.updates + 1)):
        if i in at:
            rates.append(solve_rate(jax.random.key(9), held_out, state.policy, preset.evaluation_episodes))
        state, info = search.step(key, state)
        dead.append(float(info.objective.dead))
    seconds = time.perf_counter() - start
    return {"updates": at, "solve rates": rates, "dead scenarios": float(np.mean(dead)), "seconds": seconds}


def _sokoban(seed: int, preset: Preset) -> Sokoban:
    levels = generate(jax.random.key(seed), preset.levels, preset.size, preset.size, preset.boxes)
    return Sokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxAction(5),
        height=preset.size,
        width=preset.size,
        num_boxes=preset.boxes,
        horizon=preset.horizon,
        mask_probability=preset.mask,
    )


_OPTIMIZERS: dict[float, optax.GradientTransformation] = {}


def _adam(rate: float) -> optax.GradientTransformation:
    """One object a rate, so that methods share their compiled programs."""
    return _OPTIMIZERS.setdefault(rate, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate)))


@eqx.filter_jit
def _solved(environment: Sokoban, policy: Policy, keys: Array) -> Array:
    def one(key: Array) -> Array:
        trajectory = rollout(environment, policy, environment.scenario_prior.sample(key))
        return environment.terminal(trajectory.state[-1])

    return batched(one, keys, chunk_size=512)


def _draw(path: Path, runs: list[dict[str, Any]]) -> None:
    require("matplotlib", extra="plots")
    from matplotlib.figure import Figure

    figure = Figure((9, 3.2), layout="constrained")
    for axes, weighting in zip(figure.subplots(1, 2, sharey=True), WEIGHTINGS, strict=True):
        for method in METHODS:
            mine = [r for r in runs if (r["weighting"], r["method"]) == (weighting, method)]
            found = [mean_interval(column) for column in np.array([r["solve rates"] for r in mine]).T]
            axes.plot(mine[0]["updates"], [f.mean for f in found], label=method)
            axes.fill_between(mine[0]["updates"], [f.low for f in found], [f.high for f in found], alpha=0.2)
        axes.set(xlabel="policy updates", ylabel="levels solved", title=f"weights: {weighting}")
    figure.axes[0].legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    reproduce(Path("results/sokoban_search"), DESKTOP)
