"""When counterfactuals mislead: the sepsis experiment of Oberst & Sontag (2019), with our verdict on it.

A physician who sees everything treats septic patients, almost optimally. The log that is left hides glucose and
diabetes. From it an MDP over what is left is estimated, and the best policy for that MDP is to be evaluated. WIS, MB-PE
and CF-PE all say that it would do better than the physician; in truth it does far worse. The estimates are sure of
themselves; the diagnostics, which do not know the truth either, say not to trust them. With everything observed and the
true probabilities, the same diagnostics say "trust", and CF-PE is right.

`python -m coulda.studies.sepsis` writes `results/evaluation/sepsis.json`.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import tyro
from jax import Array

from coulda.drawing import as_png, new_figure
from coulda.environments.sepsis import Sepsis
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, Schema, checked_log, collect
from coulda.evaluation import Comparison, ImportanceSampling, OnScenarios, Precision, compare, on_policy
from coulda.hindsight import Exact
from coulda.planners.dynamic_programming import TabularPlanner
from coulda.policies import TabularPolicy
from coulda.storage import replace_file, replace_json

ACTIONS, OBSERVED, PROJECTED = 8, 720, 144
DEAD, DISCHARGED = PROJECTED, PROJECTED + 1
DISCOUNT = 0.99
"""For finding policies; returns are undiscounted."""
SOFTNESS = 0.05
"""Of the physician: probability of any but the best action."""
DRAWS = 10_000
"""Of every transition: from them the published physician's probabilities were estimated, not computed."""
HORIZON = 20

PUBLISHED = {
    "observed": (0.3097, 0.269, 0.351),
    "true": (-0.2743, -0.585, 0.055),
    "WIS": (0.6074, -0.422, 0.990),
    "WIS held out": (0.3153, -0.924, 0.988),
    "MB-PE": (0.8128, 0.570, 0.963),
}
"""Mean and 95 % range over 100 data sets."""
PUBLISHED_ONCE = {"observed": 0.3240, "true": -0.4907, "WIS": 0.6286, "MB-PE": 0.9164, "CF-PE": 0.9531}
"""Of their one data set in the main text."""


class Learned(NamedTuple):
    """What is made of one log."""

    model: TabularPOMDP
    """Of 144 states without glucose, and death and discharge, which absorb."""
    policy: np.ndarray
    """The best one for that model, `[146, 8]`, one-hot."""


