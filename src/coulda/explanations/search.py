"""Search over sequences of actions where a scenario leaves nothing to chance: layers over (step, changes made).

Given its noise, a model is a deterministic program, and so all ways of changing at most k decisions form a tree. It is
walked layer by layer: ways that have the same beginning share it, and of those that meet in the same states after the
same number of changes only the best goes on. With several scenarios a way has a state on each, and is judged by its
mean return. Up to the budget of model steps the search is exact; beyond it only the ways that would do best if nothing
more were changed are followed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.explanations.question import Question
from coulda.pomdp import POMDP, Policy, Scenario, batched
from coulda.pomdp.scenario import at_step
from coulda.scales import unit_of

AS_LOGGED = -1
"""The number of "what was done" among the actions."""
SMALLEST, LARGEST = 64, 2**15
"""How many ways are continued at once: powers of 8 in between, so that few programs are compiled."""


class Found(NamedTuple):
    """The best sequence for each number of changes, C = 0 … k."""

    value: np.ndarray
    """Its mean return on the scenarios, net of what changes cost, `[C]`."""
    choice: np.ndarray
    """The number of the candidate at each step, or `AS_LOGGED`, `[C, T]`."""
    bound: np.ndarray
    """What no sequence can exceed on these scenarios, `[C]`."""
    optimal: bool
    model_steps: int


@dataclass
class Ways:
    """Ways that made the same number of changes: n of them, in M scenarios."""

    state: Any
    """`[n, M, ...]`."""
    total: np.ndarray
    """The mean return so far, `[n]`."""
    parent: np.ndarray
    """Its place in the layer before, `[n]`: among those with a change less, where one was made at this step."""
    choice: np.ndarray
    """`[n]`."""

    def __len__(self) -> int:
        return len(self.total)

    def take(self, places: np.ndarray) -> "Ways":
        """Some of them."""
        state = jax.tree.map(lambda leaf: leaf[places], self.state)
        return Ways(state, self.total[places], self.parent[places], self.choice[places])


@dataclass
class Searching:
    """One search: what it runs in, and what it has cost so far."""

    model: POMDP
    scenarios: Scenario
    """`[M, ...]`."""
    logged: Any
    """The logged actions, `[T, ...]`."""
    candidates: Array
    """`[A, ...]`."""
    free: np.ndarray
    """`[T]`."""
    question: Question
    length: int
    """Of the log, after which nothing is changed."""
    steps: int
    """T."""
    taken: int = 0
    """Model steps."""
    bound: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """What the ways that were given up could have come to at most, `[C]`."""

    @property
    def width(self) -> int:
        """M."""
        return jax.tree.leaves(self.scenarios.initial)[0].shape[0]

    @property
    def affordable(self) -> bool:
        """Whether the budget lasts for the whole tree, even if no two ways meet."""
        steps = 0
        ways = [1] + [0] * self.question.changes
        for t in range(self.steps):
            others = len(self.candidates) if self._may_change(t) else 0
            steps += sum(ways) + others * sum(ways[:-1])
            ways = [n + others * fewer for n, fewer in zip(ways, [0, *ways[:-1]], strict=True)]
        return steps * self.width <= self.question.budget

    @property
    def _logged_steps(self) -> "LoggedEnd":
        return LoggedEnd(jnp.int32(self.length), self.question.afterwards, self.question.discount)

    def _may_change(self, t: int) -> bool:
        return bool(self.free[t]) and t < self.length

    def run(self) -> Found:
        """Walk all layers."""
        most = self.question.changes
        self.bound = np.full(most + 1, -np.inf)
        start = jax.tree.map(lambda leaf: np.asarray(leaf)[None], jax.vmap(self.model.initial)(self.scenarios.initial))
        nobody = np.zeros(1, int)
        layers: list[dict[int, Ways]] = [{0: Ways(start, np.zeros(1), nobody, nobody + AS_LOGGED)}]
        for t in range(self.steps):
            layers[-1] = {c: self._pruned(t, c, ways) for c, ways in layers[-1].items()}
            layers.append(self._next(t, layers[-1]))
            for ways in layers[-2].values():
                ways.state = None  # only the last layer is gone on from
        return self._best(layers)

    def _next(self, t: int, layer: dict[int, Ways]) -> dict[int, Ways]:
        """The layer after step t."""
        parts: dict[int, list[Ways]] = {}
        others = np.flatnonzero(~_same(self.candidates, _at(self.logged, t)))
        for c, ways in layer.items():
            changing = others if self._may_change(t) and c < self.question.changes else others[:0]
            choices = np.append(AS_LOGGED, changing)
            state, total = self._advance(t, ways, choices)
            for place, choice in enumerate(choices):
                moved = jax.tree.map(lambda leaf, place=place: leaf[:, place], state)
                number = np.full(len(ways), choice)
                made = Ways(moved, ways.total + total[:, place], np.arange(len(ways)), number)
                parts.setdefault(c + (choice != AS_LOGGED), []).append(made)
        return {c: _merged(_joined(found)) for c, found in parts.items()}

    def _advance(self, t: int, ways: Ways, choices: np.ndarray) -> tuple[Any, np.ndarray]:
        """Each way with each action: states `[n, B, M, ...]` and mean rewards `[n, B]`."""
        own = _at(self.logged, t)
        actions = jnp.where(
            jnp.asarray(choices == AS_LOGGED).reshape(-1, *[1] * (self.candidates.ndim - 1)),
            jnp.asarray(own, self.candidates.dtype)[None],
            self.candidates[np.maximum(choices, 0)],
        )
        self.taken += len(ways) * len(choices) * self.width
        step = lambda state: _step(self.model, self.scenarios, self._logged_steps, jnp.int32(t), actions, state)
        return in_chunks(step, ways.state, len(ways))

    def _pruned(self, t: int, c: int, ways: Ways) -> Ways:
        """All of them while the budget lasts; then those that would do best if nothing more were changed."""
        rest, most = self.steps - t, self.question.changes
        each = (1 + (len(self.candidates) if c < most else 0)) * self.width
        share = (self.question.budget - self.taken) / (rest * (most + 1))
        if self.affordable or len(ways) * each <= share:
            return ways
        # Those that are kept have children, each of which is judged by its way to the end.
        keep = max(1, int(share / (each * (1 + rest))))
        if keep >= len(ways):
            return ways
        likely = np.argsort(-ways.total, kind="stable")[: 16 * keep]
        promise = ways.total[likely] + self._unchanged(t, ways.take(likely))
        kept = likely[np.argsort(-promise, kind="stable")[:keep]]
        gone = np.delete(ways.total, kept).max()
        worth = self.question.worth(self.steps)[t:].sum()
        largest = np.inf if self.question.largest_reward is None else self.question.largest_reward * worth
        self.bound[c:] = np.maximum(self.bound[c:], gone + largest - self.question.cost * c)
        return ways.take(kept)

    def _unchanged(self, t: int, ways: Ways) -> np.ndarray:
        """What each way returns from step t on, if nothing more is changed, `[n]`."""
        self.taken += len(ways) * (self.steps - t) * self.width
        logged, span = jax.tree.map(jnp.asarray, self.logged), (jnp.int32(t), jnp.int32(self.steps))
        run = lambda state: ((), _finish(self.model, self.scenarios, self._logged_steps, logged, span, state))
        return in_chunks(run, ways.state, len(ways))[1][:, 0]

    def _best(self, layers: list[dict[int, Ways]]) -> Found:
        most, last = self.question.changes, layers[-1]
        net = {c: ways.total - self.question.cost * c for c, ways in last.items()}
        value, choice = np.full(most + 1, -np.inf), np.full((most + 1, self.model.horizon), AS_LOGGED)
        unit = unit_of(np.concatenate(list(net.values())))
        for k in range(most + 1):
            # A tie is for fewer changes, to rounding.
            margin = lambda v: 1e-6 * (unit + abs(v))
            if k:
                value[k], choice[k] = value[k - 1], choice[k - 1]
            if k in net and (k == 0 or net[k].max() > value[k] + margin(value[k])):
                value[k] = net[k].max()
                choice[k] = _traced(layers, k, int(net[k].argmax()), self.model.horizon)
        bound = np.maximum.accumulate(np.maximum(self.bound, value))
        return Found(value, choice, bound, bool((self.bound == -np.inf).all()), self.taken)


AT_ONCE = 2048
"""Model steps at once: a network of 200 units takes 0.36 µs for one, and 2.3 µs where they leave the cache."""


def _traced(layers: list[dict[int, Ways]], changes: int, place: int, horizon: int) -> np.ndarray:
    """The choices that led to a way, `[T]`."""
    found = np.full(horizon, AS_LOGGED)
    for t in range(len(layers) - 1, 0, -1):
        ways = layers[t][changes]
        found[t - 1], place = ways.choice[place], ways.parent[place]
        changes -= int(found[t - 1] != AS_LOGGED)
    return found


class LoggedEnd(eqx.Module):
    """What is done after the log's end, where other decisions put that off."""

    length: Array
    """How many decisions were logged."""
    afterwards: Policy | None
    """Who decides then; None where the last action is kept."""
    discount: float = 1.0
    """γ: what is paid is told as it counts in the return."""

    def act(self, model: POMDP, state: Any, u: Scenario, t: Array, action: Any) -> Any:
        """`action` while the log lasts."""
        if self.afterwards is None:
            return action
        observation = model.observe(state, at_step(u.observation, t))
        _, distribution = self.afterwards(self.afterwards.initial_carry(), observation)
        chosen = model.action_mechanism(distribution, at_step(u.action, t))
        return jax.tree.map(lambda own, new: jnp.where(t < self.length, own, new.astype(own.dtype)), action, chosen)

    def move(self, model: POMDP, state: Any, u: Scenario, t: Array, action: Any) -> tuple[Any, Any, Array, Array]:
        """The next state, the action, the reward, and whether the episode still went on; ends are absorbing."""
        live, action = ~model.terminal(state), self.act(model, state, u, t, action)
        moved = model.transition(state, action, at_step(u.transition, t))
        moved = jax.tree.map(lambda new, old: jnp.where(live, new, old), moved, state)
        reward = jnp.where(live, model.reward(state, action, moved), 0.0)
        if self.discount != 1:
            reward = reward * jnp.asarray(self.discount, reward.dtype) ** t.astype(reward.dtype)
        return moved, action, reward, live


