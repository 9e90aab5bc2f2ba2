"""Is CF-PE right in worlds with a hidden state, and does it notice a wrong model? `python -m coulda.studies.hindsight`.

In each world logs are collected, and another policy is evaluated on every log by CF-PE with the source that is chosen
for the model: how often the interval holds the truth, how often the right model is not trusted, and how often one is
that is wrong about its prior, its dynamics or its observations by as much as moves that policy's value by a fifth.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from coulda.environments import Glucose, Inventory, Pump, Queue
from coulda.episodes import EpisodeLog, collect
from coulda.evaluation import Estimate, OnScenarios, compare
from coulda.hindsight import ScenarioSource, choose
from coulda.noise import Categorical, Normal
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.progress import bar
from coulda.storage import replace_json


class Threshold(Policy):
    """Does more the more it sees: for each step of a running mean of one number past `first`, one action more."""

    first: float
    step: float
    index: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)

    def initial_carry(self) -> Array:
        """Nothing seen yet."""
        return jnp.zeros(())

    def __call__(self, carry: Array, observation: Array) -> tuple[Array, Categorical]:
        """The nearer an action is to what the mean asks for, the likelier."""
        carry = 0.5 * (carry + observation[self.index])
        wanted = jnp.clip((carry - self.first) / self.step, 0.0, self.num_actions - 1.0)
        return carry, Categorical(logits=-2.0 * jnp.abs(jnp.arange(self.num_actions) - wanted))


class Balance(Policy):
    """Sends people away from the longer queue."""

    gain: float

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Normal]:
        """In proportion to the difference."""
        return carry, Normal(-self.gain * (observation[:1] - observation[1:2]), 0.5 * jnp.ones(1))


class Case(NamedTuple):
    """A world, who acted in it, who is asked about, and in which numbers a model may be wrong."""

    make: Callable[..., POMDP]
    behavior: Policy
    target: Policy
    right: dict[str, float]
    """The numbers, as they are."""
    wrong: dict[str, str]
    """Which of them is the prior's, the dynamics' and the observations'."""


CASES = {
    "pump": Case(
        Pump,
        Threshold(0.9, 0.4, 0, 2),
        Threshold(0.4, 0.4, 0, 2),
        {"worn": 0.3, "rate": 0.2, "noise": 0.4},
        {"prior": "worn", "dynamics": "rate", "observations": "noise"},
    ),
    "inventory": Case(
        Inventory,
        Threshold(0.0, 8.0, 1, 6),
        Threshold(-2.0, 6.0, 1, 6),
        {"level": 10.0, "variation": 0.3, "count_error": 1.0},
        {"prior": "level", "dynamics": "variation", "observations": "count_error"},
    ),
    "glucose": Case(
        Glucose,
        Threshold(120.0, 60.0, 0, 4),
        Threshold(90.0, 40.0, 0, 4),
        {"sensitivity": 8.0, "noise": 5.0, "reading_error": 10.0},
        {"prior": "sensitivity", "dynamics": "noise", "observations": "reading_error"},
    ),
    "queue": Case(
        Queue,
        Balance(0.1),
        Balance(0.4),
        {"spread": 0.5, "noise": 1.0, "count_error": 1.0},
        {"prior": "spread", "dynamics": "noise", "observations": "count_error"},
    ),
}
MOVED = 0.2
"""The share of the value that a wrong model moves."""
FARTHEST = {"worn": (3.2, 0.05)}
"""The factors beyond which a number is not made wrong; 6 and its inverse where there are none. `worn` is a share."""


