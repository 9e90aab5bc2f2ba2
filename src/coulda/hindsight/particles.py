"""`Particles`: p(U | h_t) of any model, by a filter over noise, its genealogy, and moves of whole paths.

Models here have f(s, a, u) and no transition density, often with fewer noises than states, so that backward smoothers
do not apply. The prior over U is independent over time, and running u through f needs simulation only: particles are
drawn forward, weighed by the evidence and resampled, and a path is what its last particle descends from. Paths of one
ancestor differ too little; moves of whole paths (`moves`) spread them.
"""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from coulda.errors import CouldaError
from coulda.hindsight.coordinates import Coordinates, Position
from coulda.hindsight.likelihood import Agreement, Evidence, Seen, seen_in, states_under
from coulda.hindsight.moves import ISLANDS, Moves, Path
from coulda.hindsight.source import (
    ALL_STEPS,
    FINE,
    IMPOSSIBLE,
    NOT_A_NUMBER,
    Inference,
    ScenarioSource,
    action_noise,
    fresh,
    history_length,
    other_key,
    where_known,
)
from coulda.keys import quick
from coulda.noise import Iid
from coulda.pomdp import POMDP, Actor, BlackBoxPOMDP, Episode, Scenario
from coulda.pomdp.observing import infers_noise

EPISODES_AT_ONCE = 8
"""About as few as are worked on together: four, on two devices."""
BLOCK = 32
"""Numbers that are summed by one product."""


class Sampler(ScenarioSource):
    """What sources share that hold sampled noise against the evidence of an episode.

    A subclass finds paths, `[count, ...]`; from them follow the scenarios: the noise of observations and, where the
    behavior is given, of actions, by their own posteriors, and fresh noise beyond h_t.
    """

    evidence: Evidence
    steps: Array
    particles: eqx.AbstractVar[int]
    """How many noises are tried at once."""

    @property
    def model(self) -> POMDP:
        """The model whose noise is inferred."""
        return self.evidence.model

    @property
    def behavior(self) -> Actor | None:
        """Who acted, where that is known."""
        return self.evidence.behavior

    @property
    def is_exact(self) -> bool:
        """Samples are finitely many."""
        return False

    @property
    def answers_many(self) -> bool:
        """From one run; but a program of a user's own would be run for each."""
        return not isinstance(self.model, BlackBoxPOMDP)

    @property
    def infers_observation_noise(self) -> bool:
        """Where its posterior is known."""
        return infers_noise(self.model)

    @property
    def weighs_rewards(self) -> bool:
        """Where they take separate values."""
        return self.evidence.rewards and self.evidence.reward_scale is None

    @property
    def initial(self) -> Coordinates:
        """Of U_s1."""
        return Coordinates(self.model.initial_noise)

    @property
    def transition(self) -> Coordinates:
        """Of U_s, over time."""
        return Coordinates(Iid(self.model.transition_noise, self.model.horizon))

    def sample_paths(self, key: Array, count: int) -> Path:
        """Draws of the prior, `[count, ...]`. Consumes `key`."""
        key_first, key_rest = jax.random.split(key)
        return Path(self.initial.times(count).sample(key_first), self.transition.times(count).sample(key_rest))

    def agreement(self, path: Path, seen: Seen, cut_short: Array) -> Agreement:
        """What the history says of one path."""
        noise = self.initial.noise(path.initial), self.transition.noise(path.transition)
        return self.evidence.of_path(*noise, seen, cut_short)

    def paths(self, key: Array, seen: Seen, count: int) -> tuple[Path, Inference]:
        """So many paths, `[count, ...]`, and how well they could be found. Consumes `key`."""
        raise NotImplementedError

    def infer(self, key: Array, episode: Episode) -> Scenario:
        """One draw of p(U | h_t)."""
        path, _ = self.paths(quick(other_key(key)), seen_in(episode, self.steps), 1)
        return self._scenario(key, episode, jax.tree.map(lambda leaf: leaf[0], path))

    def infer_many(self, key: Array, episode: Episode, count: int) -> tuple[Scenario, Inference]:
        """Many draws of one run."""
        found, inference = self.paths(quick(other_key(key)), seen_in(episode, self.steps), count)
        keys = jax.random.split(quick(key), count)
        return jax.vmap(lambda one, path: self._scenario(one, episode, path))(keys, found), inference

    def _scenario(self, key: Array, episode: Episode, path: Path) -> Scenario:
        noise, length = fresh(key, self.model), history_length(episode, self.steps)
        initial = self.initial.noise(path.initial)
        transition = self.transition.noise(path.transition)
        states = self._states(initial, transition, episode)
        seen = jnp.arange(self.model.horizon + 1) < length
        observation, action = noise.observation, noise.action
        if self.infers_observation_noise:
            observation = jax.vmap(self.model.observation_posterior)(states, episode.observation, noise.observation)
            observation = where_known(seen, observation, noise.observation)
        if self.behavior is not None:
            action = action_noise(self.model, self.behavior, states, episode, noise.action)
            action = where_known(seen[1:], action, noise.action)
        return Scenario(
            initial=where_known(length > 0, initial, noise.initial),
            transition=where_known(seen[1:], transition, noise.transition),
            observation=observation,
            action=action,
        )

    def _states(self, initial: Any, transition: Any, episode: Episode) -> Any:
        """`[T + 1, ...]`, under the logged actions."""
        return states_under(self.model, initial, transition, episode.action)


