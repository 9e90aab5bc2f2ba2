"""What `coulda calibrate` is asked, as names and numbers."""

from dataclasses import dataclass
from functools import cached_property

from jax import Array

from coulda.environments.gym import load_model
from coulda.hindsight import Calibration, Choice, calibrate
from coulda.hindsight.choosing import chosen
from coulda.policies import AnyAction, find_policy
from coulda.pomdp import POMDP
from coulda.progress import Advance


@dataclass(frozen=True)
class CalibrationRecipe:
    """A model, a source over it and policies by their names, and how much to simulate.

    Objects are named `package.module:name` or `file.py:name`: an object, or a function that makes it.
    """

    model: str
    """The model, in which episodes are simulated."""
    policies: tuple[str, ...] = ()
    """Whose counterfactual returns are ranked, called by the last part of these names; any action by default."""
    scenarios: str = "auto"
    """Where scenarios come from: a name (auto, exact, observed, particles, tempered, inverted, nuts, prior), the folder
    of a trained source, `corrected:` and that folder, or a function of the model that returns a source."""
    steps: tuple[int, ...] = ()
    """The values of t of p(U | h_t); all of the episode by default."""
    episodes: int = 500
    """Simulated, for each t."""
    draws: int = 63
    """Of each episode's scenario."""
    discount: float = 1.0
    """Of the returns."""

    @cached_property
    def world(self) -> POMDP:
        """The model, loaded."""
        return load_model(self.model)

    @cached_property
    def choice(self) -> Choice:
        """The source, and why it is that one."""
        return chosen(self.world, self.scenarios)

    def calibrate(self, key: Array, advance: Advance | None = None) -> Calibration:
        """What is found. Consumes `key`."""
        policies = {name.rpartition(":")[2]: find_policy(name, self.world.action_space) for name in self.policies}
        return calibrate(
            key,
            self.choice.source,
            self.world,
            policies or {"any action": AnyAction.of(self.world)},
            episodes=self.episodes,
            draws=self.draws,
            steps=self.steps,
            discount=self.discount,
            advance=advance,
        )