@dataclass(frozen=True)
class HindsightStudy:
    """Coverage of CF-PE under the right model, and what is said of wrong ones."""

    world: str
    """pump, inventory, glucose or queue."""
    logs: int = 200
    """Logs evaluated with the right model."""
    wrong_logs: int = 60
    """Logs evaluated with each of the wrong ones."""
    episodes: int = 100
    """Episodes per log."""
    truth: int = 200_000
    """Episodes from which the policy's true value is measured."""
    seed: int = 0
    """The seed of everything that is drawn."""
    out: Path = Path("results/hindsight")
    """The folder of the numbers."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        start, case = time.time(), CASES[self.world]
        key_log, key_truth, key_evaluate = jax.random.split(jax.random.key(self.seed), 3)
        model = case.make(**case.right)
        log = collect(key_log, model, case.behavior, self.logs * self.episodes)
        truth, error = true_value(model, case.target, key_truth, self.truth)
        source, why = choose(model)
        right = self._evaluate(key_evaluate, log, model, case.target, source, self.logs)
        found: dict[str, Any] = {
            "world": self.world,
            "episodes": self.episodes,
            "seed": self.seed,
            "source": why,
            "truth": truth,
            "standard error of the truth": error,
            "right model": self._summary(right, truth),
        }
        for name, number in case.wrong.items():
            factor, moved = _wrong(case, number, key_truth, truth)
            wrong = case.make(**case.right | {number: factor * case.right[number]})
            remake: Callable[[POMDP], ScenarioSource] = type(source)  # pyright: ignore[reportAssignmentType]
            again = remake(wrong)
            rows = self._evaluate(key_evaluate, log, wrong, case.target, again, self.wrong_logs)
            change = {"number": number, "factor": factor, "moves the value by": moved}
            found[f"wrong {name}"] = change | self._summary(rows, truth)
            replace_json(self.out / f"{self.world}.json", found)
        found["seconds"] = round(time.time() - start, 1)
        replace_json(self.out / f"{self.world}.json", found)
        return found

    def _evaluate(
        self, key: Array, log: EpisodeLog, model: POMDP, target: Policy, source: ScenarioSource, count: int
    ) -> list[dict[str, Estimate]]:
        """MB-PE and CF-PE of each of so many logs."""
        found = []
        with bar(f"{self.world}: {count} logs", count) as advance:
            for i in range(count):
                one = log[i * self.episodes : (i + 1) * self.episodes]
                table = compare(jax.random.fold_in(key, i), one, {"target": target}, [OnScenarios(model, source)])
                found.append(table.estimates["target"])
                advance(1)
        return found

    def _summary(self, rows: list[dict[str, Estimate]], truth: float) -> dict[str, Any]:
        """Of each method: how often its interval held the truth, its width, and its verdicts; and why, most often."""
        return {
            ("MB-PE" if name == "MB-PE" else "CF-PE"): _said([row[name] for row in rows], truth) for name in rows[0]
        }


def _said(estimates: list[Estimate], truth: float) -> dict[str, Any]:
    held = [e.interval is not None and truth in e.interval for e in estimates]
    trusted = [e.verdict == "trust" for e in estimates]
    reasons: dict[str, int] = {}
    for estimate in estimates:
        for diagnostic in estimate.diagnostics:
            if diagnostic.verdict != "trust":
                reasons[diagnostic.name] = reasons.get(diagnostic.name, 0) + 1
    both = [h for h, t in zip(held, trusted, strict=True) if t]
    return {
        "logs": len(estimates),
        "coverage": float(np.mean(held)),
        "mean": float(np.mean([e.value for e in estimates if e.value is not None])),
        "width": float(np.mean([e.interval.width for e in estimates if e.interval is not None])),
        "trusted": float(np.mean(trusted)),
        "coverage where trusted": float(np.mean(both)) if both else None,
        "reasons": dict(sorted(reasons.items(), key=lambda pair: -pair[1])),
    }


def _wrong(case: Case, number: str, key: Array, truth: float) -> tuple[float, float]:
    """The factor nearest to 1 by which a number must be wrong to move the target's value by a fifth, and what it moves.

    The farthest one, where none up to there moves it as much.
    """

    def moved(factor: float) -> float:
        model = case.make(**case.right | {number: factor * case.right[number]})
        return (true_value(model, case.target, key, 20_000)[0] - truth) / abs(truth)

    best = max(FARTHEST.get(number, (6.0, 1 / 6)), key=lambda factor: abs(moved(factor)))
    low, high = 0.0, float(np.log(best))
    if abs(moved(best)) < MOVED:
        return best, moved(best)
    for _ in range(8):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if abs(moved(float(np.exp(middle)))) >= MOVED else (middle, high)
    return float(np.exp(high)), moved(float(np.exp(high)))


def true_value(model: POMDP, policy: Policy, key: Array, episodes: int) -> tuple[float, float]:
    """The policy's mean return in a model, and its standard error."""
    returns = np.asarray(_returns(model, policy, jax.random.split(key, episodes)), float)
    return float(returns.mean()), float(returns.std() / episodes**0.5)


@eqx.filter_jit
def _returns(model: POMDP, policy: Policy, keys: Array) -> Array:
    return batched(lambda key: rollout(model, policy, model.scenario_prior.sample(key)).episode_return, keys)


if __name__ == "__main__":
    tyro.cli(HindsightStudy).run()
