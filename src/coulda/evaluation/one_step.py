"""Does the model foresee the next step? A check of models that show their state, which needs no behavior at all.

From every logged observation and action the model makes a step of its own. What it pays, where it leads and whether it
is the last, less the logged same, is zero on average, also times anything that was known before (the observation and
the action): the sums over an episode are independent over episodes, and are tested one by one.
"""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.spaces import features
from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.reading import to_numpy
from coulda.pomdp import POMDP, Episode, FinitePOMDP
from coulda.pomdp.batching import run
from coulda.pomdp.observing import state_shapes
from coulda.pomdp.scenario import at_step
from coulda.scales import normal_above

DRAWS = 4
"""Steps of the model for each logged one; the error of their difference is √1.25 of the log's own."""
MOST_PRODUCTS = 2048
"""Of what is foreseen with what was known before; where there are more, only the action is known."""
SMALL_MISS, LARGE_MISS = 0.02, 0.25
"""In standard deviations of what is foreseen: a smaller one is rounding, or of no consequence."""
KINDS = ("rewards", "ends", "observations")


class StateSeen(eqx.Module):
    """The state of a model in which it can be told from the observation."""

    numbers: Array | None
    """Of a finite model: the state's number by the observation's; -1 where the model never shows it."""

    def __call__(self, model: POMDP, previous_action: Any, observation: Any) -> tuple[Any, Array]:
        """The state, and whether it is known."""
        if self.numbers is None:
            # A log may keep numbers in wider types than the model does.
            own = jax.tree.map(lambda leaf, shape: leaf.astype(shape.dtype), observation, state_shapes(model))
            return own, jnp.ones((), bool)
        assert isinstance(model, FinitePOMDP)
        assert isinstance(model.observation_space, gymnasium.spaces.Discrete)
        number = self.numbers[observation - int(model.observation_space.start)]
        states = model.states(previous_action, observation)
        place = jnp.argmax(states.index == number)
        return jax.tree.map(lambda leaf: leaf[place], states), (states.index == number).any()


def state_seen(model: POMDP, shown: Any) -> StateSeen | None:
    """How states are told from observations, judging from simulated episodes; None where they are hidden.

    `shown` are the numbers of observations and of states `[n, T + 1]`, or whether they were the same, `[n]`.
    """
    if not isinstance(shown, tuple):
        return StateSeen(None) if bool(shown.all()) else None
    assert isinstance(model.observation_space, gymnasium.spaces.Discrete)
    start, size = int(model.observation_space.start), int(model.observation_space.n)
    pairs = np.unique(np.stack([part.ravel().astype(int) for part in shown], 1), axis=0)
    if len(pairs) > len(np.unique(pairs[:, 0])):
        return None
    numbers = np.full(size, -1)
    numbers[pairs[:, 0] - start] = pairs[:, 1]
    return StateSeen(jnp.asarray(numbers))


class Errors(eqx.Module):
    """Sums over one episode, of W things that were known before and Y that are foreseen."""

    total: Array
    """Of logged less foreseen, times what was known, `[W, Y]`."""
    scale: Array
    """Of the size of what was known, `[W, Y]`."""
    moments: Array
    """Of 1, y and y² of the logged, `[3, Y]`."""


def one_step_diagnostic(key: Array, model: POMDP, log: EpisodeLog, seen: StateSeen) -> tuple[Diagnostic, ...]:
    """Whether the model's steps from what was seen and done are like the logged ones. Consumes `key`.

    Nothing is said where there are too few episodes, or too many numbers in an observation.
    """
    look = Foresight(model, seen, log.schema.last_observation == "logged")
    if len(log) < FEW_EPISODES or look.sizes(products=False) > MOST_PRODUCTS:
        return ()
    inputs = log.padded(model.horizon), jnp.asarray(log.terminated), jax.random.split(key, len(log))
    found = jax.tree.map(lambda leaf: np.asarray(leaf, float), to_numpy(run(look, inputs), len(log)))
    count, mean, square = found.moments.sum(0) / np.maximum(found.moments[:, :1].sum(0), 1)
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0)) * (count > 0)
    # A sum over independent terms by the root of the sum of their squares has no heavier tails than the normal.
    total, scale = found.total.sum(0), found.scale.sum(0)
    z = np.abs(total) / np.sqrt(np.maximum((found.total**2).sum(0), 1e-300))
    size = np.abs(total) / np.maximum(scale * deviation, 1e-300)
    often = (found.scale > 0).sum(0) >= FEW_EPISODES
    matters = often & (size >= SMALL_MISS) & ((found.total != 0).sum(0) >= FEW_EPISODES)
    chance = np.where(matters, np.minimum(1.0, 2 * normal_above(z) * max(1, often.sum())), 1.0)
    return (_verdict(chance, size),)


