"""The network of `Amortized`: p(u | h_t) = p(u_1 | h_t) Π p(u_{i+1} | s_i, what h_t has from step i on).

A recurrent net goes backward over what was observed, done and, where rewards are evidence, paid; it begins at the end
of h_t, so that nothing past h_t can have any effect. Then noise is drawn forward, step by step, from heads that are
given the backward net's memory and s_i, which the model computes from the noise drawn so far. A black box hides its
states: there a forward recurrent net over noise, observations and actions stands in the place of s_i.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax import Array

from coulda.hindsight.coding import Code
from coulda.hindsight.features import Features, Leaf
from coulda.hindsight.heads import Dice, Head
from coulda.hindsight.likelihood import Seen, seen_in
from coulda.hindsight.pairs import Codings, Pairs
from coulda.networks import GRU, Dense
from coulda.storage import Count

FLAGS = 4
"""Within h_t; acted; the end; how far the episode is."""


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it takes beside a model to build its network."""

    width: Count
    """Of memories and hidden layers."""
    components: Count
    """Of each mixture."""
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    state: tuple[Leaf, ...] | None
    """None of a black box."""
    rewards: bool
    """Whether the network is shown them."""
    ends: bool
    """Whether simulated episodes ended before the horizon; where none did, that a log does tells nothing."""


class Known(NamedTuple):
    """What h_t says, ready for the heads."""

    entries: Array
    """Features of o_i, a_i and r_i, `[T + 1, F]`."""
    memory: Array
    """The backward net's, of entry i and all after it, `[T + 1, width]`."""
    acted: Array
    """Whether the transition from s_i was within h_t, `[T]`."""