@dataclass(frozen=True)
class SepsisReproduction:
    """The published protocol, over fresh data sets."""

    data_sets: int = 100
    """Logs."""
    tables: int = 40
    """For how many of them the whole table with CF-PE and its verdicts is made."""
    episodes: int = 1000
    """A log."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/evaluation/sepsis.json")
    """Where the numbers go."""

    def run(self) -> dict[str, Any]:
        """Measure, write and return the numbers."""
        start, world, physician = time.time(), Sepsis(reparameterization="gumbel_max"), behavior_planner()
        key = jax.random.key(self.seed)
        rows, verdicts = [], []
        for i in range(self.data_sets):
            numbers, table = self.one(jax.random.fold_in(key, i), world, physician, with_table=i < self.tables)
            rows.append(numbers)
            if table is not None:
                verdicts.append({method: estimate.verdict for method, estimate in table.estimates["policy"].items()})
        names = [name for name in PUBLISHED if name in rows[0]]
        result = {
            "data sets": self.data_sets,
            "ours": {name: _range([row[name] for row in rows]) for name in names},
            "published": PUBLISHED,
            "one data set, published": PUBLISHED_ONCE,
            "CF-PE": _range([row["CF-PE"] for row in rows if "CF-PE" in row]),
            "verdicts": _share(verdicts),
            "rows": rows,
            "seconds": round(time.time() - start, 1),
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.out, result)
        draw_estimates(rows, self.out.with_suffix(".png"))
        return result

    def one(
        self, key: Array, world: Sepsis, physician: TabularPlanner, with_table: bool
    ) -> tuple[dict[str, float], Comparison | None]:
        """One data set: observed, true, WIS on the log and on a fresh one, MB-PE, and the whole table."""
        key_log, key_fresh, key_true, key_table = jax.random.split(key, 4)
        log = collect(key_log, world, physician, self.episodes)
        learned = learn(log)
        target = TabularPolicy(learned.policy)
        # What the policy does in the world: it does not see glucose there either.
        blind = TabularPolicy(learned.policy[project(np.arange(OBSERVED))])
        numbers = {
            "observed": float(log.episode_returns.mean()),
            "true": float(on_policy(key_true, world, blind, self.episodes).value or 0.0),
            "MB-PE": float(on_policy(key_true, learned.model, target, self.episodes).value or 0.0),
        }
        fresh = collect(key_fresh, world, physician, self.episodes)
        for name, one in (("WIS", log), ("WIS held out", fresh)):
            quick = Precision(interval="student")
            estimate = ImportanceSampling().estimate(key_table, target, with_frequencies(one), quick)
            numbers[name] = float("nan") if estimate.value is None else estimate.value
        if not with_table:
            return numbers, None
        method = OnScenarios(learned.model, Exact(learned.model), estimated_from=projected(log))
        table = compare(key_table, in_model_terms(log), {"policy": target}, [method])
        return numbers | {"CF-PE": float(table.estimates["policy"]["CF-PE"].value or 0.0)}, table


def draw_estimates(rows: list[dict[str, float]], path: Path) -> None:
    """Every estimate of every data set, beside what the policy is worth in truth."""
    names = ("observed", "WIS", "WIS held out", "MB-PE", "CF-PE", "true")
    figure = new_figure(6, 3.5)
    axis = figure.subplots()
    for place, name in enumerate(names):
        values = np.array([row[name] for row in rows if np.isfinite(row.get(name, np.nan))])
        spread = np.linspace(-0.25, 0.25, len(values))
        axis.plot(place + spread, np.sort(values), ".", markersize=3)
        axis.hlines(values.mean(), place - 0.35, place + 0.35, "black", linewidth=1)
    axis.set(xticks=range(len(names)), xticklabels=names, ylabel="return", title=f"{len(rows)} data sets, and means")
    replace_file(path, as_png(figure))


def best_planner() -> TabularPlanner:
    """Optimal in the full state at the discount; as published, life goes on after death and discharge."""
    transition, reward = _full_tables()
    return TabularPlanner(policy_iteration(transition, (transition * reward).sum(-1)))


def behavior_planner(seed: int = 0) -> TabularPlanner:
    """The physician: the best action with probability 0.95, each other one with 0.05 / 7.

    As published, "best" is for probabilities estimated from 10,000 draws of every transition. That matters: actions
    that are equally good are then chosen by chance, state by state, and more of them are in the log. With exact
    probabilities the first of them is chosen everywhere, and MB-PE is 0.03 lower on average.
    """
    transition, reward = _full_tables()
    estimated = np.random.default_rng(seed).multinomial(DRAWS, transition) / DRAWS
    best = TabularPlanner(policy_iteration(estimated, (estimated * reward).sum(-1)))
    return best.noisy(SOFTNESS * ACTIONS / (ACTIONS - 1))


def _full_tables() -> tuple[np.ndarray, np.ndarray]:
    """P `[8, 1440, 1440]`, its rows summing to 1 in float64, and the rewards."""
    transition, reward, _ = (np.asarray(table, float) for table in Sepsis(reparameterization="gumbel_max").tables())
    return transition / transition.sum(-1, keepdims=True), reward


def policy_iteration(transition: np.ndarray, reward: np.ndarray) -> np.ndarray:
    """A best stationary policy, one-hot `[S, A]`, of P `[A, S, S]` and expected rewards `[A, S]`.

    Among actions that are equally good to 1e-9 the one that was best before is kept, and the first at the beginning.
    The published code breaks such ties in another way, which moves the value of its best policy in the full state by
    0.036; what is learned from logs has no such ties.
    """
    states = np.arange(transition.shape[1])
    best = reward.argmax(0)
    while True:
        value = np.linalg.solve(np.eye(len(states)) - DISCOUNT * transition[best, states], reward[best, states])
        q = reward + DISCOUNT * transition @ value
        improved = np.where(q.max(0) > q[best, states] + 1e-9, q.argmax(0), best)
        if (improved == best).all():
            return np.eye(ACTIONS)[best]
        best = improved


def project(observed: np.ndarray) -> np.ndarray:
    """Drop glucose: 0 … 719 becomes 0 … 143."""
    return observed // 8 // 5 * 8 + observed % 8


def count(log: EpisodeLog) -> np.ndarray:
    """Transitions between projected states, `[8, 146, 146]`.

    As published: an observed state in which patients die or leave leads on to an absorbing one, once an action.
    """
    counts = np.zeros((ACTIONS, PROJECTED + 2, PROJECTED + 2))
    before, after = _transitions(log)
    np.add.at(counts, (log.action, project(before), project(after)), 1)
    for reward, absorbing in ((-1, DEAD), (1, DISCHARGED)):
        ends = project(np.unique(after[log.reward == reward]))
        counts[:, :, absorbing] += np.bincount(ends, minlength=PROJECTED + 2)
    counts[:, [DEAD, DISCHARGED], [DEAD, DISCHARGED]] += 1
    return counts


def learn(log: EpisodeLog) -> Learned:
    """The MDP of the counts, in which the absorbing states pay and what was never tried kills, and its best policy."""
    counts = count(log)
    seen = counts.sum(-1)
    transition = np.divide(counts, seen[..., None], out=np.zeros_like(counts), where=seen[..., None] > 0)
    transition[seen == 0, DEAD] = 1
    reward = np.zeros((PROJECTED + 2, PROJECTED + 2))
    reward[:PROJECTED, [DEAD, DISCHARGED]] = -1, 1
    first = np.bincount(project(log.observation[_firsts(log)]), minlength=PROJECTED + 2) / len(log)
    model = TabularPOMDP(
        first,
        transition,
        np.eye(PROJECTED + 2),
        reward,
        horizon=HORIZON,
        reparameterization="gumbel_max",
        terminal=np.arange(PROJECTED + 2) >= PROJECTED,
    )
    return Learned(model, policy_iteration(transition, (transition * reward).sum(-1)))


def projected(log: EpisodeLog) -> EpisodeLog:
    """The log as the learner sees it: without glucose, and without the physician's probabilities."""
    schema = Schema(gymnasium.spaces.Discrete(PROJECTED + 2), log.schema.action_space)
    return checked_log(schema, project(log.observation), log.action, log.reward, log.lengths, log.terminated)


