"""Does the model make episodes like the logged ones? MB-PE's own check, where no hindsight makes a sharper one.

The model is run under the behavior that made the log, and simulated episodes are held against logged ones: what they
return, how long they last and how they end, what they earn per step, what is seen and how that changes. Each is a row
of numbers per episode, and two samples of rows are told apart by their energy distance (`two_samples`), against the
same with episodes exchanged: the steps of an episode are not independent, episodes are.

The behavior is fitted to the log as a function of the observation (`logged_behavior`). Where it is none, simulated
episodes of a right model differ too, and the verdict is caution, whatever they look like; unless a policy of the table
gives the logged probabilities, and then is the behavior, or the model shows its state, and then is held against the
logged steps themselves (`one_step`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.behavior import FEWEST, MOST_FEATURES, has_probabilities, logged_behavior
from coulda.episodes.spaces import HashableSpace, features, named_leaves
from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.one_step import one_step_diagnostic, state_seen
from coulda.evaluation.reading import MOST_EPISODES, Reading, generator, sample_for, to_numpy
from coulda.evaluation.two_samples import energy_test
from coulda.hindsight.ranks import holm
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Policy, Trajectory, rollout
from coulda.pomdp.batching import run

SIMULATED = 4
"""Episodes per logged one, as long as they are not too many: simulated ones are cheap, and with 4 the error of a
difference is √1.25 of the log's own."""
MOST_CHANGES = 1024
"""Kinds of changes up to which they are told apart by the action."""
LARGE_DIFFERENCE = 0.25
"""In standard deviations between episodes. Measured on a patient who recovers or dies (tests/triage.py), logs of 100
episodes: of 100 logs of the right model one is cautioned against and none refused; of 5 logs each, models whose
episodes never end are refused in 5 and doubled rewards are warned of in 5, but transitions that are 30 % uniform in
none (in one log of 1,000 episodes they are warned of). What these tests cannot tell, the step ahead may where states
are seen, and the mean return says what it could show (`diagnostics`)."""
QUANTITIES = (
    "return", "length", "end", "reward", "observations 0", "observations 1", "observations 2", "observations", "changes"
)  # fmt: skip
"""In the order in which they are told."""


class Contrast(NamedTuple):
    """Whether simulated and logged episodes differ in one quantity."""

    phrase: str
    """What simulated episodes do, and logged ones: after "Simulated episodes of the logged behavior"."""
    name: str
    chance: float
    """Probability under a right model."""
    size: float
    """Largest difference of means, of returns and rewards also of deviations, in standard deviations of episodes."""


class Look(eqx.Module):
    """What of an episode is compared; the same of logged and of simulated ones."""

    observations: HashableSpace = eqx.field(static=True)
    actions: HashableSpace = eqx.field(static=True)
    closing: bool = eqx.field(static=True)
    """Whether the observation after the last action was logged."""
    steps: Array
    """How many steps of each episode are looked at: all, or up to where the first logged one was cut off."""
    times: Array
    """Steps whose observations are compared, `[3]`: the first, a middle and a late one."""
    discount: float = eqx.field(static=True)
    """γ of the return."""

    def __call__(self, episode: Episode) -> dict[str, Array]:
        """By quantity: numbers of one episode, `[d]`; NaN where it has none."""
        live = episode.live & (jnp.arange(episode.live.shape[0]) < self.steps)
        length = jnp.sum(live)
        total = jnp.sum(jnp.where(live, episode.reward, 0.0))
        seen = jnp.arange(live.shape[0] + 1) < length + int(self.closing)
        observed = jax.vmap(self._features)(episode.observation)
        paid = eqx.tree_at(lambda e: e.reward, episode, jnp.where(live, episode.reward, 0.0))
        found = {
            "return": paid.discounted_return(self.discount)[None],
            "length": length[None].astype(float),
            "end": (length < self.steps)[None].astype(float),
            "reward": (total / length.astype(float))[None],
            "observations": _mean(observed, seen),
        }
        for i in range(3):
            found[f"observations {i}"] = jnp.where(seen[self.times[i]], observed[self.times[i]], jnp.nan)
        return found | {"changes": self._changes(episode, observed, live & seen[1:])}

    def _features(self, observation: Any) -> Array:
        found = features(self.observations.value, observation)
        # Infinities are allowed in observations, and would make a mean of nothing.
        found = jnp.clip(found, -1e30, 1e30)
        if len(found) <= MOST_FEATURES:
            return found
        directions = np.random.default_rng(0).normal(size=(len(found), MOST_FEATURES)) / np.sqrt(len(found))
        return found @ jnp.asarray(directions, found.dtype)

    def _changes(self, episode: Episode, observed: Array, moved: Array) -> Array:
        """How often each (o, a, o') occurs; or how far features move, by the action."""
        seen, done = self.observations.value, self.actions.value
        if isinstance(seen, spaces.Discrete) and isinstance(done, spaces.Discrete):
            shape = int(seen.n), int(done.n), int(seen.n)
            if np.prod(shape) <= MOST_CHANGES:
                o, a = episode.observation - int(seen.start), episode.action - int(done.start)
                counts = jnp.zeros(shape).at[o[:-1], a, o[1:]].add(moved.astype(float)) / moved.sum(dtype=float)
                return counts.ravel()
        change = observed[1:] - observed[:-1]
        change = jnp.concatenate([change, jnp.abs(change)], 1)
        if not isinstance(done, spaces.Discrete) or int(done.n) * change.shape[1] > MOST_CHANGES:
            return _mean(change, moved)
        action = jax.nn.one_hot(episode.action - int(done.start), int(done.n))
        return _mean((action[:, :, None] * change[:, None, :]).reshape(len(change), -1), moved)

    @property
    def scaled(self) -> bool:
        """Whether observations hold numbers, whose scales mean nothing; frequencies of categories do."""
        leaves = [leaf for _, leaf in named_leaves(self.observations.value, "")]
        return any(isinstance(leaf, spaces.Box) for leaf in leaves)


