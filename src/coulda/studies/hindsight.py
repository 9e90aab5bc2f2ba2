"""Is CF-PE right in worlds with a hidden state, and does it notice a wrong model? `python -m coulda.studies.hindsight`.

In each world logs are collected, and another policy is evaluated on every log by CF-PE with the source that is chosen
for the model: how often the interval holds the truth, how often the right model is not trusted, and how often one is
that is wrong about its prior, its dynamics or its observations by as much as moves that policy's value by a fifth.
"""

import json
import time
from collections import Counter
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
from scipy import stats

from coulda.environments import Glucose, Inventory, Pump, Queue
from coulda.episodes import EpisodeLog, collect
from coulda.evaluation import Estimate, OnScenarios, compare
from coulda.evaluation.intervals import student
from coulda.hindsight import Exact, Particles, ScenarioSource
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
        return carry, Categorical(logits=-2.0 * jnp.abs(jnp.arange(self.num_actions, dtype=float) - wanted))


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
    source: Callable[[Any], ScenarioSource] = Particles
    """The one that `choose` takes for the model, written down so that it is not tried each time."""
    enough: int = 100
    """The least of 100, 200, 400, 800 episodes in which the likelihood ratio finds 99 % of each of the wrong models."""


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
        lambda model: Particles(model, particles=4000),
        enough=200,
    ),
    "glucose": Case(
        Glucose,
        Threshold(120.0, 60.0, 0, 4),
        Threshold(90.0, 40.0, 0, 4),
        {"sensitivity": 8.0, "noise": 5.0, "reading_error": 10.0},
        {"prior": "sensitivity", "dynamics": "noise", "observations": "reading_error"},
        enough=400,
    ),
    "queue": Case(
        Queue,
        Balance(0.1),
        Balance(0.4),
        {"spread": 0.5, "noise": 1.0, "count_error": 1.0},
        {"prior": "spread", "dynamics": "noise", "observations": "count_error"},
        Exact,
        enough=800,
    ),
}
MOVED = 0.2
"""The share of the value that a wrong model moves."""
FARTHEST = {"worn": (3.2, 0.05)}
"""The factors beyond which a number is not made wrong; 6 and its inverse where there are none. `worn` is a share."""


OF_THE_LOG = {"spread", "episodes"}
"""Reasons for caution that do not speak against the model: the log is too small for returns that vary this much."""


