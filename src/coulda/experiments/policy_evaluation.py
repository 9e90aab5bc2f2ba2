"""Figure 2, left: the error of counterfactual policy evaluation against t (section 3.2).

Three policies are evaluated from a log of the uniform policy: a trained one, and the same with more and more noise in
its choice. CF-PE(t) infers each level from the first t steps; t = 0 is MB-PE. Importance sampling is held against
them, and the truth is measured in the environment, on levels that nobody else has seen.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coulda.drawing import as_svg, new_figure
from coulda.evaluation import Comparison, ImportanceSampling, Method, OnScenarios, Precision, compare, on_policy
from coulda.evaluation.drawing import STEPS
from coulda.evaluation.estimate import VERDICTS, Estimate, plain
from coulda.evaluation.intervals import mean_interval
from coulda.experiments.pipeline import Ingredients, Pipeline
from coulda.hindsight.learned import Learned
from coulda.policies import NoisyPolicy
from coulda.pomdp import Policy
from coulda.recipes.sokoban import without_levels
from coulda.stages import Stages
from coulda.storage import replace_file, replace_json

PARTS_OF_T = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The paper's t = 0, 5, 10, 20, 30, 40, 50 as parts of T = 50."""
FEWER_PARTS = (0.0, 0.2, 0.4, 1.0)
"""Where minutes count."""
IMPORTANCE = ("ordinary", "weighted", "per_decision")


@dataclass(frozen=True)
class EvaluationPreset:
    """Sizes of the whole experiment."""

    ingredients: Ingredients = field(default_factory=Ingredients)
    noise: tuple[float, ...] = (0.0, 0.5, 0.8)
    """The share of actions that π_0, π_1 and π_2 draw uniformly."""
    num_scenarios: int = 1
    """How many scenarios are inferred for each logged episode."""
    parts_of_t: tuple[float, ...] = PARTS_OF_T
    seeds: int = 1
    """How many scenario models and logs, from the ingredients' seed on; all evaluate the policies of the first."""
    separate: bool = False
    """Whether each t has a scenario model of its own, as in the paper, in the place of one for every t."""
    privileged: bool = True
    """Whether scenario models are trained on true levels, as in the paper, or on what a log itself reveals."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The values of t."""
        return tuple(round(part * self.ingredients.sokoban.horizon) for part in self.parts_of_t)

    @property
    def name(self) -> str:
        """The name of its files."""
        return "evaluation" if self.privileged else "evaluation-from-logs"


def reproduce(folder: Path, preset: EvaluationPreset, progress: bool = True) -> dict[str, Any]:
    """All stages of all seeds; `evaluation.json`, `.csv` and `.svg` are written into `folder` after each seed.

    Without privilege they are called `evaluation-from-logs`; policies, truth and logs are the same.
    """
    with Stages(folder / "stages") as stages:
        return _reproduce(folder, preset, stages, progress)


def _reproduce(folder: Path, preset: EvaluationPreset, stages: Stages, progress: bool) -> dict[str, Any]:
    begin = preset.ingredients
    pipelines = [Pipeline(stages, replace(begin, seed=begin.seed + i), progress) for i in range(preset.seeds)]
    truth = true_values(pipelines[0], preset)
    estimates: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for pipeline in pipelines:
        if preset.seeds > 1:
            stages.console.rule(f"seed {pipeline.sizes.seed}")
        estimates += one_seed(pipeline, pipelines[0], preset)
        found = summarize(truth, estimates) | {"preset": asdict(preset)}
        write_summary(folder / preset.name, found, stages.seconds())
    return found


