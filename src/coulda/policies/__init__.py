"""Policies π(a | h): they see observations, actions and rewards, never the state."""

from coulda.policies.basic import Mixture, Noisy, Tabular, Uniform
from coulda.policies.trainable import Feedforward, LinearGaussian, Recurrent

__all__ = [
    "Feedforward",
    "LinearGaussian",
    "Mixture",
    "Noisy",
    "Recurrent",
    "Tabular",
    "Uniform",
]
