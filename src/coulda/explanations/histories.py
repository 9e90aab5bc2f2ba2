"""Deciding by what is seen: the best policy of the history with at most k changes, where states are hidden.

One sequence of actions does not listen. A policy of the history does: scenarios that look the same so far are decided
for together, and apart as soon as something different is seen. All beginnings with at most k changes are run on all
scenarios, and from the last step back each set of scenarios with the same history takes the action whose mean return is
best on those of them that are there to choose by. The others, which had no part in that, follow, and their mean return
is the value; where they see what none of the first has seen, nothing is changed. Real numbers hardly ever look the
same, so that this is for observations that are counted.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.explanations.question import Question
from coulda.explanations.search import LoggedEnd, in_chunks
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.pomdp.scenario import at_step
from coulda.scales import unit_of

MOST_COMPARED = 2**26
"""Numbers seen in one scenario that are held against those in another, in all beginnings of a length: the memory that
it takes. Beyond it no policy is looked for."""


class Layer(NamedTuple):
    """All n beginnings of t decisions, in M scenarios, with each of B ways to go on; the first is what was done."""

    made: np.ndarray
    """Changes so far, `[n]`."""
    alike: np.ndarray
    """Which scenarios have the same history, `[n, M, M]`."""
    reward: np.ndarray
    """`[n, B, M]`."""
    child: np.ndarray
    """The place of each continuation in the next layer, `[n, B]`; -1 where it has too many changes."""


def by_history(
    model: POMDP, episode: Episode, scenarios: Scenario, question: Question, steps: int, chosen: int
) -> np.ndarray | None:
    """Returns of the best policy of the history with at most 0, 1, … k changes on each of the scenarios, `[C, M]`.

    The first `chosen` scenarios `[M, ...]` are those to choose by. None where observations are real numbers, or where
    there are too many beginnings.
    """
    seen = jax.tree.leaves(jax.tree.map(lambda leaf: np.asarray(leaf)[0], episode.observation))
    pairs = jax.tree.leaves(scenarios.initial)[0].shape[0] ** 2
    compared = _beginnings(model, question) * pairs * sum(leaf.size for leaf in seen)
    if any(np.issubdtype(leaf.dtype, np.inexact) for leaf in seen) or compared > MOST_COMPARED:
        return None
    layers = _layers(model, episode, scenarios, question, steps)
    return np.stack([_decided(layers, question.cost, k, chosen) for k in range(question.changes + 1)])


def _beginnings(model: POMDP, question: Question) -> int:
    """At most so many sequences have at most k changes, in an episode of any length."""
    free, others = int(np.asarray(question.free(model.horizon)).sum()), len(question.candidates(model))
    return sum(math.comb(free, made) * others**made for made in range(question.changes + 1))


def _layers(model: POMDP, episode: Episode, scenarios: Scenario, question: Question, steps: int) -> list[Layer]:
    """All beginnings, step by step."""
    candidates, free = np.asarray(question.candidates(model)), np.asarray(question.free(model.horizon))
    length, logged = int(np.asarray(episode.live).sum()), np.asarray(episode.action)
    end = LoggedEnd(jnp.int32(length), question.afterwards, question.discount)
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[None], jax.vmap(model.initial)(scenarios.initial))
    size = jax.tree.leaves(scenarios.initial)[0].shape[0]
    made, alike, layers = np.zeros(1, int), np.ones((1, size, size), bool), []
    for t in range(steps):
        others = candidates[_differ(candidates, logged[t]) & free[t] & (t < length)]
        actions = jnp.asarray(np.concatenate([logged[t][None].astype(candidates.dtype), others]))
        go_on = lambda states, t=t, actions=actions: _continued(model, scenarios, end, jnp.int32(t), actions, states)
        (moved, seen), reward = in_chunks(go_on, state, len(made))
        alike = alike & _equal(seen)
        number = made[:, None] + (np.arange(len(actions)) > 0)[None]
        possible = number <= question.changes
        child = np.where(possible, np.cumsum(possible).reshape(possible.shape) - 1, -1)
        layers.append(Layer(made, alike, reward, child))
        state = jax.tree.map(lambda leaf, possible=possible: leaf[possible], moved)
        made, alike = number[possible], alike[np.nonzero(possible)[0]]
    return layers


def _differ(candidates: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Which candidates would be a change, `[A]`."""
    return (candidates != action).reshape(len(candidates), -1).any(1)


@eqx.filter_jit
def _continued(
    model: POMDP, scenarios: Scenario, end: LoggedEnd, t: Array, actions: Array, states: Any
) -> tuple[tuple[Any, Any], Array]:
    """States `[n, B, M, ...]` after each action and what is seen before it `[n, M, ...]`; rewards `[n, B, M]`."""

    def one(action: Array, state: Any, u: Scenario) -> tuple[Any, Array]:
        moved, _, reward, _ = end.move(model, state, u, t, action)
        return moved, reward

    def every(state: Any) -> tuple[tuple[Any, Any], Array]:
        moved, reward = jax.vmap(lambda action: jax.vmap(lambda s, u: one(action, s, u))(state, scenarios))(actions)
        seen = jax.vmap(lambda s, u: model.observe(s, at_step(u.observation, t)))(state, scenarios)
        return (moved, seen), reward

    return jax.vmap(every)(states)


def _equal(seen: Any) -> np.ndarray:
    """Which of the scenarios show the same, `[n, M, M]`."""
    flat = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(seen)]
    return np.all([(leaf[:, :, None] == leaf[:, None]).all(-1) for leaf in flat], axis=0)


def _decided(layers: list[Layer], cost: float, most: int, chosen: int) -> np.ndarray:
    """The return on each scenario `[M]` of the policy that is best on the first `chosen` of them."""
    value = np.zeros((1, layers[0].alike.shape[1]))
    unit = unit_of(np.concatenate([layer.reward.ravel() for layer in layers]))
    for t in range(len(layers) - 1, -1, -1):
        layer = layers[t]
        later = value[layer.child] if t < len(layers) - 1 else 0.0
        changed = np.arange(layer.child.shape[1]) > 0
        worth = layer.reward - cost * changed[None, :, None] + later
        possible = (layer.child >= 0) & (layer.made[:, None] + changed[None] <= most)
        total = np.einsum("nbm,nmj->nbj", worth[:, :, :chosen], layer.alike[:, :chosen].astype(float))
        # A tie, to rounding, changes nothing; nor does what none of those to choose by has seen.
        total[:, 1:] -= 1e-6 * (unit + np.abs(total[:, :1]))
        best = np.where(possible[:, :, None], total, -np.inf).argmax(1)
        first = layer.alike.argmax(2)  # one decision for all with the same history
        best = np.take_along_axis(best, first, axis=1)
        value = np.take_along_axis(worth, best[:, None], axis=1)[:, 0]
    return value[0]
