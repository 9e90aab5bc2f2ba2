"""CF-GPS against MB-PS on the pump, where the model is wrong about the pumps that come.

In the environment pumps come worn; the model believes that they come almost new, and is right about all else. Both
searches collect episodes in the environment and improve the same policy by the same objective. They differ in where the
scenarios come from: MB-PS draws them from the model's prior, in which nothing need be done for a week, and CF-GPS from
what was logged: what broke, what was heard, and what the mechanic found.

    python -m coulda.studies.pump        # writes results/pump, in about ten minutes
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from coulda.drawing import as_svg, new_figure
from coulda.environments import Pump
from coulda.evaluation import on_policy
from coulda.evaluation.intervals import mean_interval
from coulda.hindsight import Particles, Prior, ScenarioSource
from coulda.noise import Categorical
from coulda.pomdp import Policy
from coulda.search import PolicySearch, ReturnWeightedRegression
from coulda.storage import replace_file, replace_json


@dataclass(frozen=True)
class Preset:
    """How large, and how wrong."""

    seeds: tuple[int, ...] = (1, 2, 3)
    updates: int = 100
    evaluate_every: int = 10
    num_episodes: int = 16
    """Logged an update."""
    rollouts: int = 20
    """Of the policy in each scenario."""
    temperature: float = 4.0
    """Of returns, which differ by up to 30."""
    learning_rate: float = 0.1
    particles: int = 500
    worn: float = 0.8
    """Of the pumps that come."""
    believed: float = 0.1
    """What the model takes it for."""
    evaluation_episodes: int = 4000


SMOKE = Preset(
    seeds=(0, 1), updates=2, evaluate_every=1, num_episodes=2, rollouts=2, particles=16, evaluation_episodes=8
)
DESKTOP = Preset()
"""Fixed after one pilot run with seed 0, which is not among the seeds."""


KNOWING = "MB-PS that knows"
"""In the environment itself as the model: what there is to be had with this policy and these updates."""


class Upkeep(Policy):
    """Service with a probability that is logistic in what was heard lately and in when the last service was.

    Its features are a constant, a running mean of the vibration since the service, the days since it in tens, and
    whether there was none yet. It begins with zeros: every other day is a service.
    """

    weight: Array
    """`[4]`."""

    @classmethod
    def zero(cls) -> "Upkeep":
        """A coin."""
        return cls(jnp.zeros(4))

    def initial_carry(self) -> Array:
        """What was heard; days; whether there was no service yet."""
        return jnp.array([0.0, 0.0, 1.0])

    def __call__(self, carry: Array, observation: Array) -> tuple[Array, Categorical]:
        """The mean of what was heard on all days since the service."""
        heard, days, first = carry
        heard = heard + (observation[0] - heard) / (days + 1)
        service = self.weight @ jnp.stack([jnp.ones(()), heard, days / 10, first])
        return jnp.stack([heard, days, first]), Categorical(logits=jnp.stack([jnp.zeros(()), service]))

    def remember(self, carry: Array, action: Array, reward: Array) -> Array:  # noqa: ARG002
        """A service begins anew."""
        return jnp.where(action == 1, jnp.zeros(3), carry + jnp.array([0.0, 1.0, 0.0]))


def searches(preset: Preset) -> dict[str, PolicySearch]:
    """Both methods, which share everything but the scenarios; and what could be had."""
    environment, model = Pump(worn=preset.worn), Pump(worn=preset.believed)
    objective = ReturnWeightedRegression(preset.rollouts, preset.temperature)
    optimizer = optax.adam(preset.learning_rate)

    def search(model: Pump, source: ScenarioSource) -> PolicySearch:
        return PolicySearch(
            environment, model, source, optimizer, objective=objective, num_episodes=preset.num_episodes
        )

    return {
        "CF-GPS": search(model, Particles(model, particles=preset.particles)),
        "MB-PS": search(model, Prior(model)),
        KNOWING: search(environment, Prior(environment)),
    }


def learning_curve(search: PolicySearch, preset: Preset, seed: int) -> tuple[list[float], Upkeep]:
    """True mean returns of π every so many updates, and the last π."""
    state, curve = search.init(Upkeep.zero()), []
    for number, key in enumerate(jax.random.split(jax.random.key(seed), preset.updates + 1)):
        if number % preset.evaluate_every == 0:
            curve.append(_true_return(search, state.policy, preset.evaluation_episodes, 1_000 + seed))
        if number < preset.updates:
            state, _ = search.step(key, state)
    assert isinstance(state.policy, Upkeep)
    return curve, state.policy


def _true_return(search: PolicySearch, policy: Policy, episodes: int, seed: int) -> float:
    assert isinstance(search.environment, Pump)
    found = on_policy(jax.random.key(seed), search.environment, policy, episodes)
    assert found.value is not None
    return found.value


def study(preset: Preset) -> dict[str, Any]:
    """All seeds of both methods: curves, what was found, and the interval over seeds of the last true return."""
    at = list(range(0, preset.updates + 1, preset.evaluate_every))
    found: dict[str, Any] = {"preset": asdict(preset), "updates": at}
    for name, search in searches(preset).items():
        start = time.perf_counter()
        runs = [learning_curve(search, preset, seed) for seed in preset.seeds]
        last = np.array([curve[-1] for curve, _ in runs])
        found[name] = {
            "true returns": [curve for curve, _ in runs],
            "weights": [policy.weight.tolist() for _, policy in runs],
            "final true return": asdict(mean_interval(last)),
            "seconds": round(time.perf_counter() - start, 1),
        }
    return found


def draw(found: dict[str, Any]) -> str:
    """The curves of all seeds, and their mean."""
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    for color, name in (("C0", "CF-GPS"), ("C1", "MB-PS"), ("0.5", KNOWING)):
        curves = np.array(found[name]["true returns"])
        axes.plot(found["updates"], curves.T, color=color, alpha=0.35, linewidth=1)
        axes.plot(found["updates"], curves.mean(0), color=color, label=name)
    axes.set(xlabel="policy updates", ylabel="true return", title="Pumps come worn; the model believes new")
    axes.legend()
    return as_svg(figure)


def run(folder: Path, preset: Preset) -> None:
    """The study, written into `folder`."""
    found = study(preset)
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "search.json", found)
    replace_file(folder / "search.svg", draw(found).encode())


if __name__ == "__main__":
    run(Path("results/pump"), DESKTOP)
