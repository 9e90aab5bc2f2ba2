"""Policies π(a | h): they see observations, actions and rewards, never the state."""

from coulda.policies.actor_critic import ActorCritic
from coulda.policies.basic import AnyAction, Mixture, NoisyPolicy, TabularPolicy, UniformPolicy
from coulda.policies.conv_lstm import ConvLSTMPolicy, paper_policy
from coulda.policies.export import export_policy, numpy_policy
from coulda.policies.foreign import as_policy, find_policy
from coulda.policies.grids import GridPolicy, load_policy, save_policy
from coulda.policies.host import Host, HostPolicy, HostPolicyError
from coulda.policies.last_seen import LastSeenPolicy
from coulda.policies.logged import LoggedPolicy
from coulda.policies.onnx_files import onnx_policy, write_onnx
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
    "GridPolicy",
    "Host",
    "HostPolicy",
    "HostPolicyError",
    "LastSeenPolicy",
    "LinearGaussianPolicy",
    "LoggedPolicy",
    "Mixture",
    "NoisyPolicy",
    "RecurrentPolicy",
    "TabularPolicy",
    "UniformPolicy",
    "as_policy",
    "export_policy",
    "find_policy",
    "load_parameters",
    "load_policy",
    "numpy_policy",
    "onnx_policy",
    "paper_policy",
    "save_parameters",
    "save_policy",
    "write_onnx",
]