def with_frequencies(log: EpisodeLog) -> EpisodeLog:
    """The projected log with the frequencies of actions in it as the behavior's probabilities."""
    before, _ = _transitions(log)
    taken = count(log).sum(-1).T
    frequencies = taken[project(before), log.action] / taken[project(before)].sum(1)
    return projected(log).with_log_prob(np.log(frequencies), behavior="fitted")


def in_model_terms(log: EpisodeLog) -> EpisodeLog:
    """The projected log as the learned model tells it: rewards come with the step after, which was not logged."""
    seen = projected(log)
    nothing, cut = np.zeros_like(seen.reward), np.zeros(len(seen), bool)
    return checked_log(seen.schema, seen.observation, seen.action, nothing, seen.lengths, cut)


def _firsts(log: EpisodeLog) -> np.ndarray:
    return np.cumsum(log.lengths + 1) - log.lengths - 1


def _transitions(log: EpisodeLog) -> tuple[np.ndarray, np.ndarray]:
    """Observed states before and after each step, `[ΣT_i]` each."""
    keep = np.ones(len(log.observation), bool)
    keep[_firsts(log)] = False
    after = np.flatnonzero(keep)
    return log.observation[after - 1], log.observation[after]


def _range(values: list[float]) -> list[float] | None:
    """Mean, 2.5 % and 97.5 %, and the standard error of the mean."""
    known = np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    error = known.std(ddof=1) / np.sqrt(len(known)) if len(known) > 1 else float("nan")
    return [round(float(x), 4) for x in (known.mean(), low, high, error)]


def _share(verdicts: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """How often each verdict was given to each method."""
    methods = verdicts[0] if verdicts else {}
    return {
        name: {v: sum(row[name] == v for row in verdicts) / len(verdicts) for v in {row[name] for row in verdicts}}
        for name in methods
    }


if __name__ == "__main__":
    found = tyro.cli(SepsisReproduction).run()
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1))  # noqa: T201
