"""Four worlds with something hidden, and what hindsight makes of it: `make worlds` draws `_static/world_*.svg`.

In each, episodes are logged in an environment whose hidden part is not what the model believes, and two policies are
evaluated on the log: by the model's prior (MB-PE), in hindsight (CF-PE), and in the environment itself. Then the same
with the right model. All numbers are in `results/worlds`.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.drawing import as_svg, new_figure
from coulda.environments import Glucose, Inventory, Pump, Queue
from coulda.environments.inventory import ORDERS
from coulda.episodes import collect
from coulda.evaluation import Comparison, OnPolicy, OnScenarios, Precision, compare
from coulda.hindsight import ScenarioSource
from coulda.noise import Categorical
from coulda.policies import LinearGaussianPolicy
from coulda.pomdp import POMDP, Episode, Policy, rollout
from coulda.pomdp.rollout import run_actions
from coulda.storage import replace_file, replace_json
from coulda.studies.pump import Upkeep

ROOT = Path(__file__).parents[1]


class OrderUpTo(Policy):
    """Order what is missing to a level, as counted."""

    level: Array

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """Most likely the nearest order."""
        return carry, Categorical(logits=-jnp.abs(ORDERS - (self.level - observation[0])))


class DoseByReading(Policy):
    """A unit for every so many mg/dl that the reading is above 100."""

    per_unit: Array

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """Most likely the nearest dose."""
        return carry, Categorical(logits=-3 * jnp.abs(jnp.arange(4.0) - (observation[0] - 100) / self.per_unit))


@dataclass(frozen=True)
class Shown:
    """A world, what the model believes of it, and two policies, the first of which made the log."""

    environment: POMDP
    believed: POMDP
    policies: dict[str, Policy]
    hidden: str
    """What is hidden, for the picture."""
    view: Callable[[Any], Array]
    """That, of a state."""


def linear(gain: float) -> LinearGaussianPolicy:
    """How many more are sent to the first desk: so many for each by which the second queue is longer."""
    return LinearGaussianPolicy(gain * jnp.array([[-1.0, 1.0]]), jnp.zeros(1), jnp.log(jnp.array([0.1])))


WORLDS = {
    "pump": Shown(
        Pump(worn=0.8),
        Pump(worn=0.1),
        {"by the clock": Upkeep(jnp.array([-8.0, 0, 16, 0])), "service first": Upkeep(jnp.array([-8.0, 0, 16, 16]))},
        "wear",
        lambda state: state.wear,
    ),
    "inventory": Shown(
        Inventory(level=16.0),
        Inventory(level=8.0),
        {"lean": OrderUpTo(jnp.array(15.0)), "generous": OrderUpTo(jnp.array(25.0))},
        "demand level",
        lambda state: state.level,
    ),
    "queue": Shown(
        Queue(speeds=(-1.0, 0.0)),
        Queue(),
        {"as usual": linear(0.0), "balance": linear(0.3)},
        "speed of desk 1",
        lambda state: state[2],
    ),
    "glucose": Shown(
        Glucose(sensitivity=16.0),
        Glucose(sensitivity=8.0),
        {"cautious": DoseByReading(jnp.array(60.0)), "eager": DoseByReading(jnp.array(20.0))},
        "sensitivity",
        lambda state: state.sensitivity,
    ),
}
EPISODES, TRUTH = 200, 20_000


def evaluated(shown: Shown, model: POMDP, episodes: int, truth: int) -> tuple[Comparison, OnScenarios]:
    """Both policies on a log of the first one, by a model and in the environment."""
    log = collect(jax.random.key(0), shown.environment, next(iter(shown.policies.values())), episodes)
    method = OnScenarios(model)
    methods = [method, OnPolicy(shown.environment, truth)]
    return compare(jax.random.key(1), log, shown.policies, methods, precision=Precision(scenarios=4)), method


@eqx.filter_jit
def bands(source: ScenarioSource, model: POMDP, episode: Episode, view: Callable[[Any], Array]) -> Array:
    """The hidden number over time, `[64, T + 1]`, in scenarios of one episode, under its actions."""
    scenarios, _ = source.infer_many(jax.random.key(3), episode, 64)
    return jax.vmap(lambda u: jax.vmap(view)(run_actions(model, u, episode.action)[0]))(scenarios)


def draw(shown: Shown, comparison: Comparison, source: ScenarioSource) -> str:
    """One logged episode's hidden number, before and in hindsight; and what both policies are worth."""
    figure = new_figure(8, 2.8)
    left, right = figure.subplots(1, 2)
    policy = next(iter(shown.policies.values()))
    trajectory = rollout(shown.environment, policy, shown.environment.scenario_prior.sample(jax.random.key(5)))
    live = int(trajectory.episode.length) + 1
    for color, label, found in (("0.6", "prior", source.given(0)), ("C0", "hindsight", source)):
        low, high = np.quantile(bands(found, shown.believed, trajectory.episode, shown.view), (0.05, 0.95), axis=0)
        left.fill_between(range(live), low[:live], high[:live], alpha=0.35, color=color, label=label, linewidth=0)
    left.plot(np.asarray(jax.vmap(shown.view)(trajectory.state))[:live], color="black", label="truth")
    left.set(xlabel="step", ylabel=shown.hidden)
    left.legend(fontsize=8)
    for row, name in enumerate(shown.policies):
        for shift, (method, estimate) in enumerate(comparison.estimates[name].items()):
            limits, color = estimate.interval, "black" if method == "on-policy" else ("0.6", "C0")[shift]
            label = {"on-policy": "truth"}.get(method, method) if row == 0 else None
            right.plot([limits.low, limits.high], [row + 0.2 * shift] * 2, color=color, linewidth=4, label=label)
    right.set(xlabel="expected return", ylim=(1.7, -0.5))
    right.set_yticks([0.2, 1.2], list(shown.policies))
    right.legend(fontsize=8)
    return as_svg(figure)


def plain(comparison: Comparison) -> dict[str, Any]:
    """The numbers of a table."""
    return {
        name: {
            method: {"value": e.value, "low": e.interval.low, "high": e.interval.high, "verdict": e.verdict}
            for method, e in methods.items()
        }
        for name, methods in comparison.estimates.items()
    }


def make(name: str, picture: Path, episodes: int = EPISODES, truth: int = TRUTH) -> dict[str, Any]:
    """Evaluate in one world, with a wrong and with the right model, and draw the first."""
    shown, start = WORLDS[name], time.perf_counter()
    wrong, method = evaluated(shown, shown.believed, episodes, truth)
    right, _ = evaluated(shown, shown.environment, episodes, truth)
    replace_file(picture, draw(shown, wrong, method.choice.source).encode())
    return {
        "scenarios": method.choice.why,
        "episodes": episodes,
        "wrong model": plain(wrong),
        "right model": plain(right),
        "seconds": round(time.perf_counter() - start, 1),
    }


if __name__ == "__main__":
    folder = ROOT / "results" / "worlds"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or WORLDS:
        found = make(name, ROOT / "docs" / "_static" / f"world_{name}.svg")
        replace_json(folder / f"{name}.json", found)
        print(name, found["seconds"], "seconds")