@dataclass(frozen=True)
class HindsightStudy:
    """Coverage of CF-PE under the right model, and what is said of wrong ones."""

    world: str
    """pump, inventory, glucose or queue."""
    logs: int = 200
    """Logs evaluated with the right model, for each size."""
    wrong_logs: int = 20
    """Logs evaluated with each of the wrong ones, for each size."""
    small: int = 100
    """Episodes of a small log; the others have as many as can show what is wrong (`Case.enough`)."""
    truth: int = 200_000
    """Episodes from which the policy's true value is measured."""
    seed: int = 0
    """The seed of everything that is drawn."""
    out: Path = Path("results/hindsight")
    """The folder of the numbers."""
    cache: Path = Path(".cache/hindsight")
    """The folder of single logs' answers, from which a run that was stopped goes on."""
    part: int = 0
    """Which part of the logs is evaluated here, from 0; others may be at the same time, with the same cache."""
    parts: int = 1
    """Into how many parts. The numbers are written by a run with one, which finds what the others did."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        case = CASES[self.world]
        key_log, key_truth, key_evaluate = jax.random.split(jax.random.key(self.seed), 3)
        model = case.make(**case.right)
        truth, error = true_value(model, case.target, key_truth, self.truth)
        source = case.source(model)
        found: dict[str, Any] = {
            "world": self.world,
            "seed": self.seed,
            "source": type(source).__name__,
            "particles": getattr(source, "particles", None),
            "truth": truth,
            "standard error of the truth": error,
        }
        wrong = {name: (number, *_wrong(case, number, key_truth, truth)) for name, number in case.wrong.items()}
        for size in sorted({self.small, case.enough}, reverse=True):
            log = collect(jax.random.fold_in(key_log, size), model, case.behavior, size * self.logs)
            right = self._evaluate(key_evaluate, log, size, "right", source, case.target, self.logs)
            if self.parts == 1:
                found[f"right model, {size} episodes"] = _summary(right, truth)
            for name, (number, factor, moved) in wrong.items():
                other = case.source(case.make(**case.right | {number: factor * case.right[number]}))
                rows = self._evaluate(key_evaluate, log, size, name, other, case.target, self.wrong_logs)
                if self.parts > 1:
                    continue
                change = {"number": number, "factor": factor, "moves the value by": moved}
                found[f"wrong {name}, {size} episodes"] = change | _bound(_gained(right, rows)) | _summary(rows, truth)
                self.out.mkdir(parents=True, exist_ok=True)
                replace_json(self.out / f"{self.world}.json", found)
        return found

    def _evaluate(
        self, key: Array, log: EpisodeLog, size: int, name: str, source: ScenarioSource, target: Policy, count: int
    ) -> list[dict[str, Any]]:
        """What is said of each of so many logs: by method, and the log evidence. What was done before is read."""
        path = self.cache / f"{self.world}-{size}-{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        done = {row["log"]: row for row in lines}
        model: POMDP = source.model  # pyright: ignore[reportAttributeAccessIssue]
        mine = range(self.part, count, self.parts)
        with path.open("a") as file, bar(f"{self.world}, {size} episodes, {name}", len(mine)) as advance:
            for i in mine:
                if i not in done:
                    start, one = time.process_time(), log[i * size : (i + 1) * size]
                    table = compare(jax.random.fold_in(key, i), one, {"target": target}, [OnScenarios(model, source)])
                    seconds = time.process_time() - start
                    done[i] = {"log": i, "seconds": seconds} | _plain(table.estimates["target"])
                    file.write(json.dumps(done[i]) + "\n")
                    file.flush()
                advance(1)
        return [done[i] for i in mine]


def _plain(estimates: dict[str, Estimate]) -> dict[str, Any]:
    """What is kept of one log."""
    found: dict[str, Any] = {}
    for name, e in estimates.items():
        assert e.interval is not None
        drawn = student(e.terms, e.interval.level)
        found["MB-PE" if name == "MB-PE" else "CF-PE"] = {
            "value": e.value,
            "interval": [e.interval.low, e.interval.high],
            "of the draws": [drawn.low, drawn.high],
            "verdict": e.verdict,
            "reasons": [d.name for d in e.diagnostics if d.verdict != "trust"],
        }
        found["log evidence"] = e.details.get("log evidence")
    return found


def _summary(rows: list[dict[str, Any]], truth: float) -> dict[str, Any]:
    found = {name: _said([row[name] for row in rows], truth) for name in ("MB-PE", "CF-PE")}
    return {"logs": len(rows)} | found | {"processor seconds": round(sum(row["seconds"] for row in rows), 1)}


def _said(estimates: list[dict[str, Any]], truth: float) -> dict[str, Any]:
    """How often the interval held the truth, its width, and the verdicts; and why, most often.

    An interval holds the error of the logged mean too (`as_known_by`); the spread of an estimate's own terms, which a
    right model needs alone, is held against the truth beside it.
    """
    limits, drawn = (np.array([one[name] for one in estimates]) for name in ("interval", "of the draws"))
    held, held_by_draws = ((low <= truth) & (truth <= high) for low, high in (limits.T, drawn.T))
    trusted = np.array([one["verdict"] == "trust" for one in estimates])
    reasons = Counter(reason for one in estimates for reason in one["reasons"])
    return {
        "coverage": float(held.mean()),
        "coverage without the error of the logged mean": float(held_by_draws.mean()),
        "mean": float(np.mean([one["value"] for one in estimates])),
        "width": float(np.mean(limits[:, 1] - limits[:, 0])),
        "trusted": float(trusted.mean()),
        "model not trusted": float(np.mean([bool(set(one["reasons"]) - OF_THE_LOG) for one in estimates])),
        "not to be trusted": float(np.mean([one["verdict"] == "do not trust" for one in estimates])),
        "coverage where trusted": float(held[trusted].mean()) if trusted.any() else None,
        "reasons": dict(reasons.most_common()),
    }


def _gained(right: list[dict[str, Any]], wrong: list[dict[str, Any]]) -> float:
    """By how many nats the right model explains a log better, in the mean over the logs that both can explain."""
    pairs = np.array([[a["log evidence"], b["log evidence"]] for a, b in zip(right, wrong, strict=False)], float)
    right_better = pairs[np.isfinite(pairs).all(1)] @ np.array([1.0, -1.0])
    return float(np.mean(right_better))


def _bound(nats: float) -> dict[str, float]:
    """How often a model could be found that explains a log by so many nats less, at a level of 1 %.

    Of all tests of the wrong model the likelihood ratio against the right one, which nobody has, finds the most
    (Neyman and Pearson). It is about normal with a variance of twice its mean.
    """
    most = float(stats.norm.cdf(np.sqrt(2 * max(nats, 0.0)) - stats.norm.isf(0.01)))
    return {"nats for the right model": nats, "most that a test could find": most}


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
