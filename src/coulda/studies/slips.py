"""Is it worth inferring the noise of transitions too? PO-Sokoban whose steps slip, with and without hindsight of slips.

    python -m coulda.studies.slips   # writes results/sokoban/slips.json and slips.svg

The level is inferred exactly both times, and so are the slips the first time; the second time they are drawn afresh,
which Corollary 2 allows. Targets and behavior are mixtures of the exact solver and the uniform policy: they see the
state, which no estimator asks about. An episode has K scenarios, so that the variance of an estimate falls into what
averaging over scenarios cannot lower, and what it can.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.drawing import as_svg, new_figure
from coulda.environments.sokoban import SlipperySokoban, SolverPlanners, UniformLevels, generate, tabulate
from coulda.hindsight import Stepwise
from coulda.planners.mixture import ExpertMixture
from coulda.policies import UniformPolicy
from coulda.pomdp import Episode, GumbelMaxChoice, Scenario, batched, rollout
from coulda.storage import replace_file, replace_json


@dataclass(frozen=True)
class Sizes:
    """What was fixed before the run."""

    levels: int = 32
    slip: float = 0.1
    """Of the world."""
    believed: tuple[float, ...] = (0.1, 0.3)
    """Of the models: the right one, and a wrong one."""
    behaviors: tuple[float, ...] = (0.0, 0.5)
    """The solver's share in acting, in the log; 0 is the uniform policy."""
    targets: tuple[float, ...] = (0.2, 0.5, 0.9)
    """The same of the policies that are evaluated."""
    episodes: int = 4000
    scenarios: int = 8
    truth: int = 200_000
    """Episodes that measure each target's true value."""
    seed: int = 0


class Study(eqx.Module):
    """A world, and who acts in it."""

    world: SlipperySokoban
    planners: SolverPlanners

    def actor(self, scenario: Scenario, share: Array) -> ExpertMixture:
        """The solver of the scenario's level, asked so often."""
        number = jnp.argmax(jnp.all(self.levels == scenario.initial[None], axis=(1, 2)))
        return ExpertMixture(self.planners(number), UniformPolicy(5), share)

    @property
    def levels(self) -> Array:
        """All of them."""
        return self.world.levels.levels  # pyright: ignore[reportAttributeAccessIssue]

    def play(self, model: SlipperySokoban, scenario: Scenario, share: Array) -> Episode:
        """An episode."""
        return rollout(model, self.actor(scenario, share), scenario).episode

    @eqx.filter_jit
    def log(self, key: Array, share: Array, count: int) -> Episode:
        """So many episodes of the world."""
        one = lambda k: self.play(self.world, self.world.scenario_prior.sample(k), share)
        return batched(one, jax.random.split(key, count))

    @eqx.filter_jit
    def returns(self, key: Array, model: SlipperySokoban, episodes: Episode, shares: Array, count: int) -> Array:
        """Of each target on inferred scenarios, with slips of hindsight and afresh, `[N, 2, targets, K]`."""

        def one(given: tuple[Array, Episode]) -> Array:
            key_infer, key_fresh = jax.random.split(given[0])
            scenarios, _ = Stepwise(model).infer_many(key_infer, given[1], count)
            slips = jax.random.uniform(key_fresh, scenarios.transition.shape)
            kinds = scenarios, eqx.tree_at(lambda s: s.transition, scenarios, slips)
            value = lambda u, share: self.play(model, u, share).episode_return
            every = jax.vmap(jax.vmap(value, (0, None)), (None, 0))
            return jnp.stack([every(u, shares) for u in kinds])

        return batched(one, (jax.random.split(key, len(episodes.reward)), episodes))


def make(sizes: Sizes) -> Study:
    """The world of these sizes."""
    levels = generate(jax.random.key(sizes.seed), sizes.levels, 7, 7, 1)
    world = SlipperySokoban(
        levels=UniformLevels(levels),
        action_mechanism=GumbelMaxChoice(5),
        height=7,
        width=7,
        num_boxes=1,
        horizon=25,
        mask_probability=0.8,
        slip_probability=sizes.slip,
    )
    return Study(world, SolverPlanners(tabulate(levels, 1)))


