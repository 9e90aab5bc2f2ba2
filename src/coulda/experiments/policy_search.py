"""Figure 3, right: policy search on PO-Sokoban (section 4.3), CF-GPS against GPS-like search, MB-PS and IMPALA.

One scenario model p(U_s1 | h_t) serves all: policies are searched with it at t = T (CF-GPS), t = 1 (GPS-like) and t = 0
(MB-PS), and nothing else differs. The planner is a mixture of the policy and an expert in each inferred level. Both
weightings of equation 1 are run: over a scenario's trajectories with the ratio, and over the batch without it.
IMPALA learns from as many episodes of the same environment, without a model.
"""

import shutil
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import optax
from jax import Array
from rich.console import Console

from coulda.drawing import as_svg, new_figure
from coulda.environments.sokoban import Sokoban
from coulda.evaluation.intervals import mean_interval
from coulda.executors import InProcess
from coulda.experiments.pipeline import Ingredients, Pipeline
from coulda.hindsight import ScenarioSource
from coulda.hindsight.conv_draw import load_scenario_model
from coulda.hindsight.learned import Learned
from coulda.learners import Impala, episodes_of
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import ExpertSchedule
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.recipes.impala import ImpalaRecipe
from coulda.recipes.networks import HeldOut, ScenarioRecipe, solvers
from coulda.recipes.sokoban import sokoban_policy
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.stages import Stages, read_result, work_folder, write_result
from coulda.storage import replace_file, replace_json
from coulda.trainer import TrainerConfig, train
from coulda.trainer.logs import LOG, read_log

METHODS = {"CF-GPS": None, "GPS-like": 1, "MB-PS": 0}
"""t on which the scenario model is conditioned; all of the episode is None."""
WEIGHTINGS = {"scenario": ("scenario", True), "batch, no ratio": ("batch", False)}
"""Normalization of the weights, and whether they have the ratio."""


@dataclass(frozen=True)
class Setting:
    """One curve: a method with one weighting and one planner."""

    method: str
    weighting: str = "scenario"
    expert: str = "solver"
    """In the planner's mixture: solver, policy (a trained one, as in the paper) or mcts."""

    def __str__(self) -> str:
        extras = [part for part, usual in ((self.weighting, "scenario"), (self.expert, "solver")) if part != usual]
        return ", ".join([self.method, *extras])


def every_method(*weightings: str) -> tuple[Setting, ...]:
    """The curves of the figure: every method with these weightings, and IMPALA, which has none."""
    return (*(Setting(method, weighting) for weighting in weightings for method in METHODS), Setting("IMPALA"))


PLANNERS = tuple(Setting("CF-GPS", expert=expert) for expert in ("solver", "policy", "mcts"))
"""CF-GPS with one expert after the other."""


@dataclass(frozen=True)
class SearchPreset:
    """Sizes of the whole experiment."""

    ingredients: Ingredients = field(default_factory=lambda: Ingredients(scenarios=ScenarioRecipe(expert=True)))
    settings: tuple[Setting, ...] = every_method(*WEIGHTINGS)
    name: str = "search"
    """Of the files that it writes."""
    seeds: int = 3
    updates: int = 700
    evaluate_every: int = 100
    evaluation_levels: int = 1000
    num_episodes: int = 16
    """Logged an update; a scenario is inferred from each."""
    num_rollouts: int = 10
    """Of the planner in each scenario."""
    num_resampled: int = 32
    """Of all trajectories of an update, by weight; the gradient is taken on them."""
    beta: float = 0.5
    """The expert's share in the planner at first."""
    time_constant: float = 5000.0
    """Of its decay, in episodes (paper: 10^5)."""
    learning_rate: float = 5e-3
    layers: int = 1
    channels: int = 16
    focus: bool = True
    """As in `PolicyRecipe`."""


def reproduce(
    folder: Path, preset: SearchPreset, progress: bool = True, console: Console | None = None
) -> dict[str, Any]:
    """All stages; JSON and figure, named as the preset, are written after each curve from what is there by then."""
    with Stages(folder / "stages", console or Console(stderr=True)) as stages:
        return _reproduce(folder, preset, Pipeline(stages, preset.ingredients, progress))


