"""Stochastic value gradients as a special case (section 5; Heess et al., 2015).

The noise of an episode is inferred and frozen, that of its actions included; then the return of π_θ is a deterministic,
differentiable function of θ, and its gradient 2·dim(θ) counterfactual policy evaluations at once.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp import POMDP, Actor, Policy, Scenario, rollout


class ValueGradientInfo(eqx.Module):
    """What a person wants to know of one value gradient; scalars."""

    model_return: Array
    """Mean return of π in the scenarios, before the update."""


class ValueGradient(eqx.Module):
    """Policy improvement by ∂G/∂θ through the model, with all noise frozen.

    The source should know who acted, `ObservedStates(model, behavior=policy)`, so that action noise is inferred too.
    There is no planner: π itself acts.
    """

    def ascent(
        self,
        key: Array,  # noqa: ARG002 (all noise is in the scenarios)
        model: POMDP,
        policy: Policy,  # noqa: ARG002
        planner: Callable[[Array, Scenario], Actor],  # noqa: ARG002
        scenarios: Scenario,
        discount: float = 1.0,
    ) -> Callable[[Policy, Array], tuple[Policy, ValueGradientInfo]]:
        """π, and noise that is not needed -> the mean of ∂G/∂θ over scenarios `[S, ...]`."""

        def mean_return(policy: Policy) -> Array:
            returns = jax.vmap(lambda u: rollout(model, policy, u).episode.discounted_return(discount))(scenarios)
            return jnp.mean(returns)

        def ascend(policy: Policy, noise: Array) -> tuple[Policy, ValueGradientInfo]:  # noqa: ARG001
            value, gradient = eqx.filter_value_and_grad(mean_return)(policy)
            return gradient, ValueGradientInfo(value)

        return ascend