def true_values(pipeline: Pipeline, preset: EvaluationPreset) -> list[dict[str, Any]]:
    """One row per policy: its value, measured in the environment."""
    path, policy = pipeline.policy()

    def measure() -> dict[str, bytes]:
        environment, key, policies = pipeline.environment("truth"), pipeline.key("truth"), noisy(policy, preset.noise)
        rows = []
        with pipeline.bar("policies", len(policies)) as advance:
            for name, noisy_policy in policies.items():
                rows.append(row(name, on_policy(key, environment, noisy_policy, pipeline.sizes.truth)))
                advance(1)
        return {"estimates.json": msgspec.json.encode(rows)}

    settings = {"noise": preset.noise, "seed": pipeline.sizes.seed}
    inputs = {"policy": path, "levels": pipeline.levels("truth")}
    return msgspec.json.decode(pipeline.stages.result("truth", settings, inputs, measure)["estimates.json"])


def one_seed(pipeline: Pipeline, first: Pipeline, preset: EvaluationPreset) -> list[dict[str, Any]]:
    """A row an estimate: of the first seed's policies, from this seed's scenario model and log."""
    stages, sizes = pipeline.stages, pipeline.sizes
    policy_path, policy = first.policy()
    recipe = sizes.scenarios
    recipes = {t: replace(recipe, steps=t) if preset.separate else recipe for t in preset.steps}
    train = pipeline.scenario_model if preset.privileged else pipeline.scenario_model_from_log
    networks = {t: train(recipes[t]) for t in preset.steps}
    # Not before: at the paper's size drawing the levels of all pools takes long, and nothing else needs them yet.
    pipeline.check_levels({pool: first.levels(pool) for pool in ("policy", "truth")})
    log_path, log = pipeline.log()
    policies = noisy(policy, preset.noise)
    model = pipeline.environment("scenarios") if preset.privileged else without_levels(sizes.sokoban)

    def rows(methods: Sequence[Method]) -> dict[str, bytes]:
        with pipeline.bar("episodes", len(log)) as advance:
            precision = Precision(scenarios=preset.num_scenarios)
            table = compare(pipeline.key("scenarios"), log, policies, methods, precision=precision, advance=advance)
        return {"estimates.json": msgspec.json.encode([row(name, found) for name, found in table.rows()])}

    def counterfactual(t: int) -> dict[str, bytes]:
        return rows([OnScenarios(model, Learned(model, networks[t][1]), steps=(t,))])

    used = {"policy": policy_path, "log": log_path}
    shared = {"noise": preset.noise, "seed": sizes.seed}
    weighted = [ImportanceSampling(kind) for kind in IMPORTANCE]
    parts = [stages.result("importance", shared, used, lambda: rows(weighted))]
    for t in preset.steps:
        settings = shared | {"t": t, "num_scenarios": preset.num_scenarios}
        make = lambda t=t: counterfactual(t)
        parts.append(stages.result(f"counterfactual-{t}", settings, used | {"model": networks[t][0]}, make))
    return [{"seed": sizes.seed} | row for part in parts for row in msgspec.json.decode(part["estimates.json"])]


def noisy(policy: Policy, noise: tuple[float, ...]) -> dict[str, Policy]:
    """π_0, π_1, …: the policy with each share of noise."""
    # Also where there is no noise: then all of them share their compiled programs.
    return {f"π{i}": NoisyPolicy(policy, share) for i, share in enumerate(noise)}


def summarize(truth: list[dict[str, Any]], estimates: list[dict[str, Any]]) -> dict[str, Any]:
    """Every estimate with its relative error |Ĝ - G| / G and that error's 95% interval; and means over seeds."""
    true = {row["policy"]: row for row in truth}
    found = [row | relative_error(row, true[row["policy"]]) for row in estimates]
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found:
        grouped.setdefault((row["policy"], row["method"], row["t"]), []).append(row)
    over_seeds = [_mean_over_seeds(mine, true[name]["value"]) for (name, *_), mine in grouped.items()]
    return {"truth": truth, "estimates": found, "over seeds": over_seeds}