@eqx.filter_jit
def _step(
    model: POMDP, scenarios: Scenario, end: LoggedEnd, t: Array, actions: Array, states: Any
) -> tuple[Any, Array]:
    """States `[n, B, M, ...]` and mean rewards `[n, B]` of states `[n, M, ...]` with each of the actions `[B, ...]`."""

    def one(state: Any, action: Any) -> tuple[Any, Array]:
        moved, _, reward, _ = jax.vmap(lambda s, u: end.move(model, s, u, t, action))(state, scenarios)
        return moved, jnp.mean(reward)

    every = lambda state: jax.vmap(lambda action: one(state, action))(actions)
    width = jax.tree.leaves(scenarios.initial)[0].shape[0]
    return batched(every, states, max(1, AT_ONCE // (actions.shape[0] * width)))


@eqx.filter_jit
def _finish(
    model: POMDP, scenarios: Scenario, end: LoggedEnd, logged: Any, span: tuple[Array, Array], states: Any
) -> Array:
    """The mean return of states `[n, M, ...]` over a span of steps with the logged actions, `[n, 1]`."""

    def one(state: Any, u: Scenario) -> Array:
        def step(t: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
            state, total = carry
            moved, _, reward, _ = end.move(model, state, u, t, _at(logged, t))
            return moved, total + reward

        return jax.lax.fori_loop(*span, step, (state, jnp.zeros(())))[1]

    width = jax.tree.leaves(scenarios.initial)[0].shape[0]
    return batched(lambda state: jnp.mean(jax.vmap(one)(state, scenarios))[None], states, max(1, AT_ONCE // width))


def in_chunks(function: Callable[[Any], tuple[Any, Array]], states: Any, count: int) -> tuple[Any, np.ndarray]:
    """`function` of states `[n, ...]`, some thousands at a time, the last chunk filled up."""
    size, parts = SMALLEST, []
    while size < min(count, LARGEST):
        size *= 8
    for first in range(0, count, size):
        places = np.minimum(np.arange(first, first + size), count - 1)
        found = function(jax.tree.map(lambda leaf, places=places: jnp.asarray(leaf[places]), states))
        parts.append(jax.tree.map(lambda leaf, n=count - first: np.asarray(leaf)[:n], found))
    state, total = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]
    return state, total.astype(float)


def _joined(parts: list[Ways]) -> Ways:
    state = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(ways.state for ways in parts))
    columns = (np.concatenate([getattr(ways, name) for ways in parts]) for name in ("total", "parent", "choice"))
    return Ways(state, *columns)


def _merged(ways: Ways) -> Ways:
    """Of those in the same states only the best; real numbers hardly ever meet, and are not compared."""
    leaves = jax.tree.leaves(ways.state)
    if any(np.issubdtype(leaf.dtype, np.inexact) for leaf in leaves) or len(ways) < 2:
        return ways
    best_first = np.argsort(-ways.total, kind="stable")
    rows = [np.ascontiguousarray(leaf[best_first]).reshape(len(ways), -1).view(np.uint8) for leaf in leaves]
    bytes_of = np.concatenate([row.reshape(len(ways), -1) for row in rows], axis=1)
    _, places = np.unique(np.ascontiguousarray(bytes_of).view([("", np.void, bytes_of.shape[1])]), return_index=True)
    return ways.take(best_first[np.sort(places)])


def _same(candidates: Array, action: Any) -> np.ndarray:
    """Which candidates are the action itself, `[A]`."""
    equal = np.asarray(candidates) == np.asarray(action)
    return equal.reshape(len(equal), -1).all(1)


def _at(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)
