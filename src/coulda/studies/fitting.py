"""Are fitted models flagged when they are wrong, left alone when they are right, and when does hindsight pay?

Flags: a fit is flagged where its verdict, with what it says of the policy's path, is not "trust". Vectors are of one
world in which the second dimension depends on the change of the first, fitted in the right and in the wrong order, with
something hidden that lasts and that whoever acts goes by, and with an action that was tried in one half of the states
only, for a policy that takes it everywhere. Tables are a patient who recovers or dies, of two kinds that are not told
apart in the log; whoever acts goes by the kind.

Hindsight: noise of Student's kind with three degrees of freedom that is taken for normal; a model of one population and
the log of another; and a third case in which nothing is gained.

`python -m coulda.studies.fitting flags`, `… coverage` and `… hindsight` write `results/fitting/NAME.json`.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from coulda.environments import TabularPOMDP
from coulda.episodes import EpisodeLog, Schema, checked_log, collect
from coulda.evaluation import OnScenarios, Precision, compare, on_policy
from coulda.evaluation.estimate import worst
from coulda.fitting import Fitted, NeuralFit, TabularFit, fit
from coulda.noise import Categorical
from coulda.policies import TabularPolicy
from coulda.pomdp import Planner, Policy
from coulda.storage import replace_json

EPISODES, STEPS = 300, 8
UPDATES = 600
"""Of each member: with 2,400 steps, 150 epochs."""
LARGE_EPISODES, LARGE_UPDATES = 3000, 1500
SEVERAL = 400
"""Episodes of a log in the study of hindsight, five steps each."""
TRUTH = 200_000
"""Episodes that the truth is taken of."""


@dataclass(frozen=True)
class Flags:
    """How often right models are flagged, and wrong ones are not."""

    right: int = 20
    """Logs of vectors whose fit is right."""
    wrong: int = 10
    """Logs of vectors in each case in which it is not."""
    large_right: int = 6
    """Large logs of vectors whose fit is right: a test that looks for significance alone finds fault with all."""
    large_wrong: int = 3
    """Large logs of vectors in each case in which it is not."""
    tables: int = 25
    """Logs of numbers in each case."""
    first: int = 2000
    """The seed of the first log of each case."""
    out: Path = Path("results/fitting/flags.json")
    """Where the numbers go."""

    def run(self) -> None:
        """Measure, one log of each case after the other, writing after each; what is there already is kept."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = json.loads(self.out.read_text()) if self.out.exists() else {}
        cases = self._cases()
        for number in range(max(logs for _, logs in cases.values())):
            for name, (case, logs) in cases.items():
                rows, seed = found.get(name, {}).get("rows", {}), self.first + number
                if number >= logs or str(seed) in rows:
                    continue
                start = time.process_time()
                rows[str(seed)] = case(seed)
                spent = found.get(name, {}).get("processor seconds", 0.0) + time.process_time() - start
                found[name] = _counted(list(rows.values())) | {"processor seconds": round(spent, 1), "rows": rows}
                replace_json(self.out, found)

    def _cases(self) -> dict[str, tuple[Callable[[int], dict[str, str]], int]]:
        return {
            **_vector_cases("vectors", self.right, self.wrong, EPISODES, UPDATES),
            **_vector_cases("large, vectors", self.large_right, self.large_wrong, LARGE_EPISODES, LARGE_UPDATES),
            "table, right": (lambda seed: _of_table(seed, hidden=False), self.tables),
            "table, hidden confounder": (lambda seed: _of_table(seed, hidden=True), self.tables),
        }


def _vector_cases(
    size: str, right: int, wrong: int, episodes: int, updates: int
) -> dict[str, tuple[Callable[[int], dict[str, str]], int]]:
    """By name: what is done with a seed, and with how many."""
    case = lambda kind, order: lambda seed: _of_vectors(seed, kind, order, episodes, updates)
    return {
        f"{size}, right": (case("right", (0, 1)), right),
        f"{size}, hidden confounder": (case("hidden", (0, 1)), wrong),
        f"{size}, thin support": (case("thin", (0, 1)), wrong),
        f"{size}, wrong order": (case("right", (1, 0)), wrong),
    }


