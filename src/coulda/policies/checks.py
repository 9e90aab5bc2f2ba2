"""Whether a policy can act in a world."""

import gymnasium

from coulda.errors import CouldaError
from coulda.policies.logged import LoggedPolicy
from coulda.pomdp import POMDP, Policy


def check_policy_fits(policy: Policy, world: POMDP) -> None:
    """Refuse a policy that cannot be run in a model or an environment."""
    check_policy_acts(policy, world.observation_space, world.action_space, type(world).__name__)


def check_policy_acts(policy: Policy, seen: gymnasium.Space, actions: gymnasium.Space, where: str) -> None:
    """Refuse a policy that cannot be run where this is seen and can be done; or where it will be, once it is made."""
    if isinstance(policy, LoggedPolicy):
        raise CouldaError(
            f"it is known along the log alone, and {where} asks it about other histories. Give the policy itself, or "
            "leave out the model and the environment."
        )
    known = policy.check_spaces(seen, actions)
    if isinstance(actions, gymnasium.spaces.Discrete) and known != int(actions.n):
        raise CouldaError(f"{type(policy).__name__} knows {known} actions, but there are {int(actions.n)} in {where}.")
