"""What are the thresholds of the verdicts worth? Coverage of intervals by the number that a threshold cuts.

`python -m coulda.studies.thresholds` asks weights and models about finite worlds of generator A, and writes
`results/trust/powers.json`. Nothing is compiled: worlds are played, and answers computed, in NumPy, so that a world
takes a third of a second where the whole table takes ten. Other checks than the one in question are left out, or are
named; what they find together is the study of `coulda.studies.trust`.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

from coulda.environments.tabular import TabularPOMDP
from coulda.evaluation.diagnostics import LONG_TAIL, UNLIKELY, UNSTABLE_SPREAD, UNUSUAL, pareto_shape, spread_diagnostic
from coulda.evaluation.diagnostics import weight_diagnostics as weight_checks
from coulda.evaluation.importance import KINDS, Kind, statistics, total_weights
from coulda.evaluation.intervals import Interval, Ratios, bca, hull, student, widened
from coulda.evaluation.mismatch import count_test, resolution
from coulda.evaluation.weights import Weighted
from coulda.noise import effective_sample_size
from coulda.policies import TabularPolicy
from coulda.progress import bar
from coulda.scales import normal_above
from coulda.storage import replace_json
from coulda.studies.trust import share
from coulda.studies.trust_models import Habit
from coulda.studies.trust_tuning import FAMILIES, case
from coulda.studies.trust_worlds import NOISES, Case, exact_rewards

LEVEL = 0.95
FINITE = ("mdp", "pomdp")
BANDS = {
    "effective sample size": (10, 20, 40, 70, 100, 200, 400, 1000, np.inf),
    "weight tail": (-np.inf, 0.0, 0.3, 0.5, 0.7, 0.9, np.inf),
    "spread": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0),
    "cap": (0.0, 1e-9, 0.005, 0.02, 0.05, 0.1, 1.0),
    "visible deviation": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, np.inf),
}
"""By which answers are told apart."""


class Played(NamedTuple):
    """Episodes of a finite world, `[N, T]` each; states and observations `[N, T + 1]`."""

    state: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    live: np.ndarray
    probability: np.ndarray


def play(rng: np.random.Generator, world: TabularPOMDP, acts: np.ndarray, episodes: int) -> Played:
    """Under μ(a | last action, o), `[A + 1, O, A]`."""
    transition, reward, terminal = (np.asarray(table, float) for table in world.tables())
    shows = np.exp(np.asarray(world.observation_logits[-1], float))
    start = np.exp(np.asarray(world.initial_logits, float))
    state = _drawn(rng, np.broadcast_to(start, (episodes, len(start))))
    before, rows = np.full(episodes, len(acts) - 1), []
    for _ in range(world.horizon):
        seen, live = _drawn(rng, shows[state]), terminal[state] == 0
        chance = acts[before, seen]
        action = _drawn(rng, chance)
        after = np.where(live, _drawn(rng, transition[action, state]), state)
        taken = np.take_along_axis(chance, action[:, None], 1)[:, 0]
        rows.append((state, seen, action, reward[action, state, after] * live, live, taken))
        state, before = after, action
    columns = [np.stack(column, 1) for column in zip(*rows, strict=True)]
    last = state, _drawn(rng, shows[state])
    columns[:2] = [np.concatenate([x, y[:, None]], 1) for x, y in zip(columns, last, strict=False)]
    return Played(*columns)


def _drawn(rng: np.random.Generator, chance: np.ndarray) -> np.ndarray:
    """A column of each row `[n, k]`."""
    total = chance.cumsum(1)
    return (total[:, :-1] < rng.random((len(chance), 1)) * total[:, -1:]).sum(1)


def logged(rng: np.random.Generator, question: Case) -> Played:
    """The log of a case: with its clock, and its noise in the rewards."""
    assert isinstance(question.environment, TabularPOMDP)
    found = play(rng, question.environment, _acts(question), question.episodes)
    lengths = (question.survival > rng.random((question.episodes, 1))).sum(1)
    live = found.live & (np.arange(question.horizon) < lengths[:, None])
    noise = NOISES.get(question.rewards, NOISES["plain"])(rng, live.size).reshape(live.shape)
    return found._replace(live=live, reward=np.where(live, found.reward + question.blur * noise, 0.0))


def _acts(question: Case) -> np.ndarray:
    assert isinstance(question.behavior, Habit)
    return np.exp(np.asarray(question.behavior.logits, float))


def _target(question: Case) -> np.ndarray:
    """π(a | o), `[O, A]`."""
    assert isinstance(question.target, TabularPolicy)
    return np.exp(np.asarray(question.target.logits, float))


class Answer(NamedTuple):
    """One number with its intervals by name, what a threshold would see of it, and the truth."""

    method: str
    value: float
    truth: float
    intervals: dict[str, Interval]
    seen: dict[str, float]
    """By the names of `BANDS`."""

    def holds(self, kind: str) -> bool:
        """Whether the interval of this kind holds the truth."""
        return self.truth in self.intervals[kind] or abs(self.value - self.truth) < 1e-5 * (1 + abs(self.truth))


def by_weights(rng: np.random.Generator, question: Case, log: Played, truth: float) -> Iterable[Answer]:
    """What weighted returns say, each with BCa's interval, Student's, and both."""
    acted_on = log.observation[:, :-1]
    ratio = _target(question)[acted_on, log.action] / log.probability
    with np.errstate(divide="ignore"):
        weighted = Weighted(np.where(log.live, np.log(ratio), 0.0), log.reward)
    if not np.isfinite(weighted.log_cumulative).all():
        return
    if any(d.name == "overlap" and d.verdict != "trust" for d in weight_checks(weighted)):
        return
    lost = 1 - float(total_weights(weighted, "capped").sum() / weighted.total.sum())
    ess, tail = float(effective_sample_size(weighted.relative)), pareto_shape(weighted.relative)
    kinds: tuple[Kind, ...] = tuple(KINDS)
    for kind in kinds:
        ratios = statistics(weighted, kind)
        for spread in spread_diagnostic(ratios.terms):
            limits = {"bca": bca(rng, ratios, LEVEL), "student": student(ratios.terms, LEVEL)}
            limits["both"] = hull(limits["bca"], limits["student"])
            seen = {"effective sample size": ess, "weight tail": tail, "spread": spread.value, "cap": lost}
            yield Answer(KINDS[kind], ratios.value, truth, limits, seen)


def by_model(rng: np.random.Generator, question: Case, log: Played, truth: float) -> Iterable[Answer]:
    """What the model says, run as often as there are episodes; plain, and widened by the error of the logged mean."""
    if not isinstance(question.model, TabularPOMDP):
        return
    pi, n = _target(question), question.episodes
    returns = play(rng, question.model, np.broadcast_to(pi, (pi.shape[1] + 1, *pi.shape)), n).reward.sum(1)
    itself, mean = play(rng, question.model, _acts(question), n).reward.sum(1), log.reward.sum(1)
    ratios = Ratios.mean_of(returns)
    plain = student(ratios.terms, LEVEL)
    error = float(mean.std(ddof=1) / np.sqrt(n))
    missed = abs(itself.mean() - mean.mean()) / max(float(np.hypot(itself.std(ddof=1) / np.sqrt(n), error)), 1e-12)
    limits = {"plain": plain, "widened": widened(plain, ratios.value, error, n - 1, "log")}
    seen = {"log itself": float(2 * normal_above(missed)), "spread": _spread(returns)}
    if question.family == "mdp":
        seen |= _transitions(question.model, log)
    yield Answer(question.belief.split()[0], ratios.value, truth, limits, seen)


def _spread(terms: np.ndarray) -> float:
    return max((d.value for d in spread_diagnostic(terms)), default=0.0)


def _transitions(model: TabularPOMDP, log: Played) -> dict[str, float]:
    """How likely the logged transitions are, and which deviation of them would have shown."""
    table = np.asarray(model.tables()[0], float)
    size = table.shape[-1]
    row = (log.action * size + log.state[:, :-1])[log.live]
    found = np.zeros((table.shape[0] * size, size))
    np.add.at(found, (row, log.state[:, 1:][log.live]), 1)
    expected = found.sum(1, keepdims=True) * table.reshape(-1, size)
    chance = min((test.value for test in count_test("", found, expected)), default=1.0)
    return {"transitions": chance, "visible deviation": resolution(found, expected)}


@dataclass(frozen=True)
class Thresholds:
    """Coverage by what thresholds see, on worlds of generator A."""

    worlds: int = 400
    """How many cases are drawn; the finite ones among them that were not cut off are asked."""
    seed: int = 12
    """Of the worlds, their logs and the answers."""
    out: Path = Path("results/trust/powers.json")
    """Where the numbers go."""

    def run(self) -> dict[str, Any]:
        """Ask, write and return the numbers."""
        start, weights, models = time.process_time(), [], []
        asked = [i for i in range(self.worlds) if FAMILIES[i % len(FAMILIES)] in FINITE]
        with bar("finite worlds", len(asked)) as advance:
            for index in asked:
                question, rng = case(self.seed, index), np.random.default_rng([self.seed, index])
                if question.ends != "cut off":
                    assert isinstance(question.environment, TabularPOMDP)
                    log = logged(rng, question)
                    truth = float(question.survival @ exact_rewards(question.environment, _target(question)))
                    weights += by_weights(rng, question, log, truth)
                    models += by_model(rng, question, log, truth)
                advance(1)
        found = {"seed": self.seed, "worlds": len(asked)} | of_weights(weights) | of_models(models)
        replace_json(self.out, found | {"processor seconds": round(time.process_time() - start, 1)})
        return found


def of_weights(answers: Sequence[Answer]) -> dict[str, Any]:
    """Coverage by each number, where the other two do not warn."""
    plain = [a for a in answers if a.method != "CIS"]
    calm = {
        "effective sample size": lambda a: a.seen["weight tail"] < LONG_TAIL and a.seen["spread"] < UNSTABLE_SPREAD,
        "weight tail": lambda a: a.seen["effective sample size"] >= 70 and a.seen["spread"] < UNSTABLE_SPREAD,
        "spread": lambda a: a.seen["effective sample size"] >= 70 and a.seen["weight tail"] < LONG_TAIL,
    }
    found: dict[str, Any] = {name: banded(name, filter(others, plain), "both") for name, others in calm.items()}
    trusted = lambda a: calm["spread"](a) and a.seen["spread"] < UNSTABLE_SPREAD
    found["cap"] = banded("cap", (a for a in answers if a.method == "CIS" and trusted(a)), "both")
    kinds = ("bca", "student", "both")
    trusty = [a for a in plain if trusted(a)]
    found["intervals of what is trusted"] = {kind: share([a.holds(kind) for a in trusty]) for kind in kinds}
    return found


def of_models(answers: Sequence[Answer]) -> dict[str, Any]:
    """How many right and wrong models pass each check, and coverage of those that do."""
    steady = [a for a in answers if a.seen["spread"] < UNSTABLE_SPREAD]
    checks: dict[str, Callable[[Answer], bool]] = {
        "none": lambda a: True,  # noqa: ARG005
        "log itself": lambda a: a.seen["log itself"] >= UNLIKELY,
        "transitions": lambda a: a.seen.get("transitions", 1.0) >= UNUSUAL,
        "both": lambda a: a.seen["log itself"] >= UNLIKELY and a.seen.get("transitions", 1.0) >= UNUSUAL,
    }
    groups = {"right": lambda a: a.method == "right", "wrong": lambda a: a.method != "right"}
    table = {
        group: {name: _passed([a for a in steady if belongs(a)], passes) for name, passes in checks.items()}
        for group, belongs in groups.items()
    }
    counted = [a for a in steady if "transitions" in a.seen and checks["both"](a)]
    return {
        "models": table,
        "visible deviation": {
            group: banded("visible deviation", filter(belongs, counted), "widened") for group, belongs in groups.items()
        },
    }


def _passed(answers: Sequence[Answer], passes: Callable[[Answer], bool]) -> dict[str, Any]:
    left = [a for a in answers if passes(a)]
    off = [a for a in answers if abs(a.value - a.truth) > a.intervals["plain"].width]
    return {
        "passes": share([passes(a) for a in answers]),
        "found of those off by two half-widths": share([not passes(a) for a in off]),
        "holds the truth": {kind: share([a.holds(kind) for a in left]) for kind in ("plain", "widened")},
    }


def banded(name: str, answers: Iterable[Answer], kind: str) -> list[dict[str, Any]]:
    """Coverage in each band of the number of this name."""
    some, edges = list(answers), BANDS[name]
    return [
        {"from": None if np.isinf(low) else low, "to": None if np.isinf(high) else high}
        | share([a.holds(kind) for a in some if low <= a.seen[name] < high])
        for low, high in itertools.pairwise(edges)
    ]


if __name__ == "__main__":
    tyro.cli(Thresholds).run()
