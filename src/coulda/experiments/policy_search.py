"""Figure 2, right: policy search on PO-Sokoban (section 4.3), CF-GPS against GPS-like search, MB-PS and IMPALA.

One scenario model p(U_s1 | h_t) serves all: policies are searched with it at t = T (CF-GPS), t = 1 (GPS-like) and t = 0
(MB-PS), and nothing else differs. The planner is a mixture of the policy and an expert in each inferred level. Both
weightings of equation 1 are run: over a scenario's trajectories with the ratio, and over the batch without it.
IMPALA learns from as many episodes of the same environment, without a model.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import optax
from rich.console import Console

from coulda.drawing import as_svg, new_figure
from coulda.environments.sokoban import Sokoban
from coulda.errors import CouldaError
from coulda.evaluation.intervals import mean_interval
from coulda.executors import InProcess
from coulda.experiments.pipeline import Ingredients, Pipeline
from coulda.hindsight import ScenarioSource
from coulda.hindsight.learned import Learned
from coulda.learners import Impala, episodes_of
from coulda.planners.mcts import MCTS
from coulda.planners.mixture import ExpertSchedule
from coulda.policies.grids import GridPolicy
from coulda.recipes.held_out import HeldOut
from coulda.recipes.impala import ImpalaRecipe
from coulda.recipes.running import falling
from coulda.recipes.scenario_model import ScenarioRecipe
from coulda.recipes.sokoban import PolicyNetwork, solvers
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.search.objective import Normalization
from coulda.stages import Stages, read_result, work_folder, write_result
from coulda.storage import replace_file, replace_json
from coulda.trainer import TrainerConfig, train
from coulda.trainer.logs import LOG, read_log

METHODS = {"CF-GPS": None, "GPS-like": 1, "MB-PS": 0}
"""t on which the scenario model is conditioned; all of the episode is None."""
WEIGHTINGS: dict[str, tuple[Normalization, bool]] = {
    "scenario": ("scenario", True),
    "batch, no ratio": ("batch", False),
}
"""Normalization of the weights, and whether they have the ratio."""


@dataclass(frozen=True)
class Setting:
    """One curve: a method with one weighting and one planner."""

    method: str
    weighting: str = "scenario"
    expert: str = "solver"
    """The expert in the planner's mixture: solver, policy (a trained one, as in the paper) or mcts."""

    def __str__(self) -> str:
        extras = [part for part, usual in ((self.weighting, "scenario"), (self.expert, "solver")) if part != usual]
        return ", ".join([self.method, *extras])

    @property
    def slug(self) -> str:
        """Its name in the name of a stage."""
        return str(self).replace(", ", "-").replace(" ", "-")


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
    """The curves."""
    name: str = "search"
    """The name of the files that it writes."""
    seeds: int = 3
    """Runs of each setting."""
    updates: int = 700
    """Policy updates per run."""
    evaluate_every: int = 100
    """Updates between evaluations, and checkpoints."""
    evaluation_levels: int = 1000
    """Held-out levels per evaluation."""
    num_episodes: int = 16
    """Logged episodes per update; a scenario is inferred from each."""
    num_rollouts: int = 10
    """Trajectories of the planner in each scenario."""
    num_resampled: int = 32
    """How many of all trajectories of an update are drawn, by weight; the gradient is taken on them."""
    temperature: float = 1.0
    """The temperature of the returns in the weights."""
    steps: int = 1
    """Steps of Adam an update on the same trajectories, of all but IMPALA."""
    beta: float = 0.5
    """The expert's share in the planner at first."""
    time_constant: float = 5000.0
    """The time constant of beta's decay, in episodes (paper: 10^5)."""
    learning_rate: float = 5e-3
    """The learning rate of Adam."""
    impala_learning_rate: float | None = None
    """IMPALA's own, where it is another."""
    falling: float = 0.0
    """The share of the updates, at the end, over which all learning rates fall to 0 along a cosine."""
    network: PolicyNetwork = field(default_factory=PolicyNetwork)
    """The policy's architecture."""

    def first_policy(self, seed: int) -> GridPolicy:
        """π^0."""
        return self.network.first_policy(jax.random.key(seed), self.ingredients.sokoban)

    def optimizer(self, rate: float, steps: int = 1) -> optax.GradientTransformation:
        """Adam that takes so many steps an update."""
        return falling(rate, self.updates * steps, int(self.falling * self.updates) * steps)


