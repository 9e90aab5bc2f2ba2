"""What a `Method` is asked, and what it answers: an `Estimate`, which says how sure it is and whether to believe it."""

import abc
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jax import Array

from coulda.drawing import Picture
from coulda.evaluation.drawing import draw_estimate
from coulda.evaluation.intervals import Interval, Precision, Returns
from coulda.evaluation.reading import Features, Log, Reading, read
from coulda.evaluation.shown import estimate_html, frame_of, kept, limits
from coulda.executors import Executor
from coulda.keys import apart, folded
from coulda.noise import check_key
from coulda.pomdp import Policy
from coulda.pomdp.rollout import FIELDS
from coulda.progress import Advance

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["ok", "no support", "no probabilities", "not finite"]
Verdict = Literal["trust", "caution", "do not trust"]
VERDICTS: tuple[Verdict, ...] = ("trust", "caution", "do not trust")


@dataclass(frozen=True)
class Diagnostic:
    """One reason to believe an estimate or not: a number, what it means, and how bad it is."""

    name: str
    value: float
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, repr=False)
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
    def doubts(self) -> tuple[str, ...]:
        """The sentences that keep it from being trusted, or from being trusted more; none where it is."""
        if self.status != "ok":
            return (self.explanation,)
        return tuple(d.sentence for d in self.diagnostics if d.verdict == self.verdict and d.verdict != "trust")

    @property
    def reasons(self) -> str:
        """Why the verdict is what it is, in plain sentences."""
        return " ".join(self.doubts) or "All diagnostics are fine."

    def with_diagnostics(self, *more: Diagnostic) -> "Estimate":
        """The same, with more that speaks for it or against it."""
        return replace(self, diagnostics=(*self.diagnostics, *more))

    def __str__(self) -> str:
        """One line."""
        if self.value is None or self.interval is None:
            return f"{self.method}: {self.status}. {self.explanation}"
        return f"{self.method}: {self.value:.4g} {limits(self.interval)}, {self.verdict}. {self.reasons}"

    def __repr__(self) -> str:
        """Without its reasons and numbers of single episodes."""
        said = self.status if self.value is None else f"{self.value:.4g} {limits(self.interval)}"
        return f"<Estimate {self.method}: {said}, {self.verdict}>"

    def _repr_html_(self) -> str:
        return estimate_html(self)

    def plot(self) -> Picture:
        """What each episode contributes, and the interval of the mean; needs the extra `plots`."""
        return draw_estimate(self)

    def to_frame(self) -> "pd.DataFrame":
        """One row of a table as a data frame; needs the extra `tables`."""
        return frame_of([kept(plain(self))])


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


ASSUMPTIONS = {"on-policy": 0, "IS": 1, "WIS": 1, "PDIS": 1, "WPDIS": 1, "DR": 2, "WDR": 2}
"""How much a method takes for granted: nothing; the behavior's probabilities; those, or fitted values. All others rest
on something of their own: a cap, fitted values, a model."""
SOMETHING_ELSE = 3


def assumptions(method: str) -> int:
    """Where a method stands in that order; fewer assumptions come first.

    >>> sorted(["MB-PE", "DR", "WIS"], key=assumptions)
    ['WIS', 'DR', 'MB-PE']
    """
    return ASSUMPTIONS.get(method, SOMETHING_ELSE)


Rows = dict[str, list[Estimate]]
"""By policy."""
Use = Literal["log", "scenarios", "environment", "support", "refits"]
USES: tuple[Use, ...] = ("log", "scenarios", "environment", "support", "refits")
"""What a table draws for: methods that need the log alone, scenarios, episodes of an environment, checks of a model,
and refits of one that was fitted."""


@dataclass(frozen=True)
class Run:
    """How a table is made: how precisely, by whom, and who is told."""

    precision: Precision = field(default_factory=Precision)
    executor: Executor | None = None
    """Who runs policies on scenarios; this process where there is none."""
    advance: Advance = lambda count: None  # noqa: ARG005
    """Told how many episodes more are done."""


class Method(abc.ABC):
    """A method is a value: what it needs beside the log and the policies, such as a model or a regression."""

    walks: ClassVar[bool] = True
    """Whether it needs the policies' probabilities along the log."""

    def check_policy(self, policy: Policy) -> None:  # noqa: B027
        """Refuse a policy that does not fit what the method rests on; it need fit nothing by default."""

    def check_log(self, log: Log) -> None:  # noqa: B027
        """Refuse a log that does not fit what the method rests on; it need fit nothing by default."""

    def features(self, log: Log) -> Features | None:  # noqa: ARG002
        """What it needs to see of observations; nothing by default."""
        return None

    @abc.abstractmethod
    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """Estimates of every policy of the reading. Consumes `key`: all policies share its draws."""


class SinglePolicyMethod(Method):
    """A method with one row per policy, which needs nothing but the log."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Such as "WIS"."""

    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """One estimate for each policy, its draws keyed by the method's name: other rows do not change them."""
        own = folded(key_for(key, "log"), zlib.crc32(self.name.encode()))
        return {policy: [self._of(own, reading, policy, run.precision)] for policy in reading.policies}

    def _of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        unknown = reading.once(("unknown", policy), lambda: np.argwhere(np.isnan(reading.taken[policy]))[:1])
        for episode, step in unknown:
            said = (
                f"The policy's probabilities are NaN at step {step} of episode {episode}. Return finite logits there."
            )
            return unsupported(self.name, "not finite", said, len(reading))
        return self.of(key, reading, policy, precision)

    @abc.abstractmethod
    def of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        """The estimate of one policy. Consumes `key`."""

    def estimate(
        self,
        key: Array,
        policy: Policy,
        log: Log,
        precision: Precision | None = None,
        returns: Returns | None = None,
    ) -> Estimate:
        """The estimate of one policy from a log: the table's row without the table."""
        check_key(key)
        policy.check_spaces(log.schema.observation_space, log.schema.action_space)
        reading = reading_for([self], log, {"policy": policy}, returns)
        return self.rows(key, reading, Run(precision or Precision()))["policy"][0]


def key_for(key: Array, use: Use) -> Array:
    """The part of a table's key for one use. All policies share it: the same scenarios, the same noise."""
    return apart(key, len(USES))[USES.index(use)]


def reading_for(
    methods: list[Method], log: Log, policies: Mapping[str, Policy], returns: Returns | None = None
) -> Reading:
    """One pass over the log for what all of the methods need."""
    features = [found for method in methods if (found := method.features(log)) is not None]
    return read(log, policies, features, walk=any(method.walks for method in methods), returns=returns)
