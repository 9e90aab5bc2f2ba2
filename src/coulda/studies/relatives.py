"""Learning curves of the relatives of CF-GPS (section 5), GPS and SVG, on a pendulum, against their MB-PS.

Each relative is run twice, with scenarios inferred from the pairs of states that were logged and with scenarios from
the model's prior; nothing else differs. GPS has a mixture of linear models, fitted beforehand to transitions from
everywhere; SVG has a pendulum whose gravity is wrong.

    python -m coulda.studies.relatives        # writes results/gps and results/svg, in about five minutes
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from coulda.drawing import as_svg, new_figure
from coulda.environments.pendulum import Pendulum
from coulda.evaluation import on_policy
from coulda.evaluation.intervals import mean_interval
from coulda.hindsight import Prior
from coulda.hindsight.observed import ObservedStates
from coulda.policies.trainable import FeedforwardPolicy
from coulda.search.guided import CoefficientNoisePOMDP, RegulatorPlanner, fit_coefficients
from coulda.search.objective import ReturnWeightedRegression
from coulda.search.policy_search import PolicySearch
from coulda.search.value_gradient import ValueGradient
from coulda.storage import replace_file, replace_json


@dataclass(frozen=True)
class Preset:
    """How long and how often."""

    seeds: int = 5
    updates: int = 300
    evaluate_every: int = 25
    num_episodes: int = 8
    """Logged an update."""
    evaluation_episodes: int = 500


SMOKE = Preset(seeds=2, updates=2, evaluate_every=1, num_episodes=2, evaluation_episodes=4)
DESKTOP = Preset()


def reproduce(folder: Path, preset: Preset) -> None:
    """Run both relatives and write `curves.json` and `curves.svg` for each."""
    for name, searches in {"gps": gps_searches, "svg": svg_searches}.items():
        curves = {method: learning_curves(search, preset) for method, search in searches(preset).items()}
        _write(folder / name, name.upper(), preset, curves)


def gps_searches(preset: Preset) -> dict[str, PolicySearch]:
    """GPS and its MB-PS: a linear SCM whose coefficients are the noise, and the regulator as planner.

    Without the ratio: the narrow regulator and π have an effective sample size of 1 over thirty continuous actions.
    """
    environment, step = Pendulum(), 0.1
    model = CoefficientNoisePOMDP(
        prior=fit_coefficients(*transitions(environment), num_components=4, columns=[0.1, 0.02, 0.02, 0.1]),
        Q=step * jnp.diag(jnp.array([1.0, 0.1])),
        R=step * jnp.array([[0.01]]),
        initial_mean=environment.initial_mean,
        initial_scale=environment.initial_scale,
        horizon=environment.horizon,
    )
    planner, objective, optimizer = (
        RegulatorPlanner(model, 1.0),
        ReturnWeightedRegression(ratio=False),
        optax.adam(1e-2),
    )
    return {
        name: PolicySearch(environment, model, source, optimizer, planner, objective, preset.num_episodes)
        for name, source in {"GPS": ObservedStates(model), "MB-PS": Prior(model)}.items()
    }


def svg_searches(preset: Preset) -> dict[str, PolicySearch]:
    """SVG and its model-based twin: the model's gravity is wrong, and its prior does not know that it is."""
    environment, model, optimizer = Pendulum(), Pendulum(gravity=1.0), optax.adam(1e-2)
    inferred = ObservedStates(model, behavior=initial_policy(environment, 0))
    return {
        name: PolicySearch(
            environment, model, source, optimizer, objective=ValueGradient(), num_episodes=preset.num_episodes
        )
        for name, source in {"SVG": inferred, "prior noise": Prior(model)}.items()
    }


def transitions(environment: Pendulum, count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States from everywhere, random actions, and what follows: what the prior of coefficients is fitted to."""
    rng = np.random.default_rng(0)
    state = rng.uniform([-1.5, -5.0], [4.5, 5.0], size=(count, 2))
    action, noise = 5 * rng.normal(size=(count, 1)), rng.normal(size=(count, 2))
    following = jax.vmap(environment.transition)(*(jnp.asarray(x, float) for x in (state, action, noise)))
    return state, action, np.asarray(following)


def initial_policy(environment: Pendulum, seed: int) -> FeedforwardPolicy:
    """A small network, of unit noise."""
    spaces = environment.observation_space, environment.action_space
    return FeedforwardPolicy(jax.random.key(seed), *spaces, width=32, depth=1)


def learning_curves(search: PolicySearch, preset: Preset) -> dict[str, list[Any]]:
    """True mean returns of π along the way, `[seeds, points]`, and the updates at which they were taken."""
    at = list(range(0, preset.updates + 1, preset.evaluate_every))
    return {"updates": at, "returns": [_one_curve(search, preset, at, seed) for seed in range(preset.seeds)]}


def _one_curve(search: PolicySearch, preset: Preset, at: list[int], seed: int) -> list[float]:
    assert isinstance(search.environment, Pendulum)
    state, curve = search.init(initial_policy(search.environment, seed)), []
    for i, key in enumerate(jax.random.split(jax.random.key(seed), preset.updates + 1)):
        if i in at:
            curve.append(
                on_policy(jax.random.key(1), search.environment, state.policy, preset.evaluation_episodes).value
            )
        state, _ = search.step(key, state)
    return curve


def _write(folder: Path, name: str, preset: Preset, curves: dict[str, dict[str, list[Any]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    final = {method: asdict(mean_interval(np.array(curve["returns"])[:, -1])) for method, curve in curves.items()}
    record = {"experiment": name, "preset": asdict(preset), "final true return": final, "curves": curves}
    replace_json(folder / "curves.json", record)
    replace_file(folder / "curves.svg", draw(name, curves).encode())


def draw(name: str, curves: dict[str, dict[str, list[Any]]]) -> str:
    """Mean and interval of each method's curve."""
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    for method, curve in curves.items():
        returns = np.array(curve["returns"])
        intervals = [mean_interval(column) for column in returns.T]
        axes.plot(curve["updates"], [i.mean for i in intervals], label=method)
        axes.fill_between(curve["updates"], [i.low for i in intervals], [i.high for i in intervals], alpha=0.2)
    axes.set(xlabel="policy updates", ylabel="true return", title=f"{name} on a pendulum, mean and 95% interval")
    axes.legend()
    return as_svg(figure)


if __name__ == "__main__":
    reproduce(Path("results"), DESKTOP)
