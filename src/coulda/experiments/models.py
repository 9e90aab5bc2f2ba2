"""How good the networks of a world are: the levels a policy solves, and what the scenario model draws for each t.

Both are measured on levels that nothing was trained on, beside what it took to train them.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from coulda.drawing import as_svg, new_figure
from coulda.experiments.pipeline import Ingredients, Pipeline, training_log
from coulda.recipes.held_out import HeldOut
from coulda.recipes.scenario_model import quality
from coulda.stages import Stages
from coulda.storage import replace_file, replace_json
from coulda.trainer.logs import held_out_curve, read_log

PARTS_OF_T = (0.2, 0.4, 0.6, 1.0)


@dataclass(frozen=True)
class ModelsPreset:
    """Sizes of the whole experiment."""

    ingredients: Ingredients = field(default_factory=Ingredients)
    episodes: int = 2000
    """Held-out episodes that measure both networks."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The values of t: nothing, the first observation, and parts of the episode."""
        return 0, 1, *(round(part * self.ingredients.sokoban.horizon) for part in PARTS_OF_T)


def reproduce(folder: Path, preset: ModelsPreset, progress: bool = True) -> dict[str, Any]:
    """All stages; the last writes `models.json` and `models.svg` into `folder`."""
    with Stages(folder / "stages") as stages:
        return _reproduce(folder, preset, Pipeline(stages, preset.ingredients, progress))


def _reproduce(folder: Path, preset: ModelsPreset, pipeline: Pipeline) -> dict[str, Any]:
    stages = pipeline.stages
    policy_path, policy = pipeline.policy()
    model_path, network = pipeline.scenario_model()
    pipeline.check_levels()
    held_out = HeldOut(pipeline.environment("truth"), preset.episodes)

    def measure() -> dict[str, bytes]:
        solved = held_out.solve_rate(pipeline.key("policy"), policy)
        rows = quality(pipeline.key("quality"), network, held_out, preset.steps)
        numbers = {name.removeprefix("held_out/"): float(value) for name, value in solved.items()}
        return {"models.json": msgspec.json.encode({"policy": numbers, "scenario model": rows})}

    inputs = {"policy": policy_path, "model": model_path, "levels": pipeline.levels("truth")}
    result = stages.result("models", {"episodes": preset.episodes, "steps": preset.steps}, inputs, measure)
    seconds = stages.seconds()
    trained = {"policy": seconds.get(policy_path.name), "scenario model": seconds.get(model_path.name)}
    found = msgspec.json.decode(result["models.json"]) | {
        "preset": asdict(preset),
        "seconds of training": trained,
        "policy's curve": held_out_curve(read_log(training_log(policy_path))),
    }
    replace_json(folder / "models.json", found)
    replace_file(folder / "models.svg", draw(found).encode())
    return found


def draw(found: dict[str, Any]) -> str:
    """The policy's solve rate against minutes of training, and what the scenario model draws against t, as SVG."""
    curve, rows = found["policy's curve"], found["scenario model"]
    # Where networks are not measured while they are trained, there is no curve to draw.
    panels = 2 if curve else 1
    figure = new_figure(4.25 * panels, 3.4)
    *left, right = figure.subplots(1, panels, squeeze=False)[0]
    for axes in left:
        axes.plot([row["seconds"] / 60 for row in curve], [row["solved"] for row in curve])
        axes.set(xlabel="minutes of training", ylabel="held-out levels solved", ylim=(0, None), title="policy")
    for name in ("exact", "well-formed", "solvable"):
        right.plot([row["t"] for row in rows], [row[name] for row in rows], marker="o", label=name)
    right.set(xlabel="t", ylabel="share of held-out levels", ylim=(0, 1.03), title="scenario model p(U | h_t)")
    right.legend(fontsize=8)
    return as_svg(figure)