class Particles(Sampler):
    """Draws of p(U | h_t) by a particle filter in noise space.

    Args:
        model: any POMDP whose observations have a density, written or derived.
        behavior: who acted. With it the noise of its actions is inferred too; a planner must be given, since its
            actions tell of the state.
        particles: how many. More cost time and memory in proportion, and leave more different first noises.
        moves: how often each path that is drawn is moved afterwards.
        reward_scale: the standard deviation of logged rewards, where they are measured with an error. Without it
            they are evidence only where they take separate values.
    """

    particles: int = eqx.field(static=True)
    moves: int = eqx.field(static=True)

    def __init__(
        self,
        model: POMDP,
        behavior: Actor | None = None,
        *,
        particles: int = 1000,
        moves: int = 20,
        reward_scale: float | None = None,
    ):
        check_size("moves", moves, 0)
        self.evidence = populated(model, behavior, reward_scale, particles)
        self.particles, self.moves, self.steps = particles, moves, jnp.int32(ALL_STEPS)

    def paths(self, key: Array, seen: Seen, count: int) -> tuple[Path, Inference]:
        """Draws of the genealogy, moved. Consumes `key`."""
        key_filter, key_move = jax.random.split(key)
        islands, dice = filter_islands(key_filter, self.evidence, seen, self.particles // ISLANDS, ISLANDS, count)
        found = descent(islands, islands.draw(dice))
        if self.moves:
            chain = Moves(self, seen, islands.cut_short.all(), self.moves)
            found = chain.moved(key_move, chain.begun(found)).paths
        return found, _inference(islands)


class Filtered(eqx.Module):
    """What a filter leaves: particles of every step, and who descends from whom."""

    first: Position
    """Of U_s1, `[N, ...]`."""
    moves: Position
    """Of U_s, `[T + 1, N, ...]`, by the slots of the states that they lead to; nothing comes of the last."""
    parents: Array
    """`[T + 1, N]`: the slot of s_i that slot j of s_{i+1} comes from; at the end, its own."""
    log_weights: Array
    """`[N]`, of the last states; normalized."""
    log_evidence: Array
    distinct: Array
    """How many first noises the last particles descend from."""
    cut_short: Array
    """Whether no particle could have been at its end where the log stopped."""
    reason: Array
    step: Array
    looks: Any
    """What `look` saw at each step, `[T + 1, ...]`."""

    def draw(self, dice: Array) -> Array:
        """Islands and slots `[n, 2]` of last particles of `[K]` islands, by weight, from uniform numbers `[n]`."""
        log_weights = self.log_weights + self.log_evidence[:, None]
        # Where all islands failed they count by their last weights only, and the inference says so.
        weights = jax.nn.softmax(jnp.where(jnp.isfinite(log_weights).any(), log_weights, self.log_weights).ravel())
        upper = running_sums(weights)
        found = jnp.searchsorted(upper / upper[-1], dice, side="right", method="compare_all")
        chosen, size = jnp.minimum(found, weights.size - 1).astype(jnp.int32), self.log_weights.shape[1]
        return jnp.stack([chosen // size, chosen % size], 1)


def descent(islands: Filtered, chosen: Array) -> Path:
    """What particles of `[K]` islands descend from; `chosen` `[n, 2]` holds their islands and slots. `[n, ...]`."""
    island = chosen[:, 0]
    over_time = lambda leaf: jnp.swapaxes(leaf, 0, 1)  # [T + 1, K, N, ...]

    def back(slot: Array, inputs: tuple[Position, Array]) -> tuple[Array, Position]:
        noise, parents = inputs
        return parents[island, slot], jax.tree.map(lambda leaf: leaf[island, slot], noise)

    inputs = jax.tree.map(over_time, (islands.moves, islands.parents))
    first, transition = jax.lax.scan(back, chosen[:, 1], inputs, reverse=True)
    initial = jax.tree.map(lambda leaf: leaf[island, first], islands.first)
    return Path(initial, jax.tree.map(lambda leaf: over_time(leaf[:-1]), transition))


def filter_islands(
    key: Array, evidence: Evidence, seen: Seen, size: int, islands: int = 1, count: int = 1, look: "Look | None" = None
) -> tuple[Filtered, Array]:
    """Independent filters of `size` particles each, `[K, ...]`, and `count` uniform numbers besides. Consumes `key`."""
    key_first, key_moves, key_dice = jax.random.split(key, 3)
    horizon = seen.within.shape[0] - 1
    first = Coordinates(evidence.model.initial_noise).times(size).times(islands).sample(key_first)
    keys = jax.random.split(key_moves, (islands, horizon + 1))
    dice = jax.random.uniform(key_dice, (islands * (horizon + 1) + count,))
    offsets = dice[count:].reshape(islands, horizon + 1)
    run = lambda *chance: filter_paths(evidence, seen, *chance, look=look)
    return jax.vmap(run)(first, keys, offsets), dice[:count]


Look = Callable[[Any, Array, Array], Any]
"""Of the states `[N, ...]` before what is seen in them is known, their log-weights `[N]`, and the step."""


def filter_paths(
    evidence: Evidence, seen: Seen, first: Position, keys: Array, offsets: Array, look: Look | None = None
) -> Filtered:
    """A bootstrap filter over one episode. Consumes `keys`.

    Where no particle agrees with a step, it goes on from equal weights, and says at which step and why.

    Args:
        evidence: by which particles are weighed.
        seen: the episode.
        first: of U_s1, `[N, ...]`.
        keys: `[T + 1]`, for U_s.
        offsets: uniform numbers `[T + 1]`, for resampling.
        look: what is wanted of each step besides.
    """
    model, (horizon, size) = evidence.model, (seen.within.shape[0] - 1, jax.tree.leaves(first)[0].shape[0])
    initial, transition = Coordinates(model.initial_noise), Coordinates(model.transition_noise)
    states = jax.vmap(lambda x: model.initial(initial.noise(x)))(first)
    memories = jax.vmap(lambda _: evidence.first_memory())(jnp.arange(size))
    even, slots = jnp.full(size, -jnp.log(1.0 * size)), jnp.arange(size, dtype=jnp.int32)
    nothing = Agreement(jnp.zeros(size), jnp.zeros(size), jnp.zeros(size, bool))

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        (states, memories, roots), paid, log_weights, log_evidence, cut_short, (reason, failed) = carry
        moves, offset, now, i = inputs
        looked = () if look is None else look(states, log_weights, i)
        # A log that stops where no particle can be at its end was cut short, which says nothing.
        can_end = (jax.vmap(model.terminal)(states) & (log_weights > -jnp.inf)).any()
        cut_short = cut_short | (now.ended & ~can_end)
        memories, agreed = jax.vmap(lambda m, s: evidence.of_state(m, s, now, cut_short))(memories, states)
        weighed, flawed = log_weights + agreed.log_likelihood, agreed.flawed
        if evidence.rewards:
            weighed, flawed = weighed + paid.log_likelihood, flawed | paid.flawed
        # As in logsumexp; what is left of it are the weights, the largest of them 1.
        top = jax.lax.stop_gradient(jnp.max(weighed))
        lost = top == -jnp.inf
        weights = jnp.exp(weighed - jnp.where(lost, 0.0, top))
        whole = jnp.where(lost, 1.0, jnp.sum(weights))
        total = top + jnp.log(whole)
        found = jnp.where(flawed.any(), NOT_A_NUMBER, jnp.where(lost, IMPOSSIBLE, FINE)).astype(jnp.int32)
        failed = jnp.where((reason == FINE) & (found != FINE), i, failed)
        reason = jnp.where(reason == FINE, found, reason)
        log_weights = jnp.where(lost, even, weighed - jnp.where(lost, 0.0, total))
        due = (whole**2 < size / 2 * jnp.sum(weights**2)) & now.acted & ~lost
        parents = jnp.where(due, systematic(offset, weights), slots)
        log_weights = jnp.where(due, even, log_weights)
        states, memories, roots = jax.tree.map(lambda leaf: leaf[parents], (states, memories, roots))
        onward = jax.vmap(lambda s, x: evidence.next_state(s, now.action, transition.noise(x)))(states, moves)
        if evidence.rewards:
            paid = jax.vmap(lambda s, n: evidence.of_reward(s, n, now))(states, onward)
        carry = (onward, memories, roots), paid, log_weights, log_evidence + total, cut_short, (reason, failed)
        return carry, (parents, looked)

    going_on = (states, memories, slots), nothing if evidence.rewards else ()
    start = *going_on, even, jnp.zeros(()), jnp.zeros((), bool), (jnp.int32(FINE), jnp.int32(-1))
    order = jnp.arange(horizon + 1, dtype=jnp.int32)
    # In a loop of their own they are drawn once; fused with what is made of them, once for each use.
    moves = jax.lax.map(transition.times(size).sample, keys)
    carry, (parents, looks) = jax.lax.scan(step, start, (moves, offsets, seen, order))
    # After the last step nobody acts, so that nobody is resampled.
    (_, _, roots), _, log_weights, log_evidence, cut_short, (reason, failed) = carry
    alive = jnp.where(log_weights > -jnp.inf, 1.0, 0.0)
    distinct = jnp.sum(jnp.zeros(size).at[roots].max(alive))
    return Filtered(first, moves, parents, log_weights, log_evidence, distinct, cut_short, reason, failed, looks)


def systematic(offset: Array, weights: Array, count: int | None = None) -> Array:
    """Which of `[N]` particles of these weights go on, in which slot: int32 `[N]`, or `[count]` of them.

    The offset is uniform in [0, 1). Slot i has its mark at (i + offset) / count; a particle takes the slots whose marks
    lie in its share of all weight. So slots are counted and not searched for, which takes half of the time.
    """
    size = weights.shape[0] if count is None else count
    upper = running_sums(weights)
    # How many marks lie below the upper end of each share; slot i goes to the first particle that has more than i.
    below = jnp.ceil(size * (upper / upper[-1]) - offset).astype(jnp.int32)
    passed = jnp.zeros(size + 1).at[jnp.clip(below, 0, size)].add(1.0)
    return jnp.minimum(running_sums(passed)[:size].astype(jnp.int32), weights.shape[0] - 1)


def running_sums(values: Array) -> Array:
    """`cumsum` of `[N]` by products of small matrices: XLA:CPU takes a fifth of the time for it, and less to compile.

    >>> running_sums(jnp.ones(3))
    Array([1., 2., 3.], dtype=float32)
    """
    size = values.shape[0]
    if size <= BLOCK:
        return jnp.dot(values, jnp.triu(jnp.ones((size, size))), precision="highest")
    rows = jnp.pad(values, (0, -size % BLOCK)).reshape(-1, BLOCK)
    within = jax.vmap(running_sums)(rows)
    before = jnp.pad(running_sums(within[:-1, -1]), (1, 0))
    return (within + before[:, None]).reshape(-1)[:size]


def _inference(islands: Filtered) -> Inference:
    wrong = islands.reason == NOT_A_NUMBER
    # What one island can explain is explained; that the other cannot is a gap between them.
    failed = wrong.any() | (islands.reason == IMPOSSIBLE).all()
    first = jnp.argmax(wrong)
    return Inference(
        log_evidence=logsumexp(islands.log_evidence) - jnp.log(1.0 * ISLANDS),
        effective=jnp.sum(islands.distinct),
        gap=island_gap(islands.log_evidence),
        r_hat=jnp.ones(()),
        reason=jnp.where(failed, islands.reason[first], FINE),
        step=jnp.where(failed, islands.step[first], -1),
    )


def island_gap(log_evidence: Array) -> Array:
    """How far apart the islands' log evidence is; 0 where none has any, which is another matter."""
    finite = jnp.isfinite(log_evidence)
    apart = jnp.max(log_evidence) - jnp.min(log_evidence)
    return jnp.where(finite.all(), apart, jnp.where(finite.any(), jnp.inf, 0.0))


def check_size(name: str, value: Any, least: int) -> None:
    """Refuse a number of things that is too small or none."""
    if not isinstance(value, int) or value < least:
        raise CouldaError(f"{name} is {value!r}; it is a whole number of at least {least}.")


def populated(model: POMDP, behavior: Actor | None, reward_scale: float | None, particles: int) -> Evidence:
    """The evidence for a population of so many particles, which must fill the islands and fit the memory."""
    check_size("particles", particles, 2 * ISLANDS)
    evidence = Evidence.of(model, behavior, reward_scale)
    _check_memory(model, particles)
    return evidence


def _check_memory(model: POMDP, particles: int) -> None:
    """Refuse more particles than this machine can hold of a few episodes at once."""
    noise = jax.eval_shape(lambda key: model.transition_noise.sample(key), jax.random.key(0))
    numbers = 2 + sum(leaf.size for leaf in jax.tree.leaves(noise))
    needed, there = 4 * numbers * particles * (model.horizon + 1) * EPISODES_AT_ONCE, _memory()
    if needed > there:
        most = particles * there // needed
        raise CouldaError(
            f"particles is {particles:,}: with {model.horizon} steps they take some {needed / 1e9:.0f} GB, and this "
            f"machine has {there / 1e9:.0f}; take {most:,} or fewer."
        )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