def _counted(rows: list[dict[str, str]]) -> dict[str, Any]:
    """The share that is flagged, by whom, and how often for good."""
    names = sorted({name for row in rows for name in row})
    bad = [[name for name, verdict in row.items() if verdict != "trust"] for row in rows]
    return {
        "logs": len(rows),
        "flagged": sum(map(bool, bad)) / len(rows),
        "not to be trusted": sum("do not trust" in row.values() for row in rows) / len(rows),
        "by": {name: sum(name in row for row in bad) / len(rows) for name in names},
    }


def _flags(fitted: Fitted, policy: Policy, seed: int) -> dict[str, str]:
    told = (*fitted.verdict, *fitted.grounds.on_path(jax.random.key(seed + 1000), policy))
    return {name: worst(d.verdict for d in told if d.name == name) for name in {d.name for d in told}}


class TakesOne(Policy):
    """Action 1 with a probability, whatever is seen."""

    probability: float = 0.9

    def __call__(self, carry: Any, observation: Any) -> tuple[Any, Categorical]:  # noqa: ARG002
        """Of two."""
        return carry, Categorical([1 - self.probability, self.probability])


def _of_vectors(seed: int, kind: str, order: tuple[int, int], episodes: int, updates: int) -> dict[str, str]:
    log, recipe = bent(seed, kind, episodes), NeuralFit("triangular", updates=updates, order=order)
    fitted = fit(jax.random.key(seed), log, recipe)
    return _flags(fitted, TakesOne(1.0 if kind == "thin" else 0.7), seed)


def bent(seed: int, kind: str, episodes: int = EPISODES, probability: float = 0.5) -> EpisodeLog:
    """s_0' = s_0 / 2 + a + u_0 and s_1' = s_1 / 2 + 1.5 (s_0' - s_0)² + u_1 / 3; the reward is s_1' - s_0'."""
    rng = np.random.default_rng(seed)
    state, hidden = rng.normal(size=(episodes, 2)), rng.choice([-1.0, 1.0], episodes)
    seen, done, paid = [state], [], []
    for _ in range(STEPS):
        chance = np.full(episodes, probability)
        if kind == "hidden":
            chance = np.where(hidden > 0, 0.8, 0.2)
        if kind == "thin":
            chance = np.where(state[:, 0] < 0, 0.5, 0.0)
        action = (rng.random(episodes) < chance).astype(int)
        push = 0.7 * hidden if kind == "hidden" else 0.0
        # Where the action was never tried, it does something else.
        odd = np.where((kind == "thin") & (state[:, 0] > 0), -2.0, 1.0)
        first = 0.5 * state[:, 0] + odd * action + push + 0.7 * rng.normal(size=episodes)
        second = 0.5 * state[:, 1] + 1.5 * (first - state[:, 0]) ** 2 + rng.normal(size=episodes) / 3
        state = np.stack([first, second], 1)
        seen.append(state)
        done.append(action)
        paid.append(second - first)
    return _log(np.stack(seen, 1), np.stack(done, 1), np.stack(paid, 1), 2)


def _log(seen: np.ndarray, done: np.ndarray, paid: np.ndarray, actions: int) -> EpisodeLog:
    """Of `[N, T + 1, d]`, `[N, T]` and `[N, T]`."""
    size = seen.shape[2]
    schema = Schema(gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32), gymnasium.spaces.Discrete(actions))
    lengths = np.full(len(seen), done.shape[1])
    flat = seen.reshape(-1, size).astype(np.float32)
    return checked_log(schema, flat, done.ravel(), paid.ravel().astype(np.float32), lengths, np.ones(len(seen), bool))


class Knowing(Planner):
    """Whoever made the log of a patient: goes by what is seen, or by the frailty that is not."""

    hidden: bool = True

    def __call__(self, carry: Any, state: Any, observation: Any) -> tuple[Any, Categorical]:  # noqa: ARG002
        """Treats the frail, or those who are worse."""
        of_hidden, of_seen = jnp.where(state.index >= 4, 0.85, 0.15), jnp.where(state.index % 4 == 1, 0.6, 0.3)
        treat = of_hidden if self.hidden else of_seen
        return carry, Categorical(jnp.stack([1 - treat, treat]))


def _of_table(seed: int, hidden: bool) -> dict[str, str]:
    log = collect(jax.random.key(seed), ward(0.5 if hidden else 0.0), Knowing(hidden), EPISODES)
    fitted = fit(jax.random.key(seed + 1), log, TabularFit("gumbel_max"))
    return _flags(fitted, _TREATS, seed)


