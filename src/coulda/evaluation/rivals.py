"""Which of two models explains a log better: log p(h) of each episode under each, and their difference."""

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.intervals import student
from coulda.evaluation.on_scenarios import informed
from coulda.evaluation.reading import Log, padded_batches, to_numpy
from coulda.hindsight import ScenarioSource
from coulda.pomdp import Episode
from coulda.pomdp.batching import run

UNDECIDED = 0.95
"""The level of the interval that must not hold zero for one model to be called better."""


@dataclass(frozen=True)
class Rivals:
    """How well models explain the episodes of a log."""

    log_evidence: dict[str, np.ndarray]
    """Log p(h) of each episode under each model, `[N]`; -inf where it cannot have happened."""

    @property
    def sentence(self) -> str:
        """Which explains the log better, and by how much."""
        best, *others = sorted(self.log_evidence, key=lambda name: -self.log_evidence[name].sum())
        return " ".join(self._against(best, other) for other in others)

    def _against(self, best: str, other: str) -> str:
        better, worse = self.log_evidence[best], self.log_evidence[other]
        never, neither = (worse == -np.inf) & (better > -np.inf), better == -np.inf
        if never.any():
            first = int(np.flatnonzero(never)[0])
            return f"{best} explains {never.sum()} episodes that {other} holds to be impossible; the first is {first}."
        gained = (better - worse)[~neither]
        if not len(gained) or np.array_equal(better, worse):
            return f"{best} and {other} explain the log equally well."
        total, limits = float(gained.sum()), student(gained, UNDECIDED)
        margin = limits.width / 2 * len(gained)
        if limits.low <= 0 <= limits.high:
            return f"{best} and {other} explain the log about equally well ({total:+.1f} ± {margin:.1f} nats)."
        return f"{best} explains the log better than {other} by {total:.1f} ± {margin:.1f} nats."


def rivals(key: Array, log: Log, sources: Mapping[str, ScenarioSource]) -> Rivals:
    """Hold models against each other by how likely each makes what was logged. Consumes `key`.

    Args:
        key: consumed.
        log: the logged episodes.
        sources: by the name of the model; sources that know the evidence, `Exact`, `Particles` or `Tempered`. They must
            use the same parts of the history, or their numbers are of different things.
    """
    if len(sources) < 2:
        raise CouldaError(f"{len(sources)} models are given; it takes two to compare")
    used = {name: getattr(getattr(source, "evidence", None), "names", None) for name, source in sources.items()}
    if len({names for names in used.values() if names is not None}) > 1:
        raise CouldaError(f"the sources weigh different parts of the history, {used}: give both the same reward_scale")
    found = {name: _log_evidence(key, log, name, source) for name, source in sources.items()}
    return Rivals(found)


def _log_evidence(key: Array, log: Log, name: str, source: ScenarioSource) -> np.ndarray:
    model, repeated = source.model, log.schema.last_observation == "repeated"  # pyright: ignore[reportAttributeAccessIssue]
    parts = [
        to_numpy(run(eqx.Partial(_of_episode, source, repeated, key), inputs), count)
        for inputs, count in padded_batches(log, model.horizon)
    ]
    found = np.concatenate(parts).astype(float)
    if np.isnan(found).any():
        raise CouldaError(f"the source of {name} ({type(source).__name__}) does not know how likely it makes the log")
    return found


def _of_episode(source: ScenarioSource, repeated: bool, key: Array, episode: Episode, index: Array) -> Array:
    key = jax.random.fold_in(key, index)
    return informed(source, repeated, episode).infer_many(key, episode, 1)[1].log_evidence
