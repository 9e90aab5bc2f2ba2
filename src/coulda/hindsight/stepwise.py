"""`Stepwise`: p(U | h_t) where a few first states and a few outcomes of each step can be gone through one by one."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.source import (
    ALL_STEPS,
    FINE,
    IMPOSSIBLE,
    Inference,
    ScenarioSource,
    fresh,
    history_length,
    other_key,
)
from coulda.mechanisms import category_at, uniform_given_category
from coulda.noise import has
from coulda.pomdp import POMDP, Episode, Scenario


class Stepwise(ScenarioSource):
    """Draws of p(U | h_t) under a model whose transitions have a few outcomes by inverse CDF (`Outcomes`).

    From every first state the episode is followed: at each step an outcome is drawn by its probability and that of the
    next observation. That is exact where the observation tells apart those outcomes that are different states, as it
    does where the agent sees itself; what would tell them apart later is not waited for. U_o and U_a are fresh.

    Args:
        model: its U_s1 has atoms, which are enumerated.
    """

    model: POMDP
    steps: Array

    def __init__(self, model: POMDP):
        for what, there in (("outcomes", hasattr(model, "outcomes")), ("atoms", has(model.initial_noise, "atoms"))):
            if not there:
                whose = "the model" if what == "outcomes" else "its initial noise"
                raise CouldaError(f"Stepwise needs a model of few outcomes; {whose} has no `{what}`.")
        self.model, self.steps = model, jnp.int32(ALL_STEPS)

    @property
    def infers_observation_noise(self) -> bool:
        """It is fresh."""
        return False

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        return jax.tree.map(lambda leaf: leaf[0], self.infer_many(key, episode, 1)[0])

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """So many draws, whose first states are weighed once. Consumes `key`."""
        atoms, log_prior = self.model.initial_noise.atoms()
        noise = jax.vmap(lambda one: fresh(one, self.model))(jax.random.split(key, count))
        key_weigh, key_first, key_dice = jax.random.split(other_key(key), 3)
        dice = jax.random.uniform(key_dice, (count, self.model.horizon))
        one_draw = jax.tree.map(lambda leaf: leaf[0], noise.transition), jax.random.uniform(key_weigh, dice.shape[1:])
        evidence = jax.vmap(lambda atom: self._follow(atom, episode, *one_draw)[0])(atoms)
        log_evidence = jax.nn.logsumexp(log_prior + evidence)
        possible = jnp.isfinite(log_evidence)
        weights = jnp.where(possible, log_prior + evidence, log_prior)
        chosen = jax.random.categorical(key_first, weights, shape=(count,))
        first = jax.tree.map(lambda leaf: leaf[chosen], atoms)
        transition = jax.vmap(lambda *given: self._follow(given[0], episode, *given[1:])[1])(
            first, noise.transition, dice
        )
        reason = jnp.where(possible, FINE, IMPOSSIBLE).astype(jnp.int32)
        how = Inference.exact(log_evidence)
        how = Inference(how.log_evidence, how.effective, how.gap, how.r_hat, reason, how.step)
        return Scenario(first, transition, noise.observation, noise.action), how

    def _follow(self, atom: Any, episode: Episode, noise: Array, dice: Array) -> tuple[Array, Array]:
        """Log p(o_1 … o_t | the first state), and a draw of U_s2 … given it, carried from `noise`, both `[T]`."""
        length, first = history_length(episode, self.steps), self.model.initial(atom)
        shown = jax.tree.map(lambda leaf: leaf[1:], episode.observation)
        opening = self.model.observation_log_prob(jax.tree.map(lambda leaf: leaf[0], episode.observation), first)

        def step(carry: tuple[Any, Array], given: Any) -> tuple[tuple[Any, Array], Array]:
            (state, total), (t, action, observation, u, die) = carry, given
            states, chance = self.model.outcomes(state, action)  # pyright: ignore[reportAttributeAccessIssue]
            seen = jax.vmap(lambda s: self.model.observation_log_prob(observation, s))(states)
            joint = jnp.log(chance) + seen
            evidence, known = jax.nn.logsumexp(joint), t + 1 < length
            told = known & jnp.isfinite(evidence)
            outcome = category_at(jnp.where(told, jax.nn.softmax(jnp.where(told, joint, 0.0)), chance), die)
            u = jnp.where(told, uniform_given_category(chance, outcome, u), u)
            following = jax.tree.map(lambda leaf: leaf[category_at(chance, u)], states)
            return (following, total + jnp.where(known, evidence, 0.0)), u

        start = first, jnp.where(length > 0, opening, 0.0)
        steps = jnp.arange(self.model.horizon), episode.action, shown, noise, dice
        (_, log_evidence), transition = jax.lax.scan(step, start, steps)
        return log_evidence, transition
