"""Policies π(a | h): they see observations, actions and rewards, never the state."""

from coulda.policies.basic import Mixture, NoisyPolicy, TabularPolicy, UniformPolicy
from coulda.policies.trainable import FeedforwardPolicy, LinearGaussianPolicy, RecurrentPolicy

__all__ = [
    "FeedforwardPolicy",
    "LinearGaussianPolicy",
    "Mixture",
    "NoisyPolicy",
    "RecurrentPolicy",
    "TabularPolicy",
    "UniformPolicy",
]
