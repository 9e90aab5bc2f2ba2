"""What `coulda calibrate` is asked, as names and numbers."""

from dataclasses import dataclass

from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight import Calibration, ScenarioSource, calibrate
from coulda.naming import load
from coulda.policies import AnyActionPolicy
from coulda.pomdp import POMDP, Policy
from coulda.progress import Advance
from coulda.recipes.evaluation import source_over


@dataclass(frozen=True)
class CalibrationRecipe:
    """A model, a source over it and policies by their names, and how much to simulate.

    Objects are named `package.module:name` or `file.py:name`: an object, or a function that makes it.
    """

    model: str
    """The model, in which episodes are simulated."""
    policies: tuple[str, ...] = ()
    """Whose counterfactual returns are ranked, called by the last part of these names; any action by default."""
    scenarios: str | None = None
    """A function of the model that returns a source of scenarios; by default the exact posterior, if one is known."""
    steps: tuple[int, ...] = ()
    """The values of t of p(U | h_t); all of the episode by default."""
    episodes: int = 500
    """Simulated, for each t."""
    draws: int = 63
    """Of each episode's scenario."""

    def calibrate(self, key: Array, advance: Advance | None = None) -> Calibration:
        """What is found. Consumes `key`."""
        model = load(self.model, POMDP)
        policies = {name.rpartition(":")[2]: load(name, Policy) for name in self.policies}
        return calibrate(
            key,
            self._source(model),
            model,
            policies or {"any action": AnyActionPolicy(model)},
            episodes=self.episodes,
            draws=self.draws,
            steps=self.steps,
            advance=advance,
        )

    def _source(self, model: POMDP) -> ScenarioSource:
        found = source_over(model, self.scenarios)
        if found is None:
            name = type(model).__name__
            raise CouldaError(f"no exact posterior is known for {name}; name a source of scenarios with --scenarios")
        if not isinstance(found, ScenarioSource):
            raise CouldaError(f"'{self.scenarios}' makes a {type(found).__name__}, not a ScenarioSource")
        return found
