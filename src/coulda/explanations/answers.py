"""`LogExplanation`: which decisions mattered over a whole log, as arrays, a table, JSON, a data frame."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.evaluation.estimate import Diagnostic, Estimate, plain
from coulda.evaluation.intervals import Interval, Returns, student
from coulda.explanations.explanation import Change, Course, Explanation, as_json, exactly, helps, named
from coulda.explanations.question import Question
from coulda.extras import require
from coulda.scales import unit_of

if TYPE_CHECKING:
    import pandas as pd


class Answers(NamedTuple):
    """What was found, N episodes, each for C = 0 … k changes. None where it does not apply."""

    logged: np.ndarray
    """The return in the log, discounted as the question asks, `[N]`."""
    value: np.ndarray
    """`[N, C]`; the first column is the log, bit for bit."""
    error: np.ndarray
    """Its standard error, `[N, C]`: 0 where nothing was drawn."""
    bound: np.ndarray
    """`[N, C]`."""
    optimal: np.ndarray
    """`[N]`."""
    did: Any
    """What was done, `[N, T, ...]`; after the end the last action."""
    action: Any
    """Along the likeliest path, or on the first scenario, `[N, C, T, ...]`."""
    reward: np.ndarray
    """As it counts in the return, `[N, C, T]`."""
    live: np.ndarray
    """`[N, C, T]`."""
    state: Any
    """`[N, C, T + 1, ...]`: the model's states, or their numbers."""
    changed: np.ndarray
    """Which decisions are other ones, `[N, C, T]`."""
    single: np.ndarray
    """What the best single change at each step gains, `[N, T]`: the case of one change, step by step."""
    worst: np.ndarray | None = None
    """`[N, C]`, as all that follow."""
    best: np.ndarray | None = None
    influence: np.ndarray | None = None
    probability: np.ndarray | None = None
    clairvoyant: np.ndarray | None = None
    by_history: np.ndarray | None = None
    by_history_error: np.ndarray | None = None
    policy: np.ndarray | None = None
    """`[N, T, S, C]`, where it was asked for."""


