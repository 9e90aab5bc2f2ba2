"""One episode by its inferred scenarios: chosen on half of them, scored on the other half.

The best sequence for the mean over scenarios that were drawn flatters itself on them; so its value is that on other
ones. Where two draws agree there is nothing to draw: the noise is known, and the search is all there is to it. What the
best sequence for each scenario by itself would return needs knowledge that nobody had: it is called clairvoyant.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation import Returns
from coulda.explanations.answers import Answers
from coulda.explanations.explanation import helps
from coulda.explanations.histories import by_history
from coulda.explanations.question import Question
from coulda.explanations.search import AS_LOGGED, Found, LoggedEnd, Searching
from coulda.hindsight import Exact, ScenarioSource
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Scenario
from coulda.scales import unit_of


def search_episode(
    key: Array,
    model: POMDP,
    episode: Episode,
    source: ScenarioSource,
    question: Question,
    scenarios: int,
    number: int = 0,
) -> Answers:
    """The answer for one padded episode, without the leading axis of `Answers`. Consumes `key`."""
    _check_possible(source, episode, number)
    drawn = draw(source, jax.random.split(key, scenarios), episode)
    known = _agree(drawn)
    chosen, scored = (_some(drawn, s) for s in ((slice(1), slice(1)) if known else _halves(scenarios)))
    paid, length = np.asarray(episode.reward, float), int(np.asarray(episode.live).sum())
    logged = Returns(question.discount).paid(paid).sum()
    replayed, over = ended(model, scored, episode)
    if known and helps(float(np.abs(replayed - paid.sum())), 10 * abs(paid.sum()) * 1e-5, float(unit_of(paid))):
        raise CouldaError(
            f"the model cannot have produced episode {number}: on its inferred noise the logged actions pay "
            f"{replayed:g}, and the log has {paid.sum():g}. Give the model that made the log."
        )
    steps, actions = model.horizon if bool(over) else length, jax.tree.map(np.asarray, episode.action)
    candidates, free = question.candidates(model), np.asarray(question.free(model.horizon))
    make = lambda u, asked: Searching(model, u, actions, candidates, free, asked, length, steps)
    if known:
        found = make(chosen, question).run()
        return _answers(model, episode, question, found, scored, steps, logged, None)
    listening = by_history(model, episode, drawn, question, steps, scenarios // 2)
    size = jax.tree.leaves(scored.initial)[0].shape[0]
    joint = make(chosen, _cheaper(question, 2)).run()
    alone = [make(_some(scored, slice(i, i + 1)), _cheaper(question, 2 * size)).run() for i in range(size)]
    answers = _answers(model, episode, question, joint, scored, steps, logged, alone)
    if listening is None:
        return answers
    gain = (listening - listening[:1])[:, scenarios // 2 :]
    error = gain.std(1, ddof=1) / np.sqrt(gain.shape[1])
    return answers._replace(by_history=logged + gain.mean(1), by_history_error=error)


def _answers(
    model: POMDP,
    episode: Episode,
    question: Question,
    found: Found,
    scored: Scenario,
    steps: int,
    logged: float,
    alone: list[Found] | None,
) -> Answers:
    """Of what was found; `alone` for each of the scenarios that it is scored on, None where the noise is known."""
    known = alone is None
    actions = _sequences(question.candidates(model), episode.action, found.choice)
    end = LoggedEnd(episode.length, question.afterwards, question.discount)
    returns, courses = play(model, scored, end, jnp.int32(steps), actions)
    returns, changed = np.asarray(returns, float), found.choice != AS_LOGGED
    states, acted, rewards, live = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], courses)
    cost = question.cost * changed.sum(1)
    gain = returns - returns[:1] - cost[:, None]
    value = logged + gain.mean(1)
    error = np.zeros(len(value)) if known else gain.std(1, ddof=1) / np.sqrt(gain.shape[1])
    bound = logged + found.bound - found.value[0]
    clairvoyant = None
    if alone is not None:
        clairvoyant = logged + np.mean([one.value - one.value[0] for one in alone], 0)
        bound = logged + np.mean([one.bound - one.value[0] for one in alone], 0)
    optimal = found.optimal and (alone is None or all(one.optimal for one in alone))
    unit = float(unit_of(rewards))
    better = np.array([[helps(x, 0.0, unit) for x in row] for row in gain]).mean(1)
    return Answers(
        logged=np.asarray(logged, float),
        value=value,
        error=error,
        bound=bound,
        optimal=np.asarray(optimal),
        did=jax.tree.map(np.asarray, episode.action),
        action=acted,
        reward=rewards,
        live=live,
        state=states,
        changed=changed & live,
        single=_single(model, scored, end, steps, episode, question),
        probability=None if known else better,
        clairvoyant=clairvoyant,
    )


def _single(
    model: POMDP, scored: Scenario, end: LoggedEnd, steps: int, episode: Episode, question: Question
) -> np.ndarray:
    """What the best single change at each step gains on the mean, `[T]`."""
    candidates, size = question.candidates(model), model.horizon
    count = len(candidates)
    choice = np.where(np.eye(size, dtype=bool)[:, None], np.arange(count)[None, :, None], AS_LOGGED)
    choice = np.concatenate([np.full((1, size), AS_LOGGED), choice.reshape(size * count, size)])
    returns, _ = play(model, scored, end, jnp.int32(steps), _sequences(candidates, episode.action, choice))
    gains = np.asarray(returns, float)
    gains = (gains[1:] - gains[:1]).mean(1).reshape(size, count) - question.cost
    return np.where(np.asarray(episode.live) & np.asarray(question.free(size)), gains.max(1), 0.0)


@eqx.filter_jit
def draw(source: ScenarioSource, keys: Array, episode: Episode) -> Scenario:
    """Scenarios `[M, ...]` of an episode."""
    return jax.vmap(lambda key: source.infer(key, episode))(keys)


def _agree(drawn: Scenario) -> bool:
    """Whether all draws have the same first state and the same noise of transitions."""
    leaves = jax.tree.leaves(jax.tree.map(np.asarray, (drawn.initial, drawn.transition)))
    return all(np.array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape)) for leaf in leaves)


def _halves(count: int) -> tuple[slice, slice]:
    return slice(count // 2), slice(count // 2, None)


def _some(scenarios: Scenario, which: slice) -> Scenario:
    return jax.tree.map(lambda leaf: leaf[which], scenarios)


def _cheaper(question: Question, times: int) -> Question:
    return replace(question, budget=max(1, question.budget // times))


def _sequences(candidates: Array, logged: Any, choice: np.ndarray) -> Array:
    """The actions of choices `[C, T]`, `[C, T, ...]`."""
    own = jnp.asarray(logged)[None].astype(candidates.dtype)
    mask = jnp.asarray(choice == AS_LOGGED).reshape(*choice.shape, *[1] * (candidates.ndim - 1))
    return jnp.where(mask, own, candidates[np.maximum(choice, 0)])


@eqx.filter_jit
def play(model: POMDP, scenarios: Scenario, end: LoggedEnd, steps: Array, actions: Any) -> tuple[Array, Any]:
    """Returns `[C, M]` over so many steps, and states, actions, rewards and what is live `[C, M, T, ...]`.

    Of sequences of actions `[C, T, ...]` on scenarios `[M, ...]`.
    """

    def one(sequence: Any, u: Scenario) -> tuple[Array, Any]:
        def step(state: Any, t: Array) -> tuple[Any, Any]:
            moved, action, reward, live = end.move(model, state, u, t, jax.tree.map(lambda leaf: leaf[t], sequence))
            live = live & (t < steps)
            moved = jax.tree.map(lambda new, old: jnp.where(live, new, old), moved, state)
            return moved, (state, action, jnp.where(live, reward, 0.0), live)

        last, (states, *others) = jax.lax.scan(step, model.initial(u.initial), jnp.arange(model.horizon))
        states = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), states, last)
        return jnp.sum(others[1]), (states, *others)

    return jax.vmap(lambda sequence: jax.vmap(lambda u: one(sequence, u))(scenarios))(actions)


@eqx.filter_jit
def ended(model: POMDP, scenarios: Scenario, episode: Episode) -> tuple[Array, Array]:
    """What the logged actions pay on the first scenario, and whether they come to an end of its own there."""
    end, actions = LoggedEnd(episode.length, None), jax.tree.map(lambda leaf: leaf[None], episode.action)
    returns, (states, *_) = play(model, scenarios, end, episode.length, actions)
    return returns[0, 0], model.terminal(jax.tree.map(lambda leaf: leaf[0, 0, -1], states))


def _check_possible(source: ScenarioSource, episode: Episode, number: int) -> None:
    if not (isinstance(source, Exact) and isinstance(source.model, FinitePOMDP)):
        return
    if not np.isfinite(float(_evidence(source, episode))):
        raise CouldaError(
            f"the model cannot have produced episode {number}: its observations and rewards have probability 0. Give "
            "the model that made the log."
        )


@eqx.filter_jit
def _evidence(source: Exact, episode: Episode) -> Array:
    return source.log_evidence(episode)