def ward(frail: float) -> TabularPOMDP:
    """Ill, worse, recovered and dead; treatment helps the `frail` share of all patients, who are not told apart."""
    wait = np.array([[0.75, 0.15, 0.1, 0.0], [0.2, 0.65, 0.0, 0.15], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    treat = np.array([[0.55, 0.2, 0.2, 0.05], [0.3, 0.5, 0.1, 0.1], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    frail_wait = np.array([[0.45, 0.4, 0.05, 0.1], [0.05, 0.6, 0.0, 0.35], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    frail_treat = np.array([[0.6, 0.1, 0.3, 0.0], [0.5, 0.3, 0.2, 0.0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    both = np.zeros((2, 8, 8))
    both[:, :4, :4], both[:, 4:, 4:] = (wait, treat), (frail_wait, frail_treat)
    return TabularPOMDP(
        np.outer([1 - frail, frail], [0.6, 0.4, 0, 0]).ravel(),
        both,
        np.eye(4)[np.arange(8) % 4],
        np.tile([0, 0, 1, -1], 2),
        horizon=8,
        reparameterization="gumbel_max",
        terminal=np.tile([False, False, True, True], 2),
    )


@dataclass(frozen=True)
class Coverage:
    """How often intervals cover the truth where the verdict is "trust", of right worlds."""

    tables: int = 200
    """Logs of numbers."""
    vectors: int = 200
    """Logs of vectors."""
    first: int = 500
    """The seed of the first log of numbers."""
    first_of_vectors: int = 3000
    """The seed of the first log of vectors."""
    out: Path = Path("results/fitting/coverage.json")
    """Where the numbers go."""

    def run(self) -> None:
        """Measure, writing after each log; what is there already is kept."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = json.loads(self.out.read_text()) if self.out.exists() else {}
        cases = {
            "table": (_table_rows, _table_truth, self.first, self.tables),
            "vectors": (_rows, _bent_truth, self.first_of_vectors, self.vectors),
        }
        for name, (case, find_truth, first, logs) in cases.items():
            truth = found.get(name, {}).get("truth") or find_truth()
            rows = found.get(name, {}).get("rows", {})
            start = time.process_time() - found.get(name, {}).get("processor seconds", 0.0)
            for seed in range(first, first + logs):
                if str(seed) in rows:
                    continue
                rows[str(seed)] = case(seed)
                spent = {"processor seconds": round(time.process_time() - start, 1)}
                found[name] = {"truth": truth, "covered": _covered(rows, truth)} | spent | {"rows": rows}
                replace_json(self.out, found)


_TREATS = TabularPolicy([[0.3, 0.7]] * 4)


def _table_truth() -> float:
    plain = Precision(interval="student")  # a bootstrap of so many takes longer than all logs
    return float(on_policy(jax.random.key(12345), ward(0.0), _TREATS, TRUTH, plain).value or np.nan)


def _bent_truth() -> float:
    """Of `TakesOne(0.7)`."""
    return float(bent(12345, "right", TRUTH, 0.7).episode_returns.mean())


def _table_rows(seed: int) -> dict[str, Any]:
    log = collect(jax.random.key(seed), ward(0.0), Knowing(False), EPISODES)
    return _judged_rows(seed, log, fit(jax.random.key(seed + 1), log, TabularFit("gumbel_max")), _TREATS)


def _rows(seed: int) -> dict[str, Any]:
    log = bent(seed, "right")
    fitted = fit(jax.random.key(seed), log, NeuralFit("triangular", updates=UPDATES))
    return _judged_rows(seed, log, fitted, TakesOne(0.7))


def _judged_rows(seed: int, log: EpisodeLog, fitted: Fitted, policy: Policy) -> dict[str, Any]:
    """Interval and verdict of each estimator that rests on the fit."""
    table = compare(jax.random.key(seed + 2), log, {"policy": policy}, [fitted.method()])
    found = {}
    for name, row in table.estimates["policy"].items():
        limits = row.interval
        assert limits is not None
        found[name.partition("(")[0]] = [float(row.value or np.nan), limits.low, limits.high, row.verdict]
    return found


def _covered(rows: dict[str, dict[str, Any]], truth: float) -> dict[str, Any]:
    """Of each estimator: how many are trusted, and how many of these cover the truth."""
    told = {}
    for name in next(iter(rows.values())):
        trusted = [row[name] for row in rows.values() if row[name][3] == "trust"]
        inside = sum(low <= truth <= high for _, low, high, _ in trusted)
        told[name] = {"logs": len(rows), "trusted": len(trusted), "cover": inside}
    return told


@dataclass(frozen=True)
class Hindsight:
    """Errors of MB-PE and CF-PE where the noise is not what the model takes it for, and where it is."""

    seeds: int = 20
    """Logs in each case."""
    out: Path = Path("results/fitting/hindsight.json")
    """Where the numbers go."""

    def run(self) -> None:
        """Measure, writing after each seed."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        truth = {case: _pushed_truth(case) for case in ("heavy tails", "another population", "the same")}
        rows: dict[str, list[dict[str, float]]] = {case: [] for case in truth}
        start = time.time()
        for seed in range(self.seeds):
            heavy, plain = (pushed(seed, case)[0] for case in ("heavy tails", "the same"))
            other, _ = pushed(seed, "another population")
            of_heavy, of_plain = (fit(jax.random.key(seed), log, _RECIPE) for log in (heavy, plain))
            asked = {"heavy tails": (of_heavy, heavy), "the same": (of_plain, plain)}
            for case, (fitted, log) in (asked | {"another population": (of_plain, other)}).items():
                rows[case].append(_errors(seed, fitted, log, truth[case]))
            found = {case: _compared(each) | {"truth": truth[case]} for case, each in rows.items()}
            replace_json(self.out, found | {"seconds": round(time.time() - start, 1), "rows": rows})


_RECIPE = NeuralFit("additive", updates=400)


class Steers(Policy):
    """Against the state: action 0 pushes by -1, 1 not at all, 2 by 1."""

    def __call__(self, carry: Any, observation: Array) -> tuple[Any, Categorical]:
        """Hardly ever anything else."""
        best = jnp.where(observation[0] > 0.5, 0, jnp.where(observation[0] < -0.5, 2, 1))
        return carry, Categorical(logits=jnp.where(jnp.arange(3) == best, 5.0, 0.0))


def pushed(seed: int, case: str, episodes: int = SEVERAL, steer: bool = False) -> tuple[EpisodeLog, np.ndarray]:
    """A log of random actions in s' = 0.7 s + a + noise with a reward of -|s'|, and the returns."""
    rng = np.random.default_rng([seed, 7 if case == "another population" else 0])
    state, seen, done, paid = rng.normal(size=episodes), [], [], []
    seen.append(state)
    for _ in range(5):
        action = rng.integers(0, 3, episodes)
        if steer:
            best = np.where(state > 0.5, 0, np.where(state < -0.5, 2, 1))
            likely = np.exp(5.0) / (np.exp(5.0) + 2)
            other = (best + rng.integers(1, 3, episodes)) % 3
            action = np.where(rng.random(episodes) < likely, best, other)
        noise = rng.standard_t(3, episodes) if case == "heavy tails" else rng.normal(size=episodes)
        noise = noise + (0.8 if case == "another population" else 0.0)
        state = 0.7 * state + (action - 1) + noise
        seen.append(state)
        done.append(action)
        paid.append(-np.abs(state))
    reward = np.stack(paid, 1)
    return _log(np.stack(seen, 1)[:, :, None], np.stack(done, 1), reward, 3), reward.sum(1)


def _pushed_truth(case: str) -> float:
    return float(pushed(12345, case, TRUTH, steer=True)[1].mean())


def _errors(seed: int, fitted: Fitted, log: EpisodeLog, truth: float) -> dict[str, float]:
    method = OnScenarios(fitted.model, fitted.source)
    table = compare(jax.random.key(seed), log, {"steers": Steers()}, [method])
    return {name: float(row.value or np.nan) - truth for name, row in table.estimates["steers"].items()}


def _compared(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Mean absolute errors, and the interval over seeds of how much smaller that of hindsight is."""
    prior, hindsight = (np.abs([row[name] for row in rows]) for name in ("MB-PE", "CF-PE"))
    gain = prior - hindsight
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
    return {
        "seeds": len(rows),
        "MB-PE": float(prior.mean()),
        "CF-PE": float(hindsight.mean()),
        "ratio": float(hindsight.mean() / prior.mean()),
        "gain": [float(gain.mean()), None if len(gain) < 2 else float(error)],
    }


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"flags": Flags, "coverage": Coverage, "hindsight": Hindsight}).run()
