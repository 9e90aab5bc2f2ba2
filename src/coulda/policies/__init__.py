"""Policies π(a | h): they see observations, actions and rewards, never the state."""

from coulda.policies.basic import Mixture, Noisy, Tabular, Uniform

__all__ = ["Mixture", "Noisy", "Tabular", "Uniform"]
