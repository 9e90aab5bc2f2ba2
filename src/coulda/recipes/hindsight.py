"""What `coulda train-hindsight` is asked, as names and numbers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax

from coulda.environments.gym import load_model
from coulda.hindsight import TrainedHindsight, train_hindsight
from coulda.policies import AnyAction, find_policy
from coulda.pomdp import POMDP, Policy


@dataclass(frozen=True, kw_only=True)
class HindsightRecipe:
    """How a network learns p(U | h_t) of a simulator.

    Objects are named `package.module:name` or `file.py:name`: an object, or a function that makes it.
    """

    model: str
    """The simulator whose noise is to be inferred: a POMDP, or a Gymnasium environment."""
    policy: tuple[str, ...] = ()
    """Who acts in the simulated episodes, beside any action, in equal shares: best those who logged, and those that are
    to be evaluated."""
    simulations: int = 10_000
    """The number of simulated episodes."""
    steps: int | None = None
    """The t of h_t, if one is enough; by default one network serves every t."""
    width: int = 64
    """The width of the networks."""
    components: int = 8
    """The components of each mixture of Gaussians."""
    passes: int | None = None
    """The most passes over the pairs; by default some 9,000 updates. Held-out pairs may stop it before."""
    rewards: bool | None = None
    """Whether rewards are evidence; by default where they take separate values, as everywhere."""
    seed: int = 0
    """The seed of everything that is drawn."""

    @cached_property
    def simulator(self) -> POMDP:
        """The simulator, loaded."""
        return load_model(self.model)

    def train(self, folder: Path | None = None, progress: bool = True) -> TrainedHindsight:
        """Simulate and learn; an interrupted training goes on in its folder."""
        simulator = self.simulator
        acting: dict[str, Policy] = {"any action": AnyAction(simulator.action_space, simulator.action_mechanism)}
        acting |= {name.rpartition(":")[2]: find_policy(name, simulator.action_space) for name in self.policy}
        return train_hindsight(
            jax.random.key(self.seed),
            simulator,
            acting,
            simulations=self.simulations,
            steps=self.steps,
            width=self.width,
            components=self.components,
            passes=self.passes,
            rewards=self.rewards,
            folder=folder,
            progress=progress,
        )
