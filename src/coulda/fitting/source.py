"""`CrossFitted`: p(U | h_t) of a fitted vector model, each episode's noise from the member that has never seen it."""

import jax
import jax.numpy as jnp
from jax import Array

from coulda.fitting.folds import Folds
from coulda.fitting.vectors import FittedVectors
from coulda.hindsight import ScenarioSource
from coulda.hindsight.source import ALL_STEPS, fresh, history_length, where_known
from coulda.pomdp import Episode, Scenario


class CrossFitted(ScenarioSource):
    """Draws of p(U | h_t) under the member that has not seen the episode, which is part of the scenario.

    Of what comes after h_t it uses one thing: which episode of the log this is, so as not to take a member that knows
    it. The noise of actions is drawn afresh.
    """

    model: FittedVectors
    folds: Folds
    steps: Array

    def __init__(self, model: FittedVectors, folds: Folds):
        self.model, self.folds, self.steps = model, folds, jnp.int32(ALL_STEPS)

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        noise, member = fresh(key, self.model), self.folds.of(episode)
        seen = episode.observation
        last = jnp.arange(self.model.horizon) == episode.length - 1
        # At the horizon everything ends, which says nothing of chance; and so does a log that was cut off.
        ended = last & (jnp.arange(self.model.horizon) < self.model.horizon - 1) & ~self.folds.was_cut(episode)
        steps = (seen[1:], episode.reward, ended)
        infer = lambda s, a, step, u: self.model.transition_posterior(member, s, a, step, u)
        transition = jax.vmap(infer)(seen[:-1], episode.action, steps, noise.transition)
        length = history_length(episode, self.steps)
        known = jnp.arange(self.model.horizon) + 1 < length
        first = {"first": seen[0], "member": member.astype(noise.initial["member"].dtype)}
        return Scenario(
            initial=where_known(self.steps > 0, first, noise.initial),
            transition=where_known(known, transition, noise.transition),
            observation=noise.observation,
            action=noise.action,
        )
