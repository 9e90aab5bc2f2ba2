"""Does the model make episodes like the logged ones? MB-PE's own check, where no hindsight makes a sharper one.

The model is run under the behavior that made the log, and simulated episodes are held against logged ones: what they
return, how long they last and how they end, what they earn per step, what is seen and how that changes. Each is a row
of numbers per episode, and two samples of rows are told apart by their energy distance (Székely & Rizzo, 2013), against
the same with episodes exchanged: the steps of an episode are not independent, episodes are.

The behavior is fitted to the log as a function of the observation. Where it is none (`Doubt`), simulated episodes of a
right model differ too, and the verdict is caution, whatever they look like; unless a policy of the table gives the
logged probabilities, and then is the behavior, or the model shows its state, and then is held against the logged steps
themselves (`one_step`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.behavior import LOG_SCALES, FittedBehavior, fitted_behavior
from coulda.episodes.log import concatenate
from coulda.episodes.spaces import HashableSpace, features, named_leaves
from coulda.evaluation.diagnostics import RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.one_step import one_step_diagnostic, state_seen
from coulda.evaluation.reading import Log, Reading, generator, run, to_numpy
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Policy, Trajectory, rollout
from coulda.pomdp.walk import taken_log_probs
from coulda.tails import chi_square_above, normal_above

MOST_EPISODES = 2000
"""Of each side. With as many, means that differ by 0.15 standard deviations are found in 36 of 40 samples, by 0.1 in
19 of 40: smaller errors of a model pass."""
SIMULATED = 4
"""Episodes per logged one, as long as they are not too many: simulated ones are cheap, and with 4 the error of a
difference is √1.25 of the log's own."""
PERMUTATIONS = 200
"""Enough for the mean and the deviation of the statistic; the shape of its tail comes from its spectrum."""
DIRECTIONS = 24
"""Onto which vectors are projected: the energy distance is the mean over all of them."""
SPECTRUM = 200
"""Episodes that the spectrum is taken of."""
FEWEST = 10
"""Episodes of each side, from which on a quantity is tested."""
MOST_FEATURES = 256
"""Of an observation; more are projected onto so many random directions."""
MOST_CHANGES = 1024
"""Kinds of changes up to which they are told apart by the action."""
LARGE_DIFFERENCE = 0.25
"""In standard deviations between episodes. Measured on a patient who recovers or dies (tests/triage.py), logs of 100
episodes: of 100 logs of the right model one is cautioned against and none refused; of 5 logs each, models whose
episodes never end are refused in 5 and doubled rewards are warned of in 5, but transitions that are 30 % uniform in
none (in one log of 1,000 episodes they are warned of). What these tests cannot tell, the step ahead may where states
are seen, and the mean return says what it could show (`self_checks`)."""
SMALL_PENALTY = 0.01
"""Of the fitted behavior. With fit_behavior's own, 1, what was never done in 100 visits is done in 2 % of them."""
SMALL_GAP = 0.005
"""Nats per episode between the logged and the fitted behavior: they move no mean by more than √(2 · 0.005) = 0.1
standard deviations, which is less than is found."""
SMALL_CORRELATION = 0.05
"""Of what the fitted behavior leaves unexplained with what it does not see; it explains 0.25 % of the choices."""
QUANTITIES = (
    "return", "length", "end", "reward", "observations 0", "observations 1", "observations 2", "observations", "changes"
)  # fmt: skip
"""In the order in which they are told."""


_NOT_OF_THE_OBSERVATION = (
    "The behavior is not a function of the observation that could be fitted (what was done depends on the step, on "
    "what was done before, or otherwise on what was seen), so that the model cannot be checked by simulating it."
)


class Contrast(NamedTuple):
    """Whether simulated and logged episodes differ in one quantity."""

    phrase: str
    """What simulated episodes do, and logged ones: after "Simulated episodes of the logged behavior"."""
    name: str
    chance: float
    """Probability under a right model."""
    size: float
    """Largest difference of means, of returns and rewards also of deviations, in standard deviations of episodes."""


