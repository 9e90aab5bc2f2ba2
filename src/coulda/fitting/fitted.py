"""`Fitted`: a model that was made of a log, its hindsight, what speaks for and against both, and what it rests on."""

from dataclasses import dataclass

from coulda.evaluation import Diagnostic, OnScenarios
from coulda.evaluation.estimate import Verdict, worst
from coulda.evaluation.grounds import Grounds
from coulda.fitting.hidden import HiddenFit
from coulda.fitting.neural import NeuralFit
from coulda.fitting.tabular import TabularFit
from coulda.hindsight import ScenarioSource
from coulda.pomdp import POMDP

Recipe = TabularFit | NeuralFit | HiddenFit
"""What kind of model to fit."""


@dataclass(frozen=True)
class Fitted:
    """What `fit` makes of a log."""

    recipe: Recipe
    model: POMDP
    """A POMDP like any other: evaluate, explain and search take it."""
    source: ScenarioSource
    """Its hindsight."""
    grounds: Grounds
    """What it rests on, for rows of a table."""
    summary: tuple[str, ...]
    """For people: what was found, what has no noise, what was never tried."""
    log: str
    """The fingerprint of the log."""

    @property
    def verdict(self) -> tuple[Diagnostic, ...]:
        """What speaks for and against the model, on steps that it has not seen."""
        return self.grounds.verdict

    @property
    def trusted(self) -> Verdict:
        """The worst of the verdict."""
        return worst(diagnostic.verdict for diagnostic in self.verdict)

    def method(self, steps: tuple[int, ...] | None = None) -> OnScenarios:
        """MB-PE and CF-PE for `compare`, whose rows carry the verdict, and whose intervals the error of the fit.

        Args:
            steps: the values of t; by default 0 and all of an episode.
        """
        return OnScenarios(self.model, self.source, steps, grounds=self.grounds)

    def __str__(self) -> str:
        """The summary and the verdict, a line each."""
        lines = [*self.summary, *(f"{d.name}: {d.verdict}. {d.sentence}" for d in self.verdict)]
        return "\n".join(lines)
