"""`ObservedStates`: p(U | h_t) where the state is seen, each noise from its own pair of states.

"As the states are fully observed, the inference step in the CFI procedure simplifies: we can infer the noise sources
from pairs of observed, true states" (section 5). GPS, SVG and the model of Abbeel et al. (2006) share it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from coulda.abduction import affine_in, invert_affine
from coulda.errors import CouldaError
from coulda.hindsight.source import ALL_STEPS, ScenarioSource, action_noise, fresh, history_length, where_known
from coulda.noise import has
from coulda.pomdp import POMDP, Episode, Policy, Scenario
from coulda.pomdp.observed import ObservedPOMDP
from coulda.pomdp.observing import state_shapes


class ObservedStates(ScenarioSource):
    """Draws of p(U | h_t) under a model whose state is seen.

    Args:
        model: an `ObservedPOMDP`; or any POMDP that observes its state, a single array, as it is, and whose first state
            and transitions are affine in their noise: then they are solved for it.
        behavior: who acted. With it the noise of its actions is inferred too, so that replaying the episode returns
            it; without it that noise is drawn afresh (Corollary 2).
    """

    model: POMDP
    behavior: Policy | None
    steps: Array

    def __init__(self, model: POMDP, behavior: Policy | None = None):
        if not isinstance(model, ObservedPOMDP) and (reason := _not_seen(model)):
            raise CouldaError(f"ObservedStates needs a model whose state is seen; {reason}.")
        self.model, self.behavior, self.steps = model, behavior, jnp.int32(ALL_STEPS)

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        noise, states = fresh(key, self.model), episode.observation
        before, after = (jax.tree.map(lambda leaf, s=s: leaf[s], states) for s in (slice(-1), slice(1, None)))
        known = jnp.arange(self.model.horizon) + 1 < history_length(episode, self.steps)
        initial_posterior, transition_posterior = _posteriors(self.model)
        transition = jax.vmap(transition_posterior)(before, episode.action, after, noise.transition)
        first = initial_posterior(jax.tree.map(lambda leaf: leaf[0], states), noise.initial)
        action = noise.action
        if self.behavior is not None:
            action = action_noise(self.model, self.behavior, states, episode, action)
        return Scenario(
            initial=where_known(self.steps > 0, first, noise.initial),
            transition=where_known(known, transition, noise.transition),
            observation=noise.observation,
            action=where_known(known, action, noise.action),
        )


def _posteriors(model: POMDP) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Of U_s1 given s_1, and of U_s given two states: the model's own, or solved for."""
    if isinstance(model, ObservedPOMDP):
        return model.initial_posterior, model.transition_posterior

    def initial(state: Array, fresh: Array) -> Array:
        return invert_affine(model.initial, model.initial_noise, state, fresh)[0]

    def transition(state: Array, action: Any, next_state: Array, fresh: Array) -> Array:
        step = lambda u: model.transition(state, action, u)
        return invert_affine(step, model.transition_noise, next_state, fresh)[0]

    return initial, transition


def _not_seen(model: POMDP) -> str | None:
    """Why noise cannot be solved for from pairs of observed states, or None where it can."""
    name, state, key = type(model).__name__, state_shapes(model), jax.random.key(0)
    noises = {"initial": model.initial_noise, "transition": model.transition_noise}
    drawn = {which: jax.eval_shape(noise.sample, key) for which, noise in noises.items()}
    if not isinstance(state, jax.ShapeDtypeStruct) or not jnp.issubdtype(state.dtype, jnp.inexact):
        return f"the state of {name} is not one array of numbers"
    looked = jax.make_jaxpr(model.observe)(state, jax.eval_shape(model.observation_noise.sample, key)).jaxpr
    if looked.outvars != looked.invars[:1]:
        return f"{name} does not observe its state as it is"
    action = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, model.action_space.sample()))
    kernels = {
        "initial": lambda u, _: model.initial(u),
        "transition": lambda u, given: model.transition(*given, u),
    }
    for which, kernel in kernels.items():
        u = drawn[which]
        fits = isinstance(u, jax.ShapeDtypeStruct) and u.size == state.size and has(noises[which], "log_prob")
        if not fits or not affine_in(kernel, u, (state, action)):
            return f"`{which}` of {name} is not affine in noise of the size of the state"
    return None
