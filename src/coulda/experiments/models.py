"""How good the networks of a world are: the levels a policy solves, and what the scenario model draws for each t.

Both are measured on levels that nothing was trained on, beside what it took to train them.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from coulda.experiments.pipeline import Beginnings, Pipeline
from coulda.experiments.sokoban_models import HeldOut, quality
from coulda.experiments.stages import Stages

PARTS_OF_T = (0.2, 0.4, 0.6, 1.0)


@dataclass(frozen=True)
class ModelsPreset:
    """Sizes of the whole experiment."""

    beginnings: Beginnings = field(default_factory=Beginnings)
    episodes: int = 2000

    @property
    def steps(self) -> tuple[int, ...]:
        """The values of t: nothing, the first observation, and parts of the episode."""
        return 0, 1, *(round(part * self.beginnings.size.horizon) for part in PARTS_OF_T)


def reproduce(folder: Path, preset: ModelsPreset, progress: bool = True) -> dict[str, Any]:
    """All stages; the last writes `models.json` into `folder`."""
    stages = Stages(folder / "stages")
    pipeline = Pipeline(stages, preset.beginnings, progress)
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
    found = msgspec.json.decode(result["models.json"]) | {"preset": asdict(preset), "seconds of training": trained}
    (folder / "models.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return found
