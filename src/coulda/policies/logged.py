"""A policy of which only its probabilities along one log are known, because somebody else computed them."""

from typing import Any, NoReturn

import gymnasium
import numpy as np

from coulda.errors import CouldaError
from coulda.pomdp import Policy

COLUMN = "column:"
"""On the command line, before the name of a table's column in the place of a policy's."""


class LoggedPolicy(Policy):
    """π(a_t | h_t) at the steps of one log, and nowhere else.

    | what is known               | enough for                                          |
    |-----------------------------|-----------------------------------------------------|
    | of the actions taken        | IS, WIS, PDIS, WPDIS, CIS                           |
    | of every action (discrete)  | these, DR, WDR and FQE                              |

    What runs a policy elsewhere (MB-PE, CF-PE, on-policy, explanations, search) needs the policy itself.
    """

    taken: np.ndarray
    """log π(a_t | h_t), `[ΣT_i]`, in the order of the log's steps; of continuous actions a density."""
    every: np.ndarray | None = None
    """π(a | h_t) of each discrete action, `[Σ(T_i + 1), A]`, also after the last observation of each episode; NaN there
    where it is not known, and not needed."""

    def __call__(self, carry: Any, observation: Any) -> NoReturn:  # noqa: ARG002
        """Refused."""
        raise CouldaError(
            "only the probabilities along the log are known of this policy, and it was asked elsewhere; give the "
            "policy itself."
        )

    def check_spaces(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> int | None:  # noqa: ARG002
        """The columns must be as many as the actions."""
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            return None
        if (largest := float(np.exp(self.taken.max()))) > 1 + 1e-4:
            raise CouldaError(f"it says {largest:.6g} of a step, and the probability of an action is at most 1.")
        if self.every is None:
            return None
        if self.every.shape[1] != int(action_space.n):
            raise CouldaError(f"it has {self.every.shape[1]} columns, and there are {int(action_space.n)} actions.")
        return self.every.shape[1]
