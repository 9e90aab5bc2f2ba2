"""`Explanation`: which decisions of one episode mattered, what others would have made of it, and what to believe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coulda.evaluation.estimate import Diagnostic, Estimate, Verdict, finite
from coulda.evaluation.intervals import Interval
from coulda.scales import unit_of


class Change(NamedTuple):
    """One decision that would have been different."""

    step: int
    """From 0."""
    did: Any
    instead: Any


@dataclass(frozen=True)
class Course:
    """How the episode would have gone: along the likeliest path, or on the first of the scenarios."""

    action: Any
    """`[T', ...]`, up to its end."""
    reward: np.ndarray
    """`[T']`."""
    state: Any
    """The model's states, `[T' + 1, ...]`."""
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Explanation:
    """What at most 0, 1, … k other decisions would have made of one episode.

    Arrays have one entry for each number of changes. Values are net of what the changes cost.
    """

    logged: float
    """The return in the log."""
    curve: tuple[Estimate, ...]
    """The expected return with at most so many changes; the first is the log."""
    courses: tuple[Course, ...]
    """How it would have gone; the first is the log."""
    optimal: bool
    """Whether no other choice of so many changes is better."""
    bound: np.ndarray
    """What no choice of so many changes can exceed; infinity where that is not known."""
    guaranteed: np.ndarray | None = None
    """What can be had under every SCM with the model's probabilities: the best choice against the worst of them."""
    best_case: np.ndarray | None = None
    """The best choice in the kindest of them."""
    influence: np.ndarray | None = None
    """How much of the answer is about this episode, from 0 (what was logged says nothing of what would have been) to
    1: the mean total variation between counterfactual and plain probabilities along the path."""
    probability: np.ndarray | None = None
    """In how many of the scenarios that fit the episode the changes help: over what is hidden."""
    clairvoyant: np.ndarray | None = None
    """What somebody could have had who knew the scenario: the best choice for each of them by itself. Nobody could have
    decided so."""
    by_history: tuple[Estimate, ...] | None = None
    """As `curve`, of the best way to decide by what is seen, in the place of one sequence; None where states are seen,
    observations are real numbers or ways too many. Chosen on few scenarios, it may be below the curve."""
    policy: np.ndarray | None = None
    """The decision at each step, in each state, with each number of changes left, `[T, S, k + 1]`."""
    single: np.ndarray | None = None
    """What the best single other decision at each step would have gained, `[T]`."""
    target: float | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The decisions that would have been different, of at most k."""
        return self.courses[-1].changes

    @property
    def least(self) -> int | None:
        """The least number of changes that reaches the target; None where none does."""
        if self.target is None:
            return None
        return next((k for k, one in enumerate(self.curve) if one.value is not None and one.value >= self.target), None)

    @property
    def gain(self) -> float:
        """What at most k changes are worth."""
        return float((self.curve[-1].value or 0.0) - self.logged)

    @property
    def unit(self) -> float:
        """What rewards near 0 are compared with."""
        return float(unit_of(np.concatenate([course.reward for course in self.courses])))

    @property
    def verdict(self) -> Verdict:
        """Whether to believe it: what evaluation says of the model."""
        return self.curve[-1].verdict

    @property
    def reasons(self) -> str:
        """Why, in plain sentences."""
        return self.curve[-1].reasons

    @property
    def certain(self) -> bool:
        """Whether the changes help whatever the mechanism."""
        return self.guaranteed is not None and helps(float(self.guaranteed[-1]), self.logged, self.unit)

    @property
    def sentence(self) -> str:
        """The answer in words."""
        return " ".join([_what(self), *_least(self), *_sure(self), *_listening(self)])

    def __str__(self) -> str:
        """The answer, and whether to believe it."""
        return f"{self.sentence} {self.verdict.capitalize()}: {self.reasons}"

    def plain(self) -> dict[str, Any]:
        """In the types of JSON."""
        arrays = ("guaranteed", "best_case", "influence", "probability", "clairvoyant", "bound")
        found = {name: getattr(self, name) for name in arrays}
        return {
            "logged": self.logged,
            "curve": [estimate.value for estimate in self.curve],
            "changes": [[as_json(change) for change in course.changes] for course in self.courses],
            **{name: None if x is None else [finite(float(y)) for y in x] for name, x in found.items()},
            "by_history": None if self.by_history is None else [estimate.value for estimate in self.by_history],
            "optimal": self.optimal,
            "target": self.target,
            "least": self.least,
            "sentence": self.sentence,
            "verdict": self.verdict,
            "reasons": self.reasons,
        }


def exactly(k: int, value: float, diagnostics: tuple[Diagnostic, ...]) -> Estimate:
    """The estimate of an expected return that was computed and not sampled."""
    limits = Interval(value, value, 1.0, "exact")
    return Estimate(named(k), value, limits, np.array([value]), 1.0, diagnostics=diagnostics)


def named(k: int) -> str:
    """How a row of the curve is called.

    >>> named(0), named(1), named(2)
    ('the log', 'at most 1 change', 'at most 2 changes')
    """
    return "the log" if k == 0 else f"at most {k} change{'s' if k > 1 else ''}"


def helps(value: float, logged: float, unit: float) -> bool:
    """Whether a return is better than the logged one, beyond the rounding of rewards of such a `unit_of`."""
    return value > logged + 1e-5 * (unit + abs(logged))


def inherited(trust: Estimate | None) -> tuple[Diagnostic, ...]:
    """What evaluation found out about the model; where nobody asked, that is a reason to be careful."""
    if trust is None:
        said = "The model was not held against a log; give trust=, an estimate by the same model and source."
        return (Diagnostic("evaluation", 0.0, "caution", said),)
    verdict = trust.verdict
    said = f"{trust.method} on this log: {verdict}. {trust.reasons}"
    return (Diagnostic("evaluation", 0.0, verdict, said),)


def as_json(change: Change) -> dict[str, Any]:
    """A change in the types of JSON."""
    return {"step": change.step, "did": _plain(change.did), "instead": _plain(change.instead)}


def _plain(action: Any) -> Any:
    return action if isinstance(action, int | float | str) else np.asarray(action).tolist()


def _short(action: Any) -> str:
    """An action in three digits.

    >>> _short(np.int32(3)), _short(np.array([0.12345, -1.0]))
    ('3', '(0.123, -1)')
    """
    numbers = [f"{number:.3g}" for number in np.ravel(action)]
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"


def _what(answer: Explanation) -> str:
    if not helps(answer.logged + answer.gain, answer.logged, answer.unit):
        most = len(answer.curve) - 1
        return f"The return was {answer.logged:.4g}, and no {most} other decisions would have been better."
    steps = ", ".join(f"{_short(c.instead)} instead of {_short(c.did)} at step {c.step}" for c in answer.changes)
    known = answer.influence is None and answer.probability is None
    value = f"{answer.curve[-1].value:.4g}" if known else f"{answer.curve[-1].value:.4g} in expectation"
    found = "" if answer.optimal else " Not all ways were tried."
    return f"The return was {answer.logged:.4g}; with {steps} it would have been {value}.{found}"


def _least(answer: Explanation) -> Sequence[str]:
    if answer.target is None:
        return ()
    if answer.least is None:
        return (f"No {len(answer.curve) - 1} changes reach {answer.target:.4g}.",)
    return (f"The least number of changes that reach {answer.target:.4g} is {answer.least}.",)


def _listening(answer: Explanation) -> Sequence[str]:
    if answer.by_history is None:
        return ()
    value, fixed = answer.by_history[-1].value, answer.curve[-1].value
    if value is None or fixed is None or not helps(value, fixed, answer.unit):
        return ()
    return (f"Deciding by what was then seen, it would have been {value:.4g} in expectation.",)


def _sure(answer: Explanation) -> Sequence[str]:
    if not helps(answer.logged + answer.gain, answer.logged, answer.unit):
        return ()
    if answer.probability is not None:
        return (f"It is better than the log in {answer.probability[-1]:.0%} of the scenarios that fit the episode.",)
    if answer.guaranteed is None or answer.best_case is None:
        return ()
    if not answer.certain:
        others = "there are mechanisms with the same probabilities under which nothing does better than the log"
        return (f"It may not have helped: {others}.",)
    low, high = answer.guaranteed[-1], answer.best_case[-1]
    return (f"Whatever the mechanism, {low:.4g} could have been had, and no more than {high:.4g}.",)