def _reproduce(folder: Path, preset: SearchPreset, pipeline: Pipeline) -> dict[str, Any]:
    pipeline.check_levels()
    runs: list[dict[str, Any]] = []
    for seed in range(preset.seeds):
        for setting in preset.settings:
            runs.append(one_run(pipeline, preset, setting, seed))
            write_summary(folder, preset, runs, pipeline.stages.seconds())
    return {"final": summarize(runs), "runs": runs}


def write_summary(folder: Path, preset: SearchPreset, runs: list[dict[str, Any]], seconds: dict[str, float]) -> None:
    """JSON and the figure."""
    summary = {"preset": asdict(preset), "final": summarize(runs), "runs": runs, "seconds": seconds}
    replace_json(folder / f"{preset.name}.json", summary)
    replace_file(folder / f"{preset.name}.svg", draw(runs).encode())


def one_run(pipeline: Pipeline, preset: SearchPreset, setting: Setting, seed: int) -> dict[str, Any]:
    """The curve of one seed: a stage."""
    inputs = {"levels": pipeline.levels("policy"), "truth": pipeline.levels("truth")}
    settings: dict[str, Any] = {}
    if setting.method == "IMPALA":
        settings["loss"] = asdict(ImpalaRecipe().loss)
    else:
        inputs["model"], _ = pipeline.scenario_model()
    if setting.expert == "policy":
        inputs["expert"], _ = pipeline.policy()
    settings |= {k: v for k, v in asdict(preset).items() if k not in ("beginnings", "settings", "seeds", "name")}
    settings |= {"setting": asdict(setting), "seed": seed}

    def make(path: Path) -> None:
        environment = pipeline.environment("policy")
        work = work_folder(path)
        if setting.method == "IMPALA":
            training = impala(environment, preset, seed)
        else:
            steps, source = METHODS[setting.method], Learned(environment, load_scenario_model(inputs["model"]))
            source = source if steps is None else source.given(steps)
            training = make_search(pipeline, environment, source, preset, setting)
        learn(training, pipeline.environment("truth"), preset, seed, work, pipeline.progress)
        write_result(path, settings, {"curve.json": msgspec.json.encode(curve(work, preset))})
        shutil.rmtree(work)

    slug = str(setting).replace(", ", "-").replace(" ", "-")
    path = pipeline.stages.make(f"search-{slug}-{seed}", settings, inputs, make)
    found = msgspec.json.decode(read_result(path)["curve.json"])
    return {"setting": asdict(setting), "seed": seed, **found}


def make_search(
    pipeline: Pipeline, environment: Sokoban, source: ScenarioSource, preset: SearchPreset, setting: Setting
) -> PolicySearch:
    """The search of one setting."""
    normalization, ratio = WEIGHTINGS[setting.weighting]
    if setting.expert == "solver":
        expert: Any = solvers(preset.ingredients.size)
    else:
        expert = MCTS(environment, num_simulations=32) if setting.expert == "mcts" else pipeline.policy()[1]
    return PolicySearch(
        environment,
        environment,
        source,
        adam(preset.learning_rate),
        ExpertSchedule(expert, preset.beta, preset.time_constant),
        ReturnWeightedRegression(preset.num_rollouts, 1.0, normalization, ratio, preset.num_resampled),  # pyright: ignore[reportArgumentType]
        preset.num_episodes,
    )


def impala(environment: Sokoban, preset: SearchPreset, seed: int) -> Impala:
    """The model-free way, on as many episodes an update."""
    work = episodes_of(environment, first_policy(preset, seed), batch=preset.num_episodes, seed=seed)
    return Impala(InProcess(work), adam(preset.learning_rate), ImpalaRecipe().loss)


def first_policy(preset: SearchPreset, seed: int) -> ConvLSTMPolicy:
    """π^0."""
    options = {name: getattr(preset, name) for name in ("focus", "layers", "channels")}
    return sokoban_policy(jax.random.key(seed), preset.ingredients.size, **options)