class HindsightNetwork(eqx.Module):
    """Q(codes | h_t) over the codes of `codings`."""

    observation: Features
    action: Features
    reward: Features
    state: Features | None
    backward: GRU
    forward: GRU | None
    """Of a black box."""
    beginning: Dense | None
    """What the forward net remembers before the first step."""
    first: Head
    then: Head
    architecture: Architecture = eqx.field(static=True)

    def __init__(self, key: Array, codings: Codings, architecture: Architecture):
        keys = jax.random.split(key, 5)
        width, hidden = architecture.width, architecture.state is None
        self.architecture = architecture
        self.observation, self.action = Features.blank(architecture.observation), Features.blank(architecture.action)
        self.reward = Features.blank([Leaf(1)] * architecture.rewards)
        self.state = None if architecture.state is None else Features.blank(architecture.state)
        entry = self.observation.width + self.action.width + self.reward.width + FLAGS
        initial, transition = codings.initial, codings.transition
        self.backward = GRU(keys[0], entry, width)
        self.forward = GRU(keys[1], entry + transition.num_features, width) if hidden else None
        self.beginning = Dense(keys[2], initial.num_features, width) if hidden else None
        seen = 2 * entry + (initial.num_features if self.state is None else self.state.width)
        shape = lambda coding: jax.eval_shape(lambda: coding.log_prior).shape
        sizes = width, architecture.components
        self.first = Head(keys[3], entry, width, shape(initial), initial.num_normals, *sizes)
        summary = 2 * width if hidden else width
        self.then = Head(keys[4], seen, summary, shape(transition), transition.num_normals, *sizes)

    def known(self, seen: Seen) -> Known:
        """What h_t says."""
        entries = jax.vmap(self._entry)(seen, jnp.linspace(0, 1, seen.within.size))

        def back(memory: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            prepared, within = inputs
            memory = jnp.where(within, self.backward(memory, prepared), memory)
            return memory, memory

        start = jnp.zeros(self.backward.width)
        inputs = self.backward.prepared(entries), seen.within
        _, memory = jax.lax.scan(back, start, inputs, reverse=True)
        return Known(entries, memory, seen.acted[:-1])

    def far(self, seen: Seen) -> Array:
        """Which entries of h_t lie far from all that was simulated, `[T + 1]`."""
        observed = jax.vmap(self.observation.far)(seen.observation)
        done = jax.vmap(lambda a, r: self.action.far(a) | self.reward.far(r))(seen.action, self._paid(seen))
        return (seen.within & observed) | (seen.acted & done)

    def log_prob(self, codings: Codings, pair: Pairs, steps: Array) -> Array:
        """Log q of one pair's noise, as far as h_t, t = `steps`, tells of it."""
        known = self.known(seen_in(pair.episode, steps))
        seen, summary = self.contexts(codings, pair, known)
        first = self.first.log_prob(known.entries[0], known.memory[0], codings.initial.log_prior, pair.initial)
        table = codings.transition.log_prior
        later = jax.vmap(lambda seen, summary, code: self.then.log_prob(seen, summary, table, code))
        rest = later(seen, summary, pair.transition)
        return jnp.where(steps > 0, first, 0.0) + jnp.sum(jnp.where(known.acted, rest, 0.0))

    def contexts(self, codings: Codings, pair: Pairs, known: Known) -> tuple[Array, Array]:
        """What the head of each step is given: what is at hand, and memories, `[T, ...]` each."""
        at_hand, memory = jnp.concatenate([known.entries[:-1], known.entries[1:]], 1), known.memory[:-1]
        steps = at_hand.shape[0]
        if self.state is not None:
            states = jax.tree.map(lambda leaf: leaf[:-1], pair.state)
            return jnp.concatenate([at_hand, jax.vmap(self.state)(states)], 1), memory
        assert self.forward is not None
        initial = codings.initial.features(pair.initial)
        codes = jax.vmap(codings.transition.features)(pair.transition)

        def onward(carry: Array, prepared: Array) -> tuple[Array, Array]:
            return self.forward(carry, prepared), carry  # pyright: ignore[reportOptionalCall]

        inputs = self.forward.prepared(jnp.concatenate([known.entries[:-1], codes], 1))
        _, forward = jax.lax.scan(onward, self._begun(initial), inputs)
        seen = jnp.concatenate([at_hand, jnp.broadcast_to(initial, (steps, initial.size))], 1)
        return seen, jnp.concatenate([memory, forward], 1)

    def draw(
        self,
        codings: Codings,
        known: Known,
        dice: tuple[Dice, Dice],
        begin: Callable[[Code], Any],
        move: Callable[[Any, Array, Code], Any],
    ) -> tuple[Code, Code, Array]:
        """Codes of U_s1 and of U_s `[T, ...]` given h_t, made of `dice`, and their log q as far as h_t tells of them.

        Args:
            codings: of the model's noise.
            known: of h_t.
            dice: for the first head, and `[T, ...]` for the others.
            begin: the first state of a code; not asked of a black box.
            move: the next state of a state, the number of the step and a code; not asked of a black box.
        """
        table = codings.transition.log_prior
        first, log_q = self.first.sample(known.entries[0], known.memory[0], codings.initial.log_prior, dice[0])
        initial = codings.initial.features(first)

        def step(carry: Any, inputs: tuple[Array, Dice]) -> tuple[Any, tuple[Code, Array]]:
            i, die = inputs
            entry = known.entries[i]
            seen = [entry, known.entries[i + 1], initial if self.state is None else self.state(carry)]
            summary = known.memory[i] if self.forward is None else jnp.concatenate([known.memory[i], carry])
            code, log_q = self.then.sample(jnp.concatenate(seen), summary, table, die)
            if self.forward is None:
                carry = move(carry, i, code)
            else:
                met = jnp.concatenate([entry, codings.transition.features(code)])
                carry = self.forward(carry, self.forward.prepared(met))
            return carry, (code, log_q)

        start = begin(first) if self.forward is None else self._begun(initial)
        order = jnp.arange(known.acted.size)
        _, (rest, log_qs) = jax.lax.scan(step, start, (order, dice[1]))
        return first, rest, log_q + jnp.sum(jnp.where(known.acted, log_qs, 0.0))

    def dice(self, key: Array, horizon: int) -> tuple[Dice, Dice]:
        """The chance of one draw. Consumes `key`."""
        key_first, key_rest = jax.random.split(key)
        return self.first.dice(key_first), jax.vmap(self.then.dice)(jax.random.split(key_rest, horizon))

    def _begun(self, initial: Array) -> Array:
        assert self.beginning is not None
        return jnp.tanh(self.beginning(initial))

    def _paid(self, seen: Seen) -> Any:
        """Rewards, where they are shown."""
        return seen.reward if self.architecture.rewards else ()

    def _entry(self, seen: Seen, time: Array) -> Array:
        """Features of one entry of a history; what it does not have is zero."""
        observed = jnp.where(seen.within, self.observation(seen.observation), 0.0)
        done = jnp.concatenate([self.action(seen.action), self.reward(self._paid(seen))])
        ended = seen.within & seen.ended & self.architecture.ends
        flags = jnp.stack([seen.within, seen.acted, ended]).astype(jnp.float32)
        time = jnp.where(seen.within, time, 0.0)
        return jnp.concatenate([observed, jnp.where(seen.acted, done, 0.0), flags, time[None]])


def first_network(
    key: Array, codings: Codings, pairs: Pairs, width: int, components: int, rewards: bool
) -> HindsightNetwork:
    """The network before it learns, its features fitted to what is within the pairs' histories. Consumes `key`."""
    live = np.asarray(pairs.episode.live)
    within = np.concatenate([np.ones((len(live), 1), bool), live], 1)
    observation = Features.fitted(pairs.episode.observation, within)
    action = Features.fitted(pairs.episode.action, live)
    reward = Features.fitted(pairs.episode.reward if rewards else (), live)
    state = None if pairs.state is None else Features.fitted(pairs.state, within)
    architecture = Architecture(
        width,
        components,
        observation.leaves,
        action.leaves,
        None if state is None else state.leaves,
        rewards,
        bool((~live).any()),
    )
    made = eqx.filter_jit(HindsightNetwork)(key, codings, architecture)
    fitted = observation, action, reward, state
    return eqx.tree_at(
        lambda n: (n.observation, n.action, n.reward, n.state), made, fitted, is_leaf=lambda x: x is None
    )