class Foresight(eqx.Module):
    """What is foreseen of an episode, and what came."""

    model: POMDP
    seen: StateSeen
    closing: bool = eqx.field(static=True)
    """Whether the observation after the last action was logged."""

    def __call__(self, episode: Episode, terminated: Array, key: Array) -> Errors:
        """Of one episode."""
        steps = episode.live.shape[0]
        before, after = (jax.tree.map(lambda leaf, i=i: leaf[i : steps + i], episode.observation) for i in (0, 1))
        first = jax.tree.map(lambda leaf: jnp.full_like(leaf[:1], -1), episode.action)
        earlier = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:-1]]), first, episode.action)
        states, told = jax.vmap(lambda action, observation: self.seen(self.model, action, observation))(earlier, before)
        keys = jax.random.split(key, DRAWS)
        foreseen = jnp.mean(jax.vmap(lambda key: self._foreseen(key, states, episode.action))(keys), 0)
        last = jnp.arange(steps) == episode.length - 1
        logged = jax.vmap(self._made)(episode.reward, last & terminated, after)
        # The horizon ends every episode. What follows a last step is known where it was logged, or where it is the end.
        early = jnp.arange(steps) < self.model.horizon - 1
        followed = ~last | self.closing | (terminated & early)
        followed = jnp.broadcast_to(followed[:, None], (steps, logged.shape[1] - 2))
        valid = jnp.concatenate([jnp.ones((steps, 1), bool), early[:, None], followed], 1)
        valid &= (episode.live & told)[:, None] & jnp.isfinite(logged) & jnp.isfinite(foreseen)
        logged, foreseen = (jnp.where(valid, values, 0.0) for values in (logged, foreseen))
        known = self._known(before, episode.action)
        return Errors(
            known.T @ (logged - foreseen),
            jnp.abs(known).T @ valid.astype(float),
            jnp.stack([valid.astype(float).sum(0), logged.sum(0), (logged**2).sum(0)]),
        )

    def _foreseen(self, key: Array, states: Any, actions: Any) -> Array:
        """What one draw of the noise makes of every step, `[T, Y]`."""
        scenario = self.model.scenario_prior.sample(key)

        def step(t: Array, state: Any, action: Any) -> Array:
            following = self.model.transition(state, action, at_step(scenario.transition, t))
            observation = self.model.observe(following, at_step(scenario.observation, t + 1))
            return self._made(self.model.reward(state, action, following), self.model.terminal(following), observation)

        return jax.vmap(step)(jnp.arange(self.model.horizon), states, actions)

    def _made(self, reward: Array, ended: Array, observation: Any) -> Array:
        """The reward, the end, and the observation with the squares of its numbers, `[Y]`.

        Where observations after the last action were not logged, those of ends are zero on both sides: to leave them
        out would leave out what leads there.
        """
        seen = self._numbers(observation)
        seen = seen if self.closing else jnp.where(ended, 0.0, seen)
        squares = seen**2 if isinstance(self.model.observation_space, gymnasium.spaces.Box) else seen[:0]
        return jnp.concatenate([jnp.stack([jnp.asarray(reward, float), ended.astype(float)]), seen, squares])

    def _known(self, observations: Any, actions: Any) -> Array:
        """Which action was taken, alone and times what was seen where that is not too much, `[T, W]`."""
        space = self.model.action_space
        taken = jnp.ones((self.model.horizon, 1))
        if isinstance(space, gymnasium.spaces.Discrete):
            taken = jax.nn.one_hot(actions - int(space.start), int(space.n))
        if self.sizes(products=True) > MOST_PRODUCTS:
            return taken
        seen = jax.vmap(self._numbers)(observations)
        return jnp.concatenate([taken, (taken[:, :, None] * seen[:, None, :]).reshape(len(taken), -1)], 1)

    def _numbers(self, observation: Any) -> Array:
        return jnp.clip(features(self.model.observation_space, observation), -1e15, 1e15)

    def sizes(self, *, products: bool) -> int:
        """W · Y."""
        space = self.model.observation_space
        seen = gymnasium.spaces.flatdim(space)
        made = 2 + seen * (1 + isinstance(space, gymnasium.spaces.Box))
        actions = self.model.action_space
        taken = int(actions.n) if isinstance(actions, gymnasium.spaces.Discrete) else 1
        return taken * (1 + seen * products) * made


def _verdict(chance: np.ndarray, size: np.ndarray) -> Diagnostic:
    """Of all products `[W, Y]`, tested together."""
    least = float(chance.min())
    if least >= UNUSUAL:
        sentence = (
            "From what was seen and done, the model foresees rewards, ends and observations like the logged ones."
        )
        return Diagnostic("one step ahead", least, "trust", sentence)
    wrong = [
        name for name, part in zip(KINDS, np.split(chance, [1, 2], 1), strict=True) if part.min(initial=1) < UNUSUAL
    ]
    most = float(size[chance < UNUSUAL].max())
    sentence = (
        f"From what was seen and done, the model foresees other {', '.join(wrong)} than the logged ones (by up to "
        f"{most:.2g} standard deviations), which happens in a right model with probability {least:.0e}: the model is "
        "wrong about the world."
    )
    certain = bool(((chance < RARE) & (size >= LARGE_MISS)).any())
    return Diagnostic("one step ahead", least, "do not trust" if certain else "caution", sentence)