class Doubt(NamedTuple):
    """Why simulated episodes of a right model might differ."""

    sentence: str
    chance: float
    """Of what the doubt rests on."""


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
    log = _sample(rng, model, reading.log)
    logged = log.padded(model.horizon)
    behavior, doubt = _behavior(log, logged, reading.policies)
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
    sure = _has_probabilities(log) or seen is not None
    whole = (_verdict(tests, sure),) if tests else ()
    if doubt is not None:
        return Simulation(steps + whole)
    returns = np.concatenate([numbers["return"][:, 0] for numbers, _ in rounds]).astype(float)
    return Simulation(steps + whole, returns, reading.paid[:, : int(look.steps)].sum(1))


def _sample(rng: np.random.Generator, model: POMDP, log: Log) -> EpisodeLog:
    """Episodes of the log, in the model's spaces, of which a log may not have seen all."""
    found = sample(rng, log)
    seen, done = model.observation_space, model.action_space
    return replace(found, schema=replace(found.schema, observation_space=seen, action_space=done))


def sample(rng: np.random.Generator, log: Log) -> EpisodeLog:
    """Episodes of the log, not too many, in memory."""
    chosen = np.sort(rng.permutation(len(log))[:MOST_EPISODES])
    parts, first = [], 0
    for batch in log.batches():
        here = chosen[(chosen >= first) & (chosen < first + len(batch))] - first
        parts += [batch.take(here)] if len(here) else []
        first += len(batch)
    return concatenate(parts)


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


def _has_probabilities(log: EpisodeLog) -> bool:
    return log.schema.behavior == "logged" and log.has_probabilities


def _behavior(log: EpisodeLog, logged: Episode, policies: Mapping[str, Policy]) -> tuple[Policy, Doubt | None]:
    """Who made the log: a function of the observation, or a policy that gives the logged probabilities."""
    fitted = fitted_behavior(log, SMALL_PENALTY)
    if not _has_probabilities(log):
        chance = unexplained(fitted, logged)
        return fitted, Doubt(_NOT_OF_THE_OBSERVATION, chance) if chance < UNUSUAL else None
    taken, live = np.asarray(logged.log_prob, float), np.asarray(logged.live)
    doubt = _gap((taken - _taken(fitted, logged)).sum(1))
    if doubt is not None:
        for policy in policies.values():
            if (np.abs(taken - _taken(policy, logged))[live] < 1e-3).all():
                return policy, None
    return fitted, doubt


def _taken(policy: Policy, episodes: Episode) -> np.ndarray:
    return np.asarray(run(eqx.Partial(taken_log_probs, policy), (episodes,)), float)


def _gap(lost: np.ndarray) -> Doubt | None:
    """Of the log-likelihood of each episode that the fitted behavior loses against the logged probabilities, `[N]`.

    Its mean is the divergence of episodes under the one from those under the other. A fit to the same episodes loses
    nothing on average where the behavior is of its kind, and gains a little.
    """
    mean, error = float(lost.mean()), float(lost.std() / np.sqrt(len(lost)))
    chance = float(normal_above(mean / max(error, 1e-12)))
    if mean < SMALL_GAP or chance >= UNUSUAL:
        return None
    return Doubt(
        "The behavior is not a function of the observation that could be fitted (of the log-likelihood of an episode's "
        f"actions {mean:.2g} is lost), so that the model cannot be checked by simulating it.",
        chance,
    )


def unexplained(fitted: FittedBehavior, logged: Episode) -> float:
    """A score test of what the fitted behavior does not see: the action before, the step, squares of numbers.

    The probability that a behavior which is a function of the observation leaves as much unexplained.
    """
    scores, squares, errors = (np.asarray(x, float) for x in run(eqx.Partial(_scores, fitted), (logged,)))
    total, deviation = np.abs(scores.sum(0)), np.sqrt((scores**2).sum(0))
    size = total / np.sqrt(np.maximum(np.outer(squares.sum(0), errors.sum(0)).ravel(), 1e-12))
    # What happened in a few episodes only is not normal yet.
    often = (scores != 0).sum(0) >= FEWEST
    z = np.where(often & (size >= SMALL_CORRELATION), total / np.maximum(deviation, 1e-12), 0.0)
    return min(1.0, float(2 * normal_above(z.max()) * len(z)))