def rows_of(returns: np.ndarray, logged: np.ndarray, truth: tuple[float, float], behavior: float) -> dict[str, Any]:
    """One estimate: its value and error, and where its variance comes from.

    Args:
        returns: of the target in each episode's scenarios, `[N, K]`.
        logged: what was earned in the log, `[N]`.
        truth: the target's true value and its standard error.
        behavior: the true value of the behavior.
    """
    mean = returns.mean(1)
    within = returns.var(1, ddof=1).mean()
    between = mean.var(ddof=1) - within / returns.shape[1]
    error = float(np.sqrt(mean.var(ddof=1) / len(mean)))
    gain = mean - logged
    return {
        "value": float(mean.mean()),
        "standard error": error,
        "z": float((mean.mean() - truth[0]) / np.hypot(error, truth[1])),
        "relative error": float(abs(mean.mean() - truth[0]) / truth[0]),
        "variance with one scenario": float(between + within),
        "variance with infinitely many": float(between),
        "variance of the gain over the log": float(gain.var(ddof=1) - within / returns.shape[1]),
        "gain": float(gain.mean()),
        "true gain": truth[0] - behavior,
    }


def run(sizes: Sizes, folder: Path) -> dict[str, Any]:
    """All of it; `slips.json` and `slips.svg` are written into the folder."""
    start, study = time.process_time(), make(sizes)
    key_truth, key_log, key_infer = jax.random.split(jax.random.key(sizes.seed), 3)
    everybody = sorted({*sizes.targets, *sizes.behaviors})
    truth = {}
    for share in everybody:
        earned = np.asarray(study.log(key_truth, jnp.float32(share), sizes.truth).episode_return)
        truth[share] = float(earned.mean()), float(earned.std() / np.sqrt(len(earned)))
    rows = []
    for behavior in sizes.behaviors:
        episodes = study.log(key_log, jnp.float32(behavior), sizes.episodes)
        logged = np.asarray(episodes.episode_return)
        for believed in sizes.believed:
            model = replace(study.world, slip_probability=believed)
            found = np.asarray(study.returns(key_infer, model, episodes, jnp.array(sizes.targets), sizes.scenarios))
            for kind, name in enumerate(("hindsight", "fresh")):
                for i, target in enumerate(sizes.targets):
                    row = rows_of(found[:, kind, i], logged, truth[target], truth[behavior][0])
                    rows.append({"behavior": behavior, "believed": believed, "slips": name, "target": target} | row)
    result = {
        "sizes": asdict(sizes),
        "truth": {str(share): value for share, value in truth.items()},
        "rows": rows,
        "processor seconds": round(time.process_time() - start, 1),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "slips.json", result)
    replace_file(folder / "slips.svg", draw(result).encode())
    return result


def draw(found: dict[str, Any]) -> str:
    """Errors and variances with and without hindsight of slips, as SVG."""
    sizes, rows = found["sizes"], found["rows"]
    right, *wrong = sizes["believed"]
    panels = (
        (f"relative error, slips of {right} believed", "relative error", right),
        (f"relative error, slips of {wrong[-1]} believed", "relative error", wrong[-1]),
        ("variance, one scenario", "variance with one scenario", right),
        ("variance, infinitely many", "variance with infinitely many", right),
        ("variance of the gain over the log", "variance of the gain over the log", right),
    )
    figure = new_figure(15, 3.2)
    for axes, (title, name, believed) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for color, behavior in enumerate(sizes["behaviors"]):
            for slips, style in (("hindsight", "-o"), ("fresh", "--s")):
                asked = {"behavior": behavior, "believed": believed, "slips": slips}
                mine = [row for row in rows if all(row[k] == v for k, v in asked.items())]
                label = f"{slips}, log with {behavior:.0%} solver"
                axes.plot([r["target"] for r in mine], [r[name] for r in mine], style, color=f"C{color}", label=label)
        axes.set(title=title, xlabel="the solver's share in the target", ylim=(0, None))
        axes.title.set_size(9)
    figure.axes[2].legend(fontsize=7)
    return as_svg(figure)


if __name__ == "__main__":
    run(Sizes(), Path("results/sokoban"))
