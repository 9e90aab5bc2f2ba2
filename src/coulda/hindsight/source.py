"""`ScenarioSource`: where the scenarios come from, the one argument in which the paper's methods differ.

| source           | p(U | …)                   | evaluation | search   |
|------------------|----------------------------|------------|----------|
| `Prior(model)`   | nothing                    | MB-PE      | MB-PS    |
| any, `.given(1)` | h_1: the first observation | —          | GPS-like |
| any, `.given(t)` | h_t                        | CF-PE      | CF-GPS   |

A source of your own is a subclass with `infer`; `evaluate` and `search` ask nothing else of it.
"""

import abc
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.pomdp import POMDP, Actor, Episode, Scenario
from coulda.pomdp.actors import choose
from coulda.pomdp.rollout import walk
from coulda.scales import unit_of

ALL_STEPS = 2**30
"""More steps than any episode has: condition on all of it."""


FINE, IMPOSSIBLE, NOT_A_NUMBER, FAR = 0, 1, 2, 3
"""Why an inference failed: not at all; nothing that was tried can have made what was seen; a density is NaN or +inf;
what was seen lies far from all that a network learned from, or is missing."""


class Inference(eqx.Module):
    """How well the scenarios of one episode could be inferred: what a source knows of its own answer."""

    log_evidence: Array
    """Log p(h_t) under the model; NaN where the source does not know it."""
    effective: Array
    """How many different scenarios the answer rests on, about; infinite where it is exact."""
    gap: Array
    """Between the log evidence of two independent halves of the work; 0 where it is exact."""
    r_hat: Array
    """Of Markov chains, how much wider they are together than each; 1 where there are none."""
    reason: Array
    """`FINE`, or why it failed."""
    step: Array
    """The first step at which it failed; -1 where it did not."""

    @staticmethod
    def exact(log_evidence: Array | float = jnp.nan) -> "Inference":
        """Of a source that makes no error."""
        none, one, fine = jnp.zeros(()), jnp.ones(()), jnp.int32(FINE)
        return Inference(jnp.asarray(log_evidence, float), jnp.asarray(jnp.inf), none, one, fine, jnp.int32(-1))


class ScenarioSource(eqx.Module):
    """p(U | h_t): the distribution of an episode's scenario, given its first t steps.

    h_t = (o_1, a_1, r_1, …, a_{t-1}, r_{t-1}, o_t) as in the paper: `steps=0` is nothing, `steps=1` the first
    observation, and T + 1 or more the whole episode. Nothing of the episode past h_t may have any effect.

    Write `infer` for one episode; the caller vmaps it over keys and episodes, best inside `batched`:

        batched(lambda pair: rollout(model, policy, source.infer(*pair)), (keys, episodes))

    A scenario is always complete, ready for `rollout`: noise that h_t says nothing about is drawn afresh. Where
    the noise of actions is not wanted from the posterior, `noise.merge` or `noise.mix` puts fresh noise in its
    place (Corollary 2). Sources over the same model that take their fresh noise from `fresh(key, model)` agree
    exactly with `Prior(model)` for the same key at `steps=0`.
    """

    @property
    def infers_observation_noise(self) -> bool:
        """Whether U_o comes from the posterior, so that replaying an episode gives its observations; or is fresh."""
        return True

    @property
    def is_exact(self) -> bool:
        """Whether its draws are those of the posterior, so that there is nothing to tell of how well it inferred."""
        return True

    @property
    def weighs_rewards(self) -> bool:
        """Whether rewards are evidence, so that replaying an episode gives them back."""
        return True

    @property
    def answers_many(self) -> bool:
        """Whether many draws of `infer_many` cost little more than one, and are independent of `fresh`."""
        return False

    knows_the_prior: ClassVar[bool] = True
    """Whether `given(0)` is the model's own prior; what a network draws of nothing is not."""

    steps: eqx.AbstractVar[Array]
    """t, an int32 scalar, not static: all values of t share one compiled program."""

    @abc.abstractmethod
    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t). Consumes `key`."""

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """So many draws of p(U | h_t), `[count, ...]`, and how well they could be inferred. Consumes `key`.

        By default each is a draw of `infer` with a key of its own, `split(key, count)`. A source that answers many from
        one run writes this, and keeps what h_t says nothing about from those same keys.
        """
        return jax.vmap(lambda one: self.infer(one, episode))(jax.random.split(key, count)), Inference.exact()

    def given(self, steps: int | Array) -> Self:
        """This source, conditioned on h_t with t = `steps`."""
        if isinstance(steps, int) and steps < 0:
            raise CouldaError(f"a source is conditioned on 0 or more steps; got {steps}.")
        return eqx.tree_at(lambda source: source.steps, self, jnp.asarray(steps, jnp.int32))


class Prior(ScenarioSource):
    """p(U), whatever was logged: the scenarios of MB-PE and MB-PS."""

    model: POMDP
    steps: Array

    def __init__(self, model: POMDP):
        self.model, self.steps = model, jnp.int32(0)

    def infer(self, key: Array, episode: Episode) -> Scenario:  # noqa: ARG002
        """A draw of the model's prior."""
        return fresh(key, self.model)

    def given(self, steps: int | Array) -> Self:
        """The prior is conditioned on nothing, so only `steps=0` makes sense."""
        if not isinstance(steps, int) or steps != 0:
            raise CouldaError(f"Prior is conditioned on nothing; steps={steps} needs a source that infers.")
        return self


class Choice(NamedTuple):
    """A source, and why it is that one."""

    source: ScenarioSource
    why: str


def asked(source: ScenarioSource) -> Choice:
    """A source of one's own."""
    return Choice(source, f"{type(source).__name__}, as asked")


def fresh(key: Array, model: POMDP) -> Scenario:
    """A draw of the model's prior, from the part of `key` that every source uses for it."""
    return model.scenario_prior.sample(key)


def other_key(key: Array) -> Array:
    """A key for a source's other draws, independent of `fresh(key, model)`."""
    return jax.random.fold_in(key, 0x5EED)


def history_length(episode: Episode, steps: Array) -> Array:
    """How many observations h_t has: t, or one more than the actions taken where the episode ended before."""
    return jnp.minimum(steps, episode.length + 1)


def reward_unit(episode: Episode, length: Array) -> Array:
    """What rewards near 0 are compared with, as far as h_t of `length` observations tells."""
    return unit_of(jnp.where(jnp.arange(len(episode.reward)) + 1 < length, episode.reward, 0.0))


def informed(source: ScenarioSource, repeated: bool, episode: Episode) -> ScenarioSource:
    """The source without the observation after the last action, where a repeated one stands in its place."""
    if not repeated or isinstance(source, Prior):
        return source
    return source.given(jnp.minimum(source.steps, episode.length))


def where_known(known: Array, inferred: Any, otherwise: Any) -> Any:
    """`inferred` where `known` (`[T]` or a scalar), leaf by leaf over leading axes."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(jnp.reshape(known, known.shape + (1,) * (a.ndim - known.ndim)), a, b)

    return jax.tree.map(pick, inferred, otherwise)


def action_noise(model: POMDP, actor: Actor, states: Any, episode: Episode, noise: Any) -> Any:
    """The posterior of U_a `[T, ...]`, given the history and, for a planner, the states `[T + 1, ...]`."""

    def ask(carry: Any, observation: Any, action: Any, state: Any, u: Any) -> tuple[Any, Any]:
        carry, distribution = choose(actor, carry, state, observation)
        return carry, model.action_mechanism.posterior(distribution, action, u)

    return walk(actor, episode, ask, jax.tree.map(lambda leaf: leaf[:-1], states), noise)