def learn(training: Any, truth: Sokoban, preset: SearchPreset, seed: int, folder: Path, progress: bool) -> None:
    """Search, with the true solve rate along the way."""
    held_out = HeldOut(truth, preset.evaluation_levels)

    def evaluate(key: Array, state: Any) -> dict[str, Array]:  # noqa: ARG001
        # The same levels and noise each time: what changes is the policy.
        return held_out.solve_rate(jax.random.key(9), state.policy)

    trained = train(
        jax.random.key(seed),
        training.step,
        training.init(first_policy(preset, seed)),
        TrainerConfig(preset.updates, log_every=20, checkpoint_every=preset.evaluate_every),
        folder=folder,
        evaluate=evaluate,
        resume=True,
        progress=progress,
    )
    if trained.status == "interrupted":
        raise KeyboardInterrupt


def curve(folder: Path, preset: SearchPreset) -> dict[str, Any]:
    """From the log of a run: true solve rate and return against updates and episodes, and how fast it went."""
    log = read_log(folder / LOG)
    found = [line for line in log if "held_out/solved" in line]
    rates = [line["steps_per_second"] for line in log if "steps_per_second" in line]
    dead = [line["objective/dead"] for line in log if "objective/dead" in line]
    return {
        "updates": [line["step"] for line in found],
        "episodes": [line["step"] * preset.num_episodes for line in found],
        "solved": [line["held_out/solved"] for line in found],
        "return": [line["held_out/return"] for line in found],
        "updates per second": float(np.median(rates)),
        "dead scenarios": float(np.mean(dead)) if dead else None,
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Solve rate and return after the last update of each setting: every seed's, their mean and its 95% interval."""
    return {
        name: {"seeds": len(mine)} | {measure: _last(mine, measure) for measure in ("solved", "return")}
        for name, mine in _by_setting(runs).items()
    }


def _last(runs: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    values = np.array([run[measure][-1] for run in runs])
    # One seed has no interval.
    interval = asdict(mean_interval(values)) if len(values) > 1 else {"mean": float(values[0])}
    return {"seeds": values.tolist()} | interval


def draw(runs: list[dict[str, Any]]) -> str:
    """Solve rate and return against updates and episodes, a column a weighting, as SVG; bands are 95% over seeds."""
    used = {run["setting"]["weighting"] for run in runs if not _model_free(run)}
    weightings = [weighting for weighting in WEIGHTINGS if weighting in used]
    figure = new_figure(4.6 * len(weightings), 6.0)
    grid = figure.subplots(2, len(weightings), sharex=True, sharey="row", squeeze=False)
    per_update = runs[0]["episodes"][0] / runs[0]["updates"][0]
    for column, weighting in zip(grid.T, weightings, strict=True):
        drawn = lambda run, weighting=weighting: run["setting"]["weighting"] == weighting or _model_free(run)
        for axes, measure in zip(column, ("solved", "return"), strict=True):
            for name, mine in _by_setting([run for run in runs if drawn(run)]).items():
                _draw_curve(axes, name.removesuffix(f", {weighting}"), mine, measure)
            axes.set_ylim(0, None)
        top = column[0].secondary_xaxis(
            "top", functions=(lambda x: x * per_update, lambda episodes: episodes / per_update)
        )
        top.set_xlabel(f"episodes of the environment (weights: {weighting})")
        column[1].set_xlabel("policy updates")
    grid[0, 0].set_ylabel("held-out levels solved")
    grid[1, 0].set_ylabel("return in held-out levels")
    grid[0, 0].legend(fontsize=8)
    return as_svg(figure)


def _draw_curve(axes: Any, name: str, runs: list[dict[str, Any]], measure: str) -> None:
    """The mean over seeds, as far as all have come, and its 95% interval."""
    shortest = min(len(run[measure]) for run in runs)
    values, x = np.array([run[measure][:shortest] for run in runs]), runs[0]["updates"][:shortest]
    axes.plot(x, values.mean(0), label=name)
    if len(runs) > 1:
        bands = [mean_interval(column) for column in values.T]
        axes.fill_between(x, [b.low for b in bands], [b.high for b in bands], alpha=0.2)


def _model_free(run: dict[str, Any]) -> bool:
    return run["setting"]["method"] == "IMPALA"


def _by_setting(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        grouped.setdefault(str(Setting(**run["setting"])), []).append(run)
    return grouped


@cache
def adam(rate: float) -> optax.GradientTransformation:
    """One object a rate, so that methods share their compiled programs."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
