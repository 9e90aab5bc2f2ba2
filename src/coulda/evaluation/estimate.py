"""`Estimate`: a value that says how sure it is, what it rests on, and whether to believe it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from coulda.pomdp.rollout import FIELDS

Status = Literal["ok", "no support", "no probabilities", "not finite"]
Verdict = Literal["trust", "caution", "do not trust"]
VERDICTS: tuple[Verdict, ...] = ("trust", "caution", "do not trust")


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    kind: str
    """How it was found: "student", "bca", "bootstrap", "bernstein" or "woodruff"."""

    def __contains__(self, value: float) -> bool:
        """Whether the value lies in it."""
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        """High minus low."""
        return self.high - self.low


@dataclass(frozen=True)
class Diagnostic:
    """One reason to believe an estimate or not: a number, what it means, and how bad it is."""

    name: str
    value: float
    verdict: Verdict
    sentence: str


@dataclass(frozen=True)
class Estimate:
    """An estimate of a policy's expected return E[G], never a bare float.

    Where the log cannot support an estimate, `status` names the reason, `explanation` gives the fix, and `value` and
    `interval` are None.
    """

    method: str
    """Such as "WIS", "CF-PE", or "CF-PE(20)" of the first 20 observations."""
    value: float | None
    interval: Interval | None
    terms: np.ndarray
    """`[N]`, one number an episode, whose mean is the value: what episode i contributes."""
    effective_sample_size: float
    status: Status = "ok"
    explanation: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    """Numbers that belong to the method, such as the largest weight."""
    beyond_the_mean: dict[str, "Estimate"] = field(default_factory=dict)
    """Quantiles and CVaRs of the return, where they were asked for and the method can tell; see `distribution`."""

    def __post_init__(self) -> None:
        """The one gate for numbers that are none: they are a status with a reason, never a value."""
        terms = np.asarray(self.terms, float)
        numbers = [self.value, *((self.interval.low, self.interval.high) if self.interval is not None else ())]
        # An interval may be unbounded: of one episode nothing is known.
        if self.value is None or (np.isfinite(terms).all() and np.isfinite(self.value) and not np.isnan(numbers).any()):
            return
        where = np.flatnonzero(~np.isfinite(terms))
        first = f"that of episode {where[0]} is {terms[where[0]]}" if len(where) else f"their mean is {self.value}"
        told = self.explanation or f"The terms of the estimate are not all finite: {first}."
        for name, value in {"value": None, "interval": None, "status": "not finite", "explanation": told}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "terms", np.zeros(len(terms)))

    @property
    def distribution(self) -> dict[str, "Estimate"]:
        """Quantiles and CVaRs of the return by name, such as "0.05 quantile"; what speaks against the row does here."""
        return {
            name: replace(one, diagnostics=(*one.diagnostics, *self.diagnostics))
            for name, one in self.beyond_the_mean.items()
        }

    @property
    def verdict(self) -> Verdict:
        """The worst of the diagnostics."""
        if self.status != "ok":
            return "do not trust"
        return worst(d.verdict for d in self.diagnostics)

    @property
    def reasons(self) -> str:
        """Why the verdict is what it is, in plain sentences."""
        if self.status != "ok":
            return self.explanation
        sentences = [d.sentence for d in self.diagnostics if d.verdict == self.verdict]
        return " ".join(sentences) if self.verdict != "trust" else "All diagnostics are fine."

    def __str__(self) -> str:
        """One line."""
        if self.value is None or self.interval is None:
            return f"{self.method}: {self.status}. {self.explanation}"
        low, high = self.interval.low, self.interval.high
        return f"{self.method}: {self.value:.4g} [{low:.4g}, {high:.4g}], {self.verdict}. {self.reasons}"


def plain(estimate: Estimate) -> dict[str, Any]:
    """An estimate in the types of JSON, all but its terms; a number that is not finite is None."""
    limits, terms = estimate.interval, np.asarray(estimate.terms, float)
    known = estimate.value is not None and len(terms) > 1
    return {
        "method": estimate.method,
        "value": estimate.value,
        "low": None if limits is None else finite(limits.low),
        "high": None if limits is None else finite(limits.high),
        "level": None if limits is None else limits.level,
        "interval": None if limits is None else limits.kind,
        "standard error": float(terms.std(ddof=1) / np.sqrt(len(terms))) if known else None,
        "effective sample size": float(estimate.effective_sample_size),
        "status": estimate.status,
        "explanation": estimate.explanation,
        "verdict": estimate.verdict,
        "reasons": estimate.reasons,
        "diagnostics": [
            {"name": d.name, "value": finite(d.value), "verdict": d.verdict, "sentence": d.sentence}
            for d in estimate.diagnostics
        ],
        "details": estimate.details,
        "distribution": {name: plain(one) for name, one in estimate.distribution.items()},
    }


def finite(value: float) -> float | None:
    """The number, or None where it is none."""
    return float(value) if np.isfinite(value) else None


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The least trusting of them; trust where there are none."""
    return VERDICTS[max((VERDICTS.index(verdict) for verdict in verdicts), default=0)]


def unsupported(method: str, status: Status, explanation: str, episodes: int) -> Estimate:
    """The estimate that cannot be made."""
    return Estimate(method, None, None, np.zeros(episodes), 0.0, status, explanation)


FIXES = {
    "state": "the model's `initial` or `transition` gave a NaN",
    "observation": "the model's `observe` gave a NaN",
    "action": "the policy gave logits that are NaN or infinite, or a mean or scale that is",
    "reward": "the model's `reward` is not finite",
}


def flawed(method: str, flaw: int, where: str, episodes: int) -> Estimate:
    """The estimate that cannot be made because of `Trajectory.first_flaw`."""
    step, field_number = divmod(flaw, len(FIELDS))
    name = FIELDS[field_number]
    said = f"On {where} the {name} of step {step} is not a finite number: {FIXES[name]}. Mend it there."
    return unsupported(method, "not finite", said, episodes)
