"""Whether a policy can act in a world."""

import gymnasium

from coulda.errors import CouldaError
from coulda.policies.logged import LoggedPolicy
from coulda.pomdp import POMDP, Policy


def check_policy_fits(policy: Policy, world: POMDP) -> None:
    """Refuse a policy that cannot be run in a model or an environment."""
    if isinstance(policy, LoggedPolicy):
        raise CouldaError(
            f"it is known along the log alone, and {type(world).__name__} asks it about other histories. Give the "
            "policy itself, or leave out the model and the environment."
        )
    known, actions = policy.check_spaces(world.observation_space, world.action_space), world.action_space
    if isinstance(actions, gymnasium.spaces.Discrete) and known != int(actions.n):
        name = type(world).__name__
        raise CouldaError(f"{type(policy).__name__} knows {known} actions, but there are {int(actions.n)} in {name}.")
