"""The contextual bandit of Figure 1, left: Alice chooses a company, and learns what it was like."""

import numpy as np
from numpy.typing import ArrayLike

from coulda.environments.tabular import TabularPOMDP
from coulda.errors import CouldaError


def contextual_bandit(
    context: ArrayLike, outcome: ArrayLike, reward: ArrayLike, *, reparameterization: str
) -> TabularPOMDP:
    """A POMDP of one step: a context c is seen, an action is chosen, and an outcome O = f_o(a, c, U_o) follows.

    Observations are the contexts 0 … C-1 and then the outcomes C … C+K-1. The same U_o gives each action's
    outcome, so that `reparameterization` says how the companies' fortunes go together.

    Args:
        context: P(c), `[C]`.
        outcome: P(o | c, a), `[C, A, K]`.
        reward: the reward of each outcome, `[K]`.
        reparameterization: "gumbel_max" or "inverse_cdf".

    >>> alice = contextual_bandit([0.5, 0.5], [[[0.2, 0.8], [0.6, 0.4]], [[0.7, 0.3], [0.5, 0.5]]], [0.0, 1.0],
    ...                           reparameterization="inverse_cdf")
    >>> alice.horizon, alice.observation_space, alice.action_space
    (1, Discrete(4), Discrete(2))
    """
    outcome, context = np.asarray(outcome, float), np.asarray(context, float)
    if outcome.ndim != 3 or context.shape != outcome.shape[:1]:
        raise CouldaError(f"context must be [C] and outcome [C, A, K]; got {context.shape} and {outcome.shape}.")
    contexts, actions, outcomes = outcome.shape
    transition = np.zeros((actions, contexts + outcomes, contexts + outcomes))
    transition[:, :contexts, contexts:] = outcome.swapaxes(0, 1)
    transition[:, range(contexts, contexts + outcomes), range(contexts, contexts + outcomes)] = 1
    return TabularPOMDP(
        initial=np.concatenate([context, np.zeros(outcomes)]),
        transition=transition,
        observation=np.eye(contexts + outcomes),
        reward=np.concatenate([np.zeros(contexts), np.asarray(reward, float)]),
        horizon=1,
        reparameterization=reparameterization,
        terminal=np.arange(contexts + outcomes) >= contexts,
    )