class Saved(NamedTuple):
    """An episode that other decisions would have saved."""

    episode: int
    logged: float
    would: float
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class LogExplanation:
    """What other decisions would have made of each episode of a log."""

    question: Question
    answers: Answers
    diagnostics: tuple[Diagnostic, ...]
    states: Callable[[Any, Any], Any]
    """From the states and actions of a course, as they are kept, to the model's states."""
    first: int = 0
    """The number of the first episode in the log."""

    def __len__(self) -> int:
        """N."""
        return len(self.answers.logged)

    def __getitem__(self, index: int) -> Explanation:
        """The answer for one episode."""
        i, found = range(len(self))[index], self.answers
        one = jax.tree.map(lambda leaf: leaf[i], found)
        rows = range(len(one.value))
        return Explanation(
            logged=float(one.logged),
            curve=tuple(_estimate(k, one.value[k], one.error[k], self.diagnostics) for k in rows),
            courses=tuple(self._course(i, k) for k in rows),
            optimal=bool(one.optimal),
            bound=one.bound,
            guaranteed=one.worst,
            best_case=one.best,
            influence=one.influence,
            probability=one.probability,
            clairvoyant=one.clairvoyant,
            by_history=None
            if one.by_history is None
            else tuple(_estimate(k, one.by_history[k], one.by_history_error[k], self.diagnostics) for k in rows),
            policy=one.policy,
            single=one.single[: int(one.live[0].sum())],
            target=self.question.target,
        )

    def head(self, count: int) -> "LogExplanation":
        """The answers for the first episodes."""
        return replace(self, answers=jax.tree.map(lambda leaf: leaf[:count], self.answers))

    @property
    def gains(self) -> np.ndarray:
        """What at most so many changes are worth, `[N, C]`."""
        return self.answers.value - self.answers.logged[:, None]

    @property
    def curve(self) -> tuple[Estimate, ...]:
        """The mean return with at most so many changes, with an interval over episodes."""
        return tuple(
            Estimate(
                named(k),
                float(terms.mean()),
                student(terms, 0.95),
                terms,
                float(len(terms)),
                diagnostics=self.diagnostics,
            )
            for k, terms in enumerate(self.answers.value.T)
        )

    @property
    def improvements(self) -> tuple[Estimate, ...]:
        """What at most so many changes gain on the average, paired with the log, with an interval over episodes."""
        return tuple(
            Estimate(named(k), float(g.mean()), student(g, 0.95), g, float(len(g)), diagnostics=self.diagnostics)
            for k, g in enumerate(self.gains.T)
        )

    def changes(self, episode: int, k: int) -> tuple[Change, ...]:
        """The decisions of an episode that at most k changes make otherwise."""
        found = self.answers
        did, instead = _at(found.did, episode), _at(_at(found.action, episode), k)
        steps = np.flatnonzero(found.changed[episode, k]).tolist()
        return tuple(Change(t, _at(did, t), _at(instead, t)) for t in steps)

    def most_changed(self, what: str, k: int | None = None) -> list[tuple[Any, int]]:
        """How often decisions are made otherwise: by "step", by "action" (did, instead), or by numbered "state"."""
        k, found = self.question.changes if k is None else k, self.answers
        episodes, steps = np.nonzero(found.changed[:, k])
        if what == "step":
            labels = [int(t) for t in steps]
        elif what == "action":
            labels = [(as_json(c)["did"], as_json(c)["instead"]) for i in range(len(self)) for c in self.changes(i, k)]
            labels = [tuple(map(_hashable, label)) for label in labels]
        elif what == "state" and isinstance(found.state, np.ndarray) and found.state.ndim == 3:
            labels = [int(s) for s in found.state[episodes, k, steps]]
        else:
            raise CouldaError(f"what is {what!r}; count by 'step', 'action' or, where states have numbers, 'state'")
        return Counter(labels).most_common()

    def saved(self, target: float | None = None, k: int = 1) -> list[Saved]:
        """The episodes that k changes would have brought to the target, those that gain most first.

        The target is that of the question, or else the mean return of the log.
        """
        if not 0 <= k <= self.question.changes:
            raise CouldaError(f"k is {k}; the question was about 0 … {self.question.changes} changes")
        found = self.answers
        target = self.question.target if target is None else target
        target = float(found.logged.mean()) if target is None else target
        there = np.flatnonzero((found.logged < target) & (found.value[:, k] >= target))
        order = there[np.argsort(-self.gains[there, k], kind="stable")]
        return [
            Saved(self.first + int(i), float(found.logged[i]), float(found.value[i, k]), self.changes(int(i), k))
            for i in order
        ]

    @property
    def sentences(self) -> list[str]:
        """The headline, and what to believe of it."""
        k, found = self.question.changes, self.answers
        improved = self.improvements[-1]
        assert improved.interval is not None
        better = lambda values: sum(helps(*pair, unit) for pair in zip(values[:, -1], found.logged, strict=True))
        unit = float(unit_of(found.reward))
        helped = better(found.value)
        means = f"{found.value[:, -1].mean():.4g} instead of {found.logged.mean():.4g}"
        if len(self) > 1:
            means += f" ({improved.interval.low:.3g} to {improved.interval.high:.3g} more)"
        decisions = "decision" if k == 1 else "decisions"
        said = [f"With at most {k} other {decisions} {helped:,} of {len(self):,} episodes would have gone better."]
        of = str(Returns(self.question.discount))
        said.append(f"The mean {of}{',' * (',' in of)} would have been {means}.")
        if found.worst is not None:
            certain = better(found.worst)
            said.append(f"Whatever the mechanism, {certain:,} of them would have; the others may not have been helped.")
        if not found.optimal.all():
            said.append(f"For {int((~found.optimal).sum()):,} episodes the search was not exhaustive.")
        return [*said, f"{improved.verdict.capitalize()}: {improved.reasons}"]

    def plain(self) -> dict[str, Any]:
        """In the types of JSON: the curve over the log, what is changed most often, and every episode."""
        kinds = ["step", "action"] + ["state"] * (getattr(self.answers.state, "ndim", 0) == 3)
        return {
            "curve": [plain(estimate) for estimate in self.curve],
            "improvements": [plain(estimate) for estimate in self.improvements],
            "most changed": {kind: [[what, n] for what, n in self.most_changed(kind)[:20]] for kind in kinds},
            "saved by one change": [
                {"episode": s.episode, "logged": s.logged, "would": s.would, "changes": [as_json(c) for c in s.changes]}
                for s in (self.saved() if self.question.changes else [])
            ],
            "sentences": self.sentences,
            "episodes": [{"episode": self.first + i} | self[i].plain() for i in range(len(self))],
        }

    def frame(self) -> "pd.DataFrame":
        """A data frame of one row for each episode and number of changes."""
        pandas = require("pandas", extra="tables")
        found, (episodes, columns) = self.answers, self.answers.value.shape
        data = {
            "episode": self.first + np.repeat(np.arange(episodes), columns),
            "changes": np.tile(np.arange(columns), episodes),
            "logged": np.repeat(found.logged, columns),
        }
        arrays = {"value": found.value, "guaranteed": found.worst, "best case": found.best, "bound": found.bound}
        arrays |= {"influence": found.influence, "probability": found.probability, "clairvoyant": found.clairvoyant}
        arrays |= {"by history": found.by_history}
        return pandas.DataFrame(data | {name: x.ravel() for name, x in arrays.items() if x is not None})

    def _course(self, i: int, k: int) -> Course:
        one = jax.tree.map(lambda leaf: leaf[i][k], (self.answers.action, self.answers.reward, self.answers.state))
        length = int(self.answers.live[i, k].sum())
        action, reward, state = one
        action = jax.tree.map(lambda leaf: leaf[:length], action)
        state = jax.tree.map(lambda leaf: leaf[: length + 1], state)
        return Course(action, reward[:length], self.states(state, action), self.changes(i, k))


def _estimate(k: int, value: float, error: float, diagnostics: tuple[Diagnostic, ...]) -> Estimate:
    value, error = float(value), float(error)
    if error == 0:
        return exactly(k, value, diagnostics)
    limits = Interval(value - 1.96 * error, value + 1.96 * error, 0.95, "student")
    return Estimate(named(k), value, limits, np.array([value]), 1.0, diagnostics=diagnostics)


def _hashable(label: Any) -> Any:
    return tuple(map(_hashable, label)) if isinstance(label, list) else label


def _at(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)
