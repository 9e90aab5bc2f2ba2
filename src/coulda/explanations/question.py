"""`Question`: which decisions may be changed, into what, and at what price. Refused here where it makes no sense."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from numpy.typing import ArrayLike

from coulda.errors import CouldaError
from coulda.evaluation.model_checks import check_log_fits
from coulda.evaluation.reading import Log
from coulda.pomdp import POMDP, Policy
from coulda.pomdp.rollout import check_discount

MOST_MODEL_STEPS = 5_000_000_000
"""A large network takes an hour for these on two cores, a small model minutes."""


@dataclass(frozen=True)
class Question:
    """Had at most k decisions been different, how well could it have gone?"""

    changes: int = 3
    """k: every number of changes up to it is answered."""
    frozen: tuple[int, ...] = ()
    """Steps, from 0, whose decisions may not be changed."""
    actions: ArrayLike | None = None
    """What may be done instead: numbers of discrete actions, all by default; or an array of actions `[A, ...]`."""
    cost: float = 0.0
    """What a change costs, in units of the return."""
    target: float | None = None
    """A return to reach: the least number of changes that does is looked for."""
    afterwards: Policy | None = None
    """Who decides after the logged end, where other decisions put that off: a policy without memory. By default the
    last action is kept."""
    budget: int = 20_000_000
    """How many steps of the model a search may take. Up to it the search is exact; beyond it only the most promising
    ways are followed, and the answer says so."""
    largest_reward: float | None = None
    """What no step can pay more than, where that is known: it bounds what a search that is not exact may miss."""
    discount: float = 1.0
    """γ of the return Σ γ^t r_t, t from 0, in (0, 1]; 1 is none. Costs and the target are in units of that return, and
    rewards of an answer are told as they count in it."""

    def __post_init__(self) -> None:
        if self.changes < 0:
            raise CouldaError(f"changes is {self.changes}; it must be 0 or more")
        if not np.isfinite(self.cost) or self.cost < 0:
            raise CouldaError(f"cost is {self.cost}; a change costs 0 or more")
        check_discount(self.discount)
        if self.target is not None and not np.isfinite(self.target):
            raise CouldaError(f"target is {self.target}; give a return, such as 0.5")
        if not 1 <= self.budget <= MOST_MODEL_STEPS:
            raise CouldaError(
                f"a budget of {self.budget:,} model steps would take hours; give 1 to {MOST_MODEL_STEPS:,}, and have "
                "fewer changes, fewer actions or frozen steps"
            )

    def check(self, model: POMDP, log: Log) -> None:
        """Refuse a log that is not the model's, and what cannot be changed in it."""
        if not len(log):
            raise CouldaError("the log has no episodes")
        check_log_fits(model, log)
        if log.schema.last_observation == "repeated":
            raise CouldaError(
                "the log lacks the observation after each last action, without which the noise of the last step cannot "
                "be known; log it, or leave the last step out"
            )
        if self.changes > log.max_length:
            raise CouldaError(
                f"changes is {self.changes}, but the longest episode has {log.max_length} steps; give at most as many"
            )
        for step in self.frozen:
            if not 0 <= step < model.horizon:
                raise CouldaError(f"frozen step {step} is none of the steps 0 … {model.horizon - 1}")
        self.candidates(model)
        if self.afterwards is not None:
            self.afterwards.check_spaces(model.observation_space, model.action_space)
            if jax.tree.leaves(self.afterwards.initial_carry()):
                name = type(self.afterwards).__name__
                raise CouldaError(f"afterwards is a {name}, which remembers; give a policy without memory")

    def candidates(self, model: POMDP) -> Array:
        """The actions that may be taken instead, `[A, ...]`."""
        space, name = model.action_space, type(model).__name__
        if self.actions is None:
            if not isinstance(space, spaces.Discrete):
                raise CouldaError(f"actions of {name} are {space}; say with actions= which of them to try")
            return jnp.arange(int(space.n), dtype=jnp.int32)
        found = np.asarray(self.actions)
        if not len(found):
            raise CouldaError("actions is empty; name at least one that may be taken instead")
        for action in found.astype(space.dtype):
            if not space.contains(action):
                raise CouldaError(f"action {action} is outside {space}, the actions of {name}")
        return jnp.asarray(found, jnp.int32 if isinstance(space, spaces.Discrete) else jnp.float32)

    def free(self, horizon: int) -> Array:
        """Whether each decision may be changed, `[T]`."""
        return jnp.asarray(~np.isin(np.arange(horizon), self.frozen))

    def worth(self, horizon: int) -> np.ndarray:
        """γ^t, what a reward of each step counts, `[T]`; never so little that it could not be divided by."""
        return np.maximum(self.discount ** np.arange(horizon), 1e-30)

    def allowed(self, model: POMDP) -> Array:
        """Whether each discrete action may be taken instead, `[A]`."""
        assert isinstance(model.action_space, spaces.Discrete)
        return jnp.asarray(np.isin(np.arange(int(model.action_space.n)), np.asarray(self.candidates(model))))
