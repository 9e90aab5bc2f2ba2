"""Two desks with a queue each: who is sent where, when nobody knows how fast they are."""

import numpy as np

from coulda.environments.linear_gaussian import LinearQuadratic


class Queue(LinearQuadratic):
    """Two queues in heavy traffic, so that no desk is ever idle and everything is linear.

    s = (q₁, q₂, v₁, v₂): how much longer than usual each queue is, and how much faster than usual each desk works,
    which is hidden and stays as it is. The action a is how many more people than usual are sent to the first desk
    instead of the second: q₁' = q₁ + a - v₁ + noise, q₂' = q₂ - a - v₂ + noise. The queues' lengths are counted with an
    error, and the reward is -(q₁² + q₂² + a²) / 100.

    Args:
        horizon: T.
        speeds: the mean of (v₁, v₂) over days.
        spread: standard deviation of each desk's speed between days.
        noise: standard deviation of each queue's arrivals in a step.
        count_error: standard deviation of what is counted.
    """

    def __init__(
        self,
        *,
        horizon: int = 12,
        speeds: tuple[float, float] = (0.0, 0.0),
        spread: float = 0.5,
        noise: float = 1.0,
        count_error: float = 1.0,
    ):
        faster = np.eye(4, k=2)
        super().__init__(
            A=np.eye(4) - faster,
            B=[[1.0], [-1.0], [0.0], [0.0]],
            Q=np.diag([0.01, 0.01, 0.0, 0.0]),
            R=[[0.01]],
            horizon=horizon,
            initial_mean=[0.0, 0.0, *speeds],
            initial_scale=np.diag([1.0, 1.0, spread, spread]),
            # A desk's speed has a little noise of its own, so that every noise has a density.
            transition_scale=np.diag([noise, noise, 0.01, 0.01]),
            C=np.eye(2, 4),
            observation_scale=count_error * np.eye(2),
        )