def _scores(fitted: FittedBehavior, episode: Episode) -> tuple[Array, Array, Array]:
    """Sums over an episode: unseen times unexplained `[U * K]`, and the squares of either, `[U]` and `[K]`."""
    acted_on = jax.tree.map(lambda leaf: leaf[:-1], episode.observation)
    inputs = jax.vmap(fitted.inputs)(acted_on)
    steps = len(inputs)
    outputs = inputs @ fitted.weights
    if fitted.log_scale is None:
        done = jax.nn.one_hot(episode.action, outputs.shape[1])
        unexplained = done - jax.nn.softmax(outputs)
    else:
        done = episode.action.reshape(steps, -1)
        unexplained = (done - outputs) / jnp.exp(jnp.clip(inputs @ fitted.log_scale, *LOG_SCALES))
    before = jnp.concatenate([jnp.zeros((1, done.shape[1])), done[:-1]])
    clock = jnp.linspace(0.0, 1.0, steps)[:, None]
    unseen = [before, clock]
    if inputs.shape[1] <= MOST_FEATURES:
        unseen.append(inputs**2)
    unseen = jnp.where(episode.live[:, None], jnp.concatenate(unseen, 1), 0.0)
    unexplained = jnp.where(episode.live[:, None], unexplained, 0.0)
    return (unseen.T @ unexplained).ravel(), jnp.sum(unseen**2, 0), jnp.sum(unexplained**2, 0)


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


def energy_test(rng: np.random.Generator, first: np.ndarray, second: np.ndarray) -> float:
    """Probability that two samples `[n, d]` and `[m, d]` of one distribution are as far apart as these.

    The mean and the deviation of the energy distance under exchange of rows come from permutations. Its law is that of
    Σ λ_k χ²_1, with λ the spectrum of the centered distances, and so is its tail: a χ² of the same skewness (Liu, Tang
    & Zhang, 2009). A gamma distribution of the same mean and variance would make 1e-4 of what is 4.5e-4, for numbers.
    """
    both = np.concatenate([first, second])
    if both.shape[1] > 1:
        directions = rng.normal(size=(both.shape[1], DIRECTIONS))
        both = both @ (directions / np.linalg.norm(directions, axis=0))
    labels = np.concatenate([np.full(len(first), 1 / len(first)), np.full(len(second), -1 / len(second))])
    signs = np.stack([labels, *(rng.permutation(labels) for _ in range(PERMUTATIONS))])
    found, *chance = np.sum([_distances(column, signs) for column in both.T], axis=0)
    mean, deviation = float(np.mean(chance)), float(np.std(chance, ddof=1))
    if deviation <= 1e-12 * max(found, 1e-300):
        return 1.0
    variation, skewness = _shape(both[rng.permutation(len(both))[:SPECTRUM]])
    # So few permutations may miss the tail that makes most of the deviation: the larger of two estimates.
    deviation, freedom = max(deviation, variation * mean), 8 / skewness**2
    return float(chi_square_above(freedom + (found - mean) / deviation * np.sqrt(2 * freedom), freedom))


def _distances(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """∫ (F - G)² for each row of signs, half the energy distance of one column of numbers."""
    order = np.argsort(values)
    apart = np.take(signs, order, axis=1)
    np.square(np.cumsum(apart, 1, out=apart), out=apart)
    return apart[:, :-1] @ np.diff(values[order])


def _shape(rows: np.ndarray) -> tuple[float, float]:
    """Deviation by mean, and skewness, of Σ λ_k χ²_1, with λ the spectrum of the centered distances between rows."""
    distance = np.abs(rows[:, None, :] - rows[None, :, :]).sum(-1)
    centered = -(distance - distance.mean(0) - distance.mean(1)[:, None] + distance.mean())
    square = centered @ centered
    first, second, third = np.trace(centered), np.trace(square), np.sum(square * centered)
    if second <= 0:  # all of these rows are equal: the others differ in a few, as a coin does
        return np.sqrt(2), np.sqrt(8)
    return float(np.sqrt(2 * second) / first), float(np.clip(np.sqrt(8) * third / second**1.5, 0.1, np.sqrt(8)))


def _verdict(tests: list[Contrast], sure: bool) -> Diagnostic:
    """Holm's over all tests; of those that differ the first is told in full."""
    adjusted = holm([test.chance for test in tests])
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


def holm(chances: list[float]) -> list[float]:
    """Probabilities adjusted for being several (Holm, 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.5, 0.02])]
    [0.03, 0.5, 0.04]
    """
    order = np.argsort(chances)
    scaled = np.asarray(chances)[order] * np.arange(len(chances), 0, -1)
    adjusted = np.empty(len(chances))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()