def _mean(values: Array, where: Array) -> Array:
    """Over the chosen steps, `[T, d]` to `[d]`; NaN where there are none."""
    return jnp.sum(jnp.where(where[:, None], values, 0.0), 0) / jnp.sum(where, dtype=float)


class Simulation(NamedTuple):
    """What came of simulating the logged behavior."""

    diagnostics: tuple[Diagnostic, ...] = ()
    made: np.ndarray = np.zeros(0)
    """Returns of simulated episodes, at least as many as logged ones; none where nothing was simulated."""
    logged: np.ndarray = np.zeros(0)
    """Returns of all logged ones, over the same steps."""


def simulate(key: Array, model: POMDP, reading: Reading) -> Simulation:
    """Whether the model, run under the behavior that made the log, makes episodes like the logged ones.

    Consumes `key`. There is nothing to say where actions are neither discrete nor continuous.
    """
    if not isinstance(model.action_space, spaces.Discrete | spaces.Box):
        return Simulation()
    key_log, key_simulation, key_steps = jax.random.split(key, 3)
    rng = generator(key_log)
    log = sample_for(rng, model, reading.log)
    logged = log.padded(model.horizon)
    behavior, doubt = logged_behavior(log, logged, reading.policies)
    look = _look(model, log, reading.asked.discount)
    size = min(MOST_EPISODES, SIMULATED * len(log))
    program = eqx.Partial(_simulated, model, behavior, look)
    rounds = [
        to_numpy(run(program, (jax.random.split(part, size),)), size)
        for part in jax.random.split(key_simulation, 1 if doubt else -(-len(reading) // size))
    ]
    made, shown = rounds[0]
    seen = state_seen(model, shown)
    steps = one_step_diagnostic(key_steps, model, log, seen) if seen is not None else ()
    if doubt is not None and not steps:
        return Simulation((Diagnostic("simulation", doubt.chance, "caution", doubt.sentence),))
    # Where the behavior is not known, the first observations are all that does not depend on it. Where rewards of seen
    # states were tested, noise in the logged ones that the model does not have is no error: their means decide.
    quantities = tuple(name for name in QUANTITIES if not (steps and name in ("return", "reward")))
    quantities = quantities if doubt is None else ("observations 0",)
    tests = list(_tests(rng, look, to_numpy(run(look, (logged,)), len(log)), made, quantities))
    sure = has_probabilities(log) or seen is not None
    whole = (_verdict(tests, sure),) if tests else ()
    if doubt is not None:
        return Simulation(steps + whole)
    returns = np.concatenate([numbers["return"][:, 0] for numbers, _ in rounds]).astype(float)
    return Simulation(steps + whole, returns, reading.paid[:, : int(look.steps)].sum(1))


def _look(model: POMDP, log: EpisodeLog, discount: float) -> Look:
    """Up to where the first episode was cut off: from there on a simulated one that goes on is no contradiction."""
    cut = log.lengths[~log.terminated]
    steps = min([model.horizon, *cut.tolist()])
    lengths = np.minimum(log.lengths, steps)
    taken = np.arange(steps) < lengths[:, None]
    middle, late = np.quantile(np.nonzero(taken)[1], [0.5, 0.9], method="nearest")
    return Look(
        HashableSpace(model.observation_space),
        HashableSpace(model.action_space),
        log.schema.last_observation == "logged",
        jnp.int32(steps),
        jnp.asarray([0, middle, late], jnp.int32),
        discount,
    )


def _simulated(model: POMDP, behavior: Policy, look: Look, key: Array) -> tuple[dict[str, Array], Any]:
    trajectory = rollout(model, behavior, model.scenario_prior.sample(key))
    return look(trajectory.episode), _seen_and_hidden(model, trajectory)


def _seen_and_hidden(model: POMDP, trajectory: Trajectory) -> Any:
    """Numbers of observations and of states `[T]`; or, where they are not numbered, whether they are the same."""
    state, seen = trajectory.state, trajectory.episode.observation
    if isinstance(model, FinitePOMDP) and isinstance(model.observation_space, spaces.Discrete):
        return seen, state.index
    shape = lambda tree: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
    if shape(state) != shape(seen):
        return jnp.zeros((), bool)
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(seen), strict=True)
    return jnp.stack([jnp.all(a == b) for a, b in pairs]).all()


def _tests(
    rng: np.random.Generator,
    look: Look,
    logged: dict[str, np.ndarray],
    made: dict[str, np.ndarray],
    quantities: tuple[str, ...],
) -> Iterable[Contrast]:
    """Of the quantities, those that can be tested."""
    times = np.asarray(look.times).tolist()
    for name in quantities:
        number = name.removeprefix("observations ")
        if number.isdigit() and times[int(number)] in times[: int(number)]:
            continue
        ours, theirs = (x[name][~np.isnan(x[name]).any(1)].astype(float) for x in (logged, made))
        if min(len(ours), len(theirs)) < FEWEST:
            continue
        deviation = np.concatenate([ours, theirs]).std(0)
        varies = deviation > 1e-9 * np.abs(ours).max(0, initial=1.0)
        if not varies.any():
            continue
        ours, theirs, deviation = ours[:, varies], theirs[:, varies], deviation[varies]
        size = float((np.abs(ours.mean(0) - theirs.mean(0)) / deviation).max())
        if name in ("return", "reward"):  # other stakes are another world, also where gains and losses cancel
            size = max(size, float(np.abs(ours.std(0) - theirs.std(0)).max() / deviation.max()))
        scale = deviation if look.scaled else 1.0
        chance = energy_test(rng, ours / scale, theirs / scale)
        step = times[int(number)] if number.isdigit() else None
        yield Contrast(
            _phrase(name, float(ours[:, 0].mean()), float(theirs[:, 0].mean()), size, look, step), name, chance, size
        )


def _phrase(name: str, logged: float, made: float, size: float, look: Look, step: int | None) -> str:
    by = f"(by up to {size:.2g} standard deviations on average)"
    if step is not None:
        return f"show other observations at step {step} {by}"
    return {
        "return": f"return {made:.3g} on average, the logged ones {logged:.3g}",
        "length": f"last {made:.3g} steps on average, the logged ones {logged:.3g}",
        "end": f"end before step {int(look.steps)} in {made:.0%} of cases, the logged ones in {logged:.0%}",
        "reward": f"earn {made:.3g} per step on average, the logged ones {logged:.3g}",
        "observations": f"show other observations {by}",
        "changes": f"go from one observation to the next in other ways {by}",
    }[name]


def _verdict(tests: list[Contrast], sure: bool) -> Diagnostic:
    """Holm's over all tests; of those that differ the first is told in full."""
    adjusted = holm([test.chance for test in tests]).tolist()
    chance = min(adjusted)
    if chance >= UNUSUAL:
        told = "".join(f" ({test.phrase})" for test in tests if test.name == "return")
        sentence = f"Simulated episodes of the logged behavior cannot be told from the logged ones{told}."
        return Diagnostic("simulation", chance, "trust", sentence)
    differ = [(test, p) for test, p in zip(tests, adjusted, strict=True) if p < UNUSUAL]
    names = list(dict.fromkeys(test.name.split()[0] for test, _ in differ[1:]))
    others = f"; {', '.join(names)} differ too" if names else ""
    sentence = (
        f"Simulated episodes of the logged behavior {differ[0][0].phrase}{others}, which happens in a right model with "
        f"probability {chance:.0e}: the model is wrong about the world."
    )
    certain = any(p < RARE and test.size >= LARGE_DIFFERENCE for test, p in differ)
    if certain and not sure:
        sentence = sentence.removesuffix(": the model is wrong about the world.")
        sentence += ": the model is wrong, or the behavior knew more than the observation."
    return Diagnostic("simulation", chance, "do not trust" if certain and sure else "caution", sentence)
