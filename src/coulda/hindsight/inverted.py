"""`Inverted`: p(U | h_t) of a program that can only be run, exactly, by going through what it drew."""

import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.source import ALL_STEPS, FINE, IMPOSSIBLE, Inference, ScenarioSource, fresh, other_key
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.pomdp.black_box import BlackBoxPOMDP


class Inverted(ScenarioSource):
    """Draws of p(U | h_t) under a simulator whose chance takes separate values, or can be solved for.

    Such as a choice among a few at each step, or an initial state that is seen. It refuses others. The noise of actions
    is drawn afresh (Corollary 2).

    Args:
        model: a `GymSimulator`, or another `BlackBoxPOMDP` with `invert`.
    """

    model: BlackBoxPOMDP
    steps: Array

    def __init__(self, model: POMDP):
        if not isinstance(model, BlackBoxPOMDP):
            raise CouldaError(f"Inverted needs a simulator on a tape; {type(model).__name__} is none.")
        model.check_invertible()
        self.model, self.steps = model, jnp.int32(ALL_STEPS)

    @property
    def is_exact(self) -> bool:
        """Yes, but an episode may have no explanation at all."""
        return False

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        found, _ = self._moved(key, key[None], episode)
        return jax.tree.map(lambda leaf: leaf[0], found)

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """All draws from one pass over the episode."""
        return self._moved(key, jax.random.split(key, count), episode)

    def _moved(self, key: Array, keys: Array, episode: Episode) -> tuple[Scenario, Inference]:
        noise = jax.vmap(lambda one: fresh(one, self.model))(keys)
        dice = jax.random.uniform(other_key(key), (keys.shape[0] * (self.model.horizon + 1),))
        found = self.model.invert(episode, self.steps, noise, dice.reshape(keys.shape[0], -1))
        exact, failed = Inference.exact(), found.failed >= 0
        inference = Inference(
            jnp.where(failed, -jnp.inf, found.log_evidence),
            exact.effective,
            exact.gap,
            exact.r_hat,
            jnp.where(failed, IMPOSSIBLE, FINE).astype(jnp.int32),
            found.failed,
        )
        return Scenario(found.initial, found.transition, noise.observation, noise.action), inference