def reproduce(
    folder: Path, preset: SearchPreset, progress: bool = True, console: Console | None = None
) -> dict[str, Any]:
    """All stages; JSON and figure, named as the preset, are written after each curve from what is there by then."""
    with Stages(folder / "stages", console or Console(stderr=True)) as stages:
        return _reproduce(folder, preset, Pipeline(stages, preset.ingredients, progress))


def _reproduce(folder: Path, preset: SearchPreset, pipeline: Pipeline) -> dict[str, Any]:
    """Curve after curve, seed after seed; what an earlier day left of whole seeds is taken as it is."""
    curves = [(seed, setting) for seed in range(preset.seeds) for setting in preset.settings]
    known = {curve: kept(folder, preset, *curve) for curve in curves}
    if None in known.values():
        pipeline.check_levels()
    runs: list[dict[str, Any]] = []
    for seed, setting in curves:
        runs.append(known[seed, setting] or _make_run(pipeline, preset, setting, seed))
        write_summary(folder, preset, runs, pipeline.stages.seconds())
        if setting == preset.settings[-1]:
            mine = [run for run in runs if run["seed"] == seed]
            replace_json(seed_file(folder, preset, seed), {"preset": _recipe(preset), "runs": mine})
    return {"final": summarize(runs), "runs": runs}


def _make_run(pipeline: Pipeline, preset: SearchPreset, setting: Setting, seed: int) -> dict[str, Any]:
    settings, inputs = depends_on(pipeline, preset, setting, seed)
    make = partial(one_run, pipeline, preset, setting, seed, settings)
    path = pipeline.stages.make(f"search-{setting.slug}-{seed}", settings, inputs, make)
    found = msgspec.json.decode(read_result(path)["curve.json"])
    return {"setting": asdict(setting), "seed": seed, **found}


def seed_file(folder: Path, preset: SearchPreset, seed: int) -> Path:
    """Where the curves of a whole seed are kept, so that others can be added on another day and another machine."""
    return folder / f"{preset.name}-seed-{seed}.json"


def kept(folder: Path, preset: SearchPreset, seed: int, setting: Setting) -> dict[str, Any] | None:
    """The run of a seed that was whole already, if it was made by the same recipe."""
    path = seed_file(folder, preset, seed)
    if not path.exists():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Seed)
    except msgspec.DecodeError as error:
        raise CouldaError(
            f"{path}: expected the curves of a seed ({error}); remove it, and it is made again"
        ) from error
    if found.preset != _recipe(preset):
        return None
    return next((run for run in found.runs if run["setting"] == asdict(setting)), None)


class _Seed(msgspec.Struct):
    preset: dict[str, Any]
    runs: list[dict[str, Any]]


def _recipe(preset: SearchPreset) -> dict[str, Any]:
    """What curves depend on, as JSON has it: not which of them are drawn, nor how many seeds there are."""
    everything = msgspec.json.decode(msgspec.json.encode(asdict(preset)))
    return {name: value for name, value in everything.items() if name not in ("settings", "seeds", "name")}


def write_summary(folder: Path, preset: SearchPreset, runs: list[dict[str, Any]], seconds: dict[str, float]) -> None:
    """JSON and the figure."""
    summary = {"preset": asdict(preset), "final": summarize(runs), "runs": runs, "seconds": seconds}
    replace_json(folder / f"{preset.name}.json", summary)
    replace_file(folder / f"{preset.name}.svg", draw(runs).encode())


