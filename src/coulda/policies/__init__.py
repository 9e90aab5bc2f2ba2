"""Policies π(a | h): they see observations, actions and rewards, never the state."""

from coulda.policies.actor_critic import ActorCritic
from coulda.policies.basic import AnyAction, Mixture, NoisyPolicy, TabularPolicy, UniformPolicy
from coulda.policies.conv_lstm import ConvLSTMPolicy, load_policy, paper_policy, save_policy
from coulda.policies.trainable import (
    FeedforwardPolicy,
    LinearGaussianPolicy,
    RecurrentPolicy,
    load_parameters,
    save_parameters,
)

__all__ = [
    "ActorCritic",
    "AnyAction",
    "ConvLSTMPolicy",
    "FeedforwardPolicy",
    "LinearGaussianPolicy",
    "Mixture",
    "NoisyPolicy",
    "RecurrentPolicy",
    "TabularPolicy",
    "UniformPolicy",
    "load_parameters",
    "load_policy",
    "paper_policy",
    "save_parameters",
    "save_policy",
]
