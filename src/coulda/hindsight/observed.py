"""`ObservedStates`: p(U | h_t) where the state is seen, each noise from its own pair of states.

"As the states are fully observed, the inference step in the CFI procedure simplifies: we can infer the noise sources
from pairs of observed, true states" (section 5). GPS, SVG and the model of Abbeel et al. (2006) share it.
"""

import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.source import ALL_STEPS, ScenarioSource, action_noise, fresh, history_length, where_known
from coulda.pomdp import Episode, Policy, Scenario
from coulda.pomdp.observed import ObservedPOMDP


class ObservedStates(ScenarioSource):
    """Draws of p(U | h_t) under a model whose state is seen.

    Args:
        model: an `ObservedPOMDP`.
        behavior: who acted. With it the noise of its actions is inferred too, so that replaying the episode returns
            it; without it that noise is drawn afresh (Corollary 2).
    """

    model: ObservedPOMDP
    behavior: Policy | None
    steps: Array

    def __init__(self, model: ObservedPOMDP, behavior: Policy | None = None):
        if not isinstance(model, ObservedPOMDP):
            raise CouldaError(f"ObservedStates needs a model whose state is seen; {type(model).__name__} is none.")
        self.model, self.behavior, self.steps = model, behavior, jnp.int32(ALL_STEPS)

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        noise, states = fresh(key, self.model), episode.observation
        before, after = (jax.tree.map(lambda leaf, s=s: leaf[s], states) for s in (slice(-1), slice(1, None)))
        known = jnp.arange(self.model.horizon) + 1 < history_length(episode, self.steps)
        transition = jax.vmap(self.model.transition_posterior)(before, episode.action, after, noise.transition)
        first = self.model.initial_posterior(jax.tree.map(lambda leaf: leaf[0], states), noise.initial)
        action = noise.action
        if self.behavior is not None:
            action = action_noise(self.model, self.behavior, states, episode, action)
        return Scenario(
            initial=where_known(self.steps > 0, first, noise.initial),
            transition=where_known(known, transition, noise.transition),
            observation=noise.observation,
            action=where_known(known, action, noise.action),
        )