def _mean_over_seeds(mine: list[dict[str, Any]], truth: float) -> dict[str, Any]:
    """Means of one estimate; the interval of the error is the estimate's own if there is one seed, else over seeds."""
    first, errors = mine[0], [row["relative error"] for row in mine]
    interval = first["error interval"]
    if len(mine) > 1:
        limits = None if None in errors else mean_interval(np.array(errors))
        interval = limits and [max(limits.low, 0.0), limits.high]
    return {name: first[name] for name in ("policy", "method", "t")} | {
        "seeds": len(mine),
        "value": _mean([row["value"] for row in mine]),
        "truth": truth,
        "relative error": _mean(errors),
        "error interval": interval,
        "effective sample size": _mean([row["effective sample size"] for row in mine]),
        "verdict": max((row["verdict"] for row in mine), key=VERDICTS.index),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def relative_error(row: Mapping[str, Any], truth: Mapping[str, Any]) -> dict[str, Any]:
    """The relative error of an estimate whose standard error is that of the difference; ends below 0 are 0."""
    if row["value"] is None or not truth["value"]:
        return {"relative error": None, "error interval": None}
    difference, scale = abs(row["value"] - truth["value"]), abs(truth["value"])
    if row["standard error"] is None:
        return {"relative error": difference / scale, "error interval": None}
    spread = 1.96 * float(np.hypot(row["standard error"], truth["standard error"]))
    low, high = max(difference - spread, 0.0) / scale, (difference + spread) / scale
    return {"relative error": difference / scale, "error interval": [low, high]}


def write_summary(path: Path, found: dict[str, Any], seconds: dict[str, float]) -> None:
    """JSON, CSV and the figure, as files at `path` with these endings."""
    replace_json(path.with_suffix(".json"), found | {"seconds": seconds})
    table = io.StringIO()
    names = [
        "seed",
        "policy",
        "method",
        "t",
        "value",
        "low",
        "high",
        "relative error",
        "effective sample size",
        "verdict",
    ]
    writer = csv.DictWriter(table, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found["truth"] + found["estimates"])
    replace_file(path.with_suffix(".csv"), table.getvalue().encode())
    replace_file(path.with_suffix(".svg"), draw(found).encode())


def draw(found: dict[str, Any]) -> str:
    """The figure, as SVG: error against t with 95% intervals, means over seeds; importance sampling as dots."""
    figure = new_figure(6, 3.8)
    axes = figure.subplots()
    rows = found["over seeds"]
    for color, name in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        mine = [row for row in rows if row["policy"] == name]
        # Where the truth is 0 there is no relative error.
        curve = [row for row in mine if row["t"] is not None and row["error interval"] is not None]
        t, error = [row["t"] for row in curve], [row["relative error"] for row in curve]
        limits = np.array([row["error interval"] for row in curve]).reshape(-1, 2).T
        axes.plot(t, error, marker="o", color=f"C{color}", label=f"{name}, G = {mine[0]['truth']:.2f}")
        axes.fill_between(t, *limits, color=f"C{color}", alpha=0.2)
        ordinary = next(row for row in mine if row["method"] == "IS")
        if ordinary["relative error"] is not None:
            size = ordinary["effective sample size"]
            axes.axhline(
                ordinary["relative error"], color=f"C{color}", ls=":", label=f"IS, {size:,.0f} effective episodes"
            )
    axes.set(xlabel="t, steps of the log that hindsight is given", ylabel="relative error |Ĝ − G| / G", ylim=(0, None))
    axes.legend(fontsize=8)
    return as_svg(figure)


def draw_errors(comparison: Comparison) -> str:
    """The same figure from a comparison with the truth, MB-PE and CF-PE(t)."""
    found = [row(name, estimate) for name, estimate in comparison.rows()]
    truth = [one for one in found if one["method"] == "on-policy"]
    return draw(summarize(truth, [one for one in found if one["method"] != "on-policy"]))


def row(policy: str, estimate: Estimate) -> dict[str, Any]:
    """An estimate as the figure's tables have it."""
    found = plain(estimate)
    kept = ("method", "value", "low", "high", "standard error", "effective sample size", "verdict")
    bad = next((d["value"] for d in found["diagnostics"] if d["name"] == "malformed"), None)
    return (
        {"policy": policy, "t": estimate.details.get(STEPS)} | {name: found[name] for name in kept} | {"malformed": bad}
    )