def depends_on(
    pipeline: Pipeline, preset: SearchPreset, setting: Setting, seed: int
) -> tuple[dict[str, Any], dict[str, Path]]:
    """All that a run depends on: its settings, and the artifacts that it reads."""
    inputs = {"levels": pipeline.levels("policy"), "truth": pipeline.levels("truth")}
    settings = {k: v for k, v in asdict(preset).items() if k not in ("ingredients", "settings", "seeds", "name")}
    settings |= {"setting": asdict(setting), "seed": seed}
    if setting.method == "IMPALA":
        settings["loss"] = asdict(ImpalaRecipe().loss)
    else:
        del settings["impala_learning_rate"]
        inputs["model"], _ = pipeline.scenario_model()
    if setting.expert == "policy":
        inputs["expert"], _ = pipeline.policy()
    return settings, inputs


def one_run(
    pipeline: Pipeline, preset: SearchPreset, setting: Setting, seed: int, settings: dict[str, Any], path: Path
) -> None:
    """Search with one seed, the true solve rate along the way, and write the curve to `path`."""
    held_out, work = HeldOut(pipeline.environment("truth"), preset.evaluation_levels), work_folder(path)
    training = make_training(pipeline, preset, setting, seed)
    trained = train(
        jax.random.key(seed),
        training.step,
        training.init(preset.first_policy(seed)),
        TrainerConfig(preset.updates, log_every=20, checkpoint_every=preset.evaluate_every),
        folder=work,
        # The same levels and noise each time: what changes is the policy.
        evaluate=lambda _, state: held_out.solve_rate(jax.random.key(9), state.policy),
        resume=True,
        progress=pipeline.progress,
    )
    trained.check_finished()
    write_result(path, settings, {"curve.json": msgspec.json.encode(curve(work, preset))})


def make_training(pipeline: Pipeline, preset: SearchPreset, setting: Setting, seed: int) -> PolicySearch | Impala:
    """The search of one setting, or IMPALA on as many episodes per update."""
    environment = pipeline.environment("policy")
    if setting.method == "IMPALA":
        work = episodes_of(environment, preset.first_policy(seed), batch=preset.num_episodes, seed=seed)
        rate = preset.impala_learning_rate or preset.learning_rate
        return Impala(InProcess(work), preset.optimizer(rate), ImpalaRecipe().loss)
    steps, source = METHODS[setting.method], Learned(environment, pipeline.scenario_model()[1])
    source = source if steps is None else source.given(steps)
    return make_search(pipeline, environment, source, preset, setting)


def make_search(
    pipeline: Pipeline, environment: Sokoban, source: ScenarioSource, preset: SearchPreset, setting: Setting
) -> PolicySearch:
    """The search of one setting on the scenarios of a source."""
    normalization, ratio = WEIGHTINGS[setting.weighting]
    if setting.expert == "solver":
        expert: Any = solvers(preset.ingredients.sokoban)
    else:
        expert = MCTS(environment, num_simulations=32) if setting.expert == "mcts" else pipeline.policy()[1]
    return PolicySearch(
        environment,
        environment,
        source,
        preset.optimizer(preset.learning_rate, preset.steps),
        ExpertSchedule(expert, preset.beta, preset.time_constant),
        ReturnWeightedRegression(preset.num_rollouts, preset.temperature, normalization, ratio, preset.num_resampled),
        preset.num_episodes,
        steps=preset.steps,
    )


def curve(folder: Path, preset: SearchPreset) -> dict[str, Any]:
    """From the log of a run: true solve rate and return against updates and episodes, and how fast it went."""
    log = read_log(folder / LOG)
    # Where a run was stopped it was measured too; whether it was shall not change its curve.
    due = lambda step: step % preset.evaluate_every == 0 or step == preset.updates
    found = [line for line in log if "held_out/solved" in line and due(line["step"])]
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
    """Solve rate and return against updates and episodes, one column per weighting, as SVG, with 95% over seeds."""
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
