"""`Comparison`: the table of estimates by policy and method, and `Difference`, two of its rows on the same noise."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coulda.drawing import Picture
from coulda.errors import CouldaError
from coulda.evaluation.drawing import draw_difference, draw_estimates
from coulda.evaluation.estimate import VERDICTS, Estimate, Verdict, assumptions, finite, plain, worst
from coulda.evaluation.intervals import Interval, Returns, student
from coulda.evaluation.shown import (
    Doubt,
    difference_html,
    doubts_of,
    frame_of,
    kept,
    limits,
    listed,
    table_html,
    text_of,
)

if TYPE_CHECKING:
    import pandas as pd

UNPAIRED = ("FQE", "on-policy")
"""Methods whose terms are not those of the log's episodes: of fitted values, and of episodes of another world."""
Value = TypeVar("Value")


class ByName(dict[str, Value]):
    """A dict that says which names it has where it is asked for another."""

    def __missing__(self, name: str) -> Value:
        raise CouldaError(f"there is no '{name}' here; there is {listed([repr(one) for one in self])}")


@dataclass(frozen=True, repr=False)
class Difference:
    """How much better one policy is than another, on the same noise."""

    method: str
    policies: tuple[str, str]
    value: float
    """E[G] of the first minus that of the second."""
    interval: Interval
    variance_ratio: float
    """Var of an unpaired difference over that of the paired one: how many times fewer episodes pairing needs."""
    verdict: Verdict
    """The worse of the two estimates'."""

    @property
    def sentence(self) -> str:
        """What it says, for people."""
        first, second = self.policies
        ends, level = limits(self.interval), f"{self.interval.level:.0%}"
        said = f"By {self.method}, {first} minus {second} on the same episodes: {self.value:.4g} {ends} ({level})."
        fewer = f" Pairing needs {self.variance_ratio:.2g} times fewer episodes."
        return said + (fewer if np.isfinite(self.variance_ratio) and self.variance_ratio > 1.05 else "")

    def __str__(self) -> str:
        """Its sentence, with the verdict."""
        return f"{self.sentence} {self.verdict.capitalize()}."

    def __repr__(self) -> str:
        return f"<Difference {self}>"

    def _repr_html_(self) -> str:
        return difference_html(self)

    def plot(self) -> Picture:
        """The interval beside no difference; needs the extra `plots`."""
        return draw_difference(self)

    def plain(self) -> dict[str, Any]:
        """The difference in the types of JSON."""
        first, second = self.policies
        return {"first": first, "second": second, "method": self.method, "value": self.value} | {
            "low": finite(self.interval.low),
            "high": finite(self.interval.high),
            "level": self.interval.level,
            "variance ratio": finite(self.variance_ratio),
            "verdict": self.verdict,
        }

    def to_frame(self) -> "pd.DataFrame":
        """One row; needs the extra `tables`."""
        return frame_of([self.plain()])


@dataclass(frozen=True, repr=False)
class Comparison:
    """The table: estimates by policy and method."""

    estimates: dict[str, dict[str, Estimate]]
    """`{policy: {method: Estimate}}`; a name that is not there is refused with those that are."""
    logged_returns: np.ndarray
    """G of each logged episode, `[N]`."""
    truth: dict[str, float]
    """E[G] of each policy, where it is known."""
    asked: Returns = field(default_factory=Returns)
    """What is asked of returns."""

    def error(self, policy: str, method: str) -> float | None:
        """|estimate - truth| / |truth|, the paper's relative error; None where one is not known or the truth is 0."""
        value = self.estimates[policy][method].value
        if value is None or not self.truth.get(policy):
            return None
        return abs(value - self.truth[policy]) / abs(self.truth[policy])

    def difference(self, method: str, first: str, second: str, level: float = 0.95) -> Difference:
        """First policy minus second by one method, paired episode by episode, with a Student interval."""
        a, b = self.estimates[first][method], self.estimates[second][method]
        if a.value is None or b.value is None:
            raise CouldaError(f"{method} has no value for both of {first} and {second}: {a.status}, {b.status}")
        if method in UNPAIRED:
            raise CouldaError(f"{method} has no terms of the log's single episodes to pair; use another method")
        paired = a.terms - b.terms
        variance = paired.var(ddof=1)
        ratio = float((a.terms.var(ddof=1) + b.terms.var(ddof=1)) / variance) if variance > 0 else float("inf")
        verdict = worst((a.verdict, b.verdict))
        return Difference(method, (first, second), float(paired.mean()), student(paired, level), ratio, verdict)

    def differences(self, level: float = 0.95) -> list[Difference]:
        """Every pair of policies, by the method that takes least for granted of those with the best verdict."""
        found = []
        for first, second in combinations(self.estimates, 2):
            methods = [name for name in self.estimates[first] if self._paired(name, first, second)]
            if methods:
                every = [self.difference(method, first, second, level) for method in methods]
                found.append(
                    min(
                        every,
                        key=lambda one: (VERDICTS.index(one.verdict), assumptions(one.method), one.interval.width),
                    )
                )
        return found

    def _paired(self, method: str, first: str, second: str) -> bool:
        """Whether both policies have a value by it, and terms of single episodes of the log."""
        rows = [self.estimates[name].get(method) for name in (first, second)]
        known = all(row is not None and row.value is not None for row in rows)
        return known and method not in UNPAIRED

    def doubts(self) -> list[Doubt]:
        """What keeps rows from being trusted: each sentence once, with all policies and methods that it is about."""
        return doubts_of(self.rows())

    def flips(self, policy: str, method: str, threshold: float) -> list[tuple[int, float, float]]:
        """Episodes whose return would have crossed `threshold`: (episode, logged, counterfactual), largest first."""
        would = self.estimates[policy][method].terms
        crossed = np.flatnonzero((self.logged_returns >= threshold) != (would >= threshold))
        order = crossed[np.argsort(-np.abs(would - self.logged_returns)[crossed], kind="stable")]
        return [(int(i), float(self.logged_returns[i]), float(would[i])) for i in order]

    def plain(self) -> dict[str, Any]:
        """The table in the types of JSON."""
        return {
            "policies": {
                name: {method: plain(e) | {"relative error": self.error(name, method)} for method, e in methods.items()}
                for name, methods in self.estimates.items()
            },
            "asked": asdict(self.asked),
            "truth": self.truth,
            "logged": {"episodes": len(self.logged_returns), "mean": float(self.logged_returns.mean())},
        }

    def rows(self) -> Iterator[tuple[str, Estimate]]:
        """All estimates with their policy, in order."""
        for policy, methods in self.estimates.items():
            for estimate in methods.values():
                yield policy, estimate

    def __str__(self) -> str:
        """The table in lines of text."""
        return text_of(self)

    def __repr__(self) -> str:
        policies, rows = listed(list(self.estimates)), sum(map(len, self.estimates.values()))
        return (
            f"<Comparison of {policies} on {len(self.logged_returns):,} episodes: {rows} estimates; print() shows them>"
        )

    def _repr_html_(self) -> str:
        return table_html(self)

    def plot(self) -> Picture:
        """Each method's interval in the color of its verdict, a panel a policy; needs the extra `plots`."""
        return draw_estimates(self)

    def to_frame(self) -> "pd.DataFrame":
        """The table as a data frame, one row per policy and method; needs the extra `tables`."""
        return frame_of(
            [{"policy": p} | kept(plain(row)) | {"relative error": self.error(p, row.method)} for p, row in self.rows()]
        )
