"""Mismatch: is the noise that was inferred from the log distributed as the model says?

Averaged over the log, the posterior of the noise is its prior, if the model is right (Lemma 1): what of the averaged
posterior p(U) does not have is what the model does not know of the world (paper, appendix). Held against it are the
noise itself (`scores`), noise times what came before it, and in small finite models frequencies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import special

from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.scores import Moments, Scores, of_noise, scored, scores
from coulda.noise import Bernoulli, Gumbel, Independent, NoiseDistribution, Normal, Uniform
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Scenario
from coulda.scales import chi_square_above, normal_above

SMALL_SHIFT, LARGE_SHIFT = 0.05, 0.25
"""Of noise of unit scale: Gumbel noise shifted by ε multiplies the odds by e^ε, here by 1.05 and 1.28."""
COUNT_LIMIT = 1024
"""Numbers of a transition table up to which transitions are counted too."""
ENOUGH_EXPECTED = 5
"""In a cell of a chi-square test; rarer transitions are counted together."""
LARGE_DEVIATION = 0.3
"""√((χ² - df) / n): Cohen's (1988) medium effect. A death rate of 5 % taken for 1 % is one."""
VISIBLE_DEVIATION = 0.3
"""Cohen's medium effect. Where a log could not show one, it cannot speak for the model. Measured (results/NOTES.md): of
48 models with wrong transitions five passed this and the log's mean, and none of them was off, whatever the log could
show."""
POWER = 0.8
"""The probability with which a deviation shall be found, as is usual."""


class Shift(eqx.Module):
    """Of one episode: noise, alone and times what was seen and done before it. All are zero on average.

    Noise is independent of all that came before it, so that a model whose noise must make up for a wrong reaction to
    an action, or to a state, shows in the sums though the noise alone averages to nothing.
    """

    scores: Scores
    """Of the noise itself; nothing of a finite model, whose frequencies tell more."""
    total: Array
    """Of noise times what came before it, `[D]`."""
    steps: Array
    """How many steps were summed, `[D]`."""
    scale: Array
    """Σ |w| of what each step was multiplied with, `[D]`."""
    moves: "Counts"
    """How often each transition was made on the inferred scenario, `[A * S, S]`."""
    sights: "Counts"
    """How often each observation was made in each inferred state, `[S, O]`."""


class Counts(eqx.Module):
    """What was counted, and what the model would have; `[0, 0]` where nothing is."""

    found: Array
    expected: Array

    @staticmethod
    def none() -> "Counts":
        """Nothing counted."""
        return Counts(jnp.zeros((0, 0)), jnp.zeros((0, 0)))


def shift(
    model: POMDP,
    drawn: Scenario,
    states: Any,
    prior: Scenario | None,
    episode: Episode,
    steps: Array,
    *,
    observed: bool = False,
    closing: bool = True,
) -> Shift:
    """Of scenarios `[M, ...]` that were inferred from h_t, t = `steps`, in the mean.

    Args:
        model: whose noise it is.
        drawn: the scenarios.
        states: where the logged actions lead on each of them, `[M, T + 1, ...]`.
        prior: draws of the prior that the source carried onto the posterior, so that their difference varies little.
        episode: the logged one.
        steps: t.
        observed: whether the noise of observations was inferred.
        closing: whether the observation after the last action was logged.
    """
    first, moves = jnp.zeros(0), jnp.zeros((episode.live.shape[0], 0))
    found = Scores({}, {})
    if not isinstance(model, FinitePOMDP):
        found = scores(model, drawn, episode, steps, observed=observed)
        if scored(model.transition_noise):
            moves = _over_time(model, drawn) - (0.0 if prior is None else _over_time(model, prior))
    elif prior is not None and is_plain(model.initial_noise) and is_plain(model.transition_noise):
        first = _differences(drawn.initial, prior.initial, 0)
        moves = _differences(drawn.transition, prior.transition, 1)
    taken, numbers = before(model, episode)
    weight = jnp.concatenate([taken, numbers], 1)
    if weight.shape[1] * moves.shape[1] > COUNT_LIMIT:
        weight = taken
    total = jnp.einsum("tw,td->wd", weight, moves)
    columns = [(weight != 0).sum(0), jnp.abs(weight).sum(0)]
    summed, scale = (jnp.broadcast_to(column[:, None].astype(float), total.shape).ravel() for column in columns)
    once = jnp.ones_like(first)
    counts = jax.vmap(lambda path: _counts(model, path, episode, closing))(states)
    return Shift(
        found,
        jnp.concatenate([first, total.ravel()]),
        jnp.concatenate([once, summed]),
        jnp.concatenate([once, scale]),
        *jax.tree.map(lambda leaf: leaf.mean(0), counts),
    )


def _over_time(model: POMDP, drawn: Scenario) -> Array:
    """Scores of the noise of transitions, in the mean over scenarios, `[T, d]`."""
    of_step = lambda u: jnp.concatenate(of_noise(model.transition_noise, u))
    return jax.vmap(jax.vmap(of_step))(drawn.transition).mean(0)


def before(model: POMDP, episode: Episode) -> tuple[Array, Array]:
    """What is known before a step's noise: the action `[T, A]`, and that times the numbers seen and done `[T, ...]`.

    Zero after the end, and where a number is missing.
    """
    space, live = model.action_space, episode.live[:, None]
    taken, numbers = live.astype(float), jnp.zeros((len(live), 0))
    if isinstance(space, gymnasium.spaces.Discrete):
        taken = taken * jax.nn.one_hot(episode.action - int(space.start), int(space.n))
    elif isinstance(space, gymnasium.spaces.Box):
        numbers = episode.action.reshape(len(live), -1).astype(float)
    if isinstance(model.observation_space, gymnasium.spaces.Box):
        seen = episode.observation[:-1].reshape(len(live), -1).astype(float)
        numbers = jnp.concatenate([numbers, seen], 1)
    numbers = jnp.where(live & jnp.isfinite(numbers), numbers, 0.0)
    return taken, (taken[:, :, None] * numbers[:, None, :]).reshape(len(live), -1)


def _counts(model: POMDP, states: Any, episode: Episode, closing: bool) -> tuple[Counts, Counts]:
    """Transitions and observations of a small finite model, as inferred and as expected.

    Averaged over the log, inferred states and noise are distributed as in the model (Lemma 1), so that transitions
    between inferred states, and what is seen in them, are as frequent as the model's tables say, also where the states
    are hidden.
    """
    if not isinstance(model, FinitePOMDP):
        return Counts.none(), Counts.none()
    return _moves(model, states, episode), _sights(model, states, episode, closing)


def _moves(model: FinitePOMDP, states: Any, episode: Episode) -> Counts:
    size, start = model.num_states, int(model.action_space.start)
    if model.num_actions * size**2 > COUNT_LIMIT:
        return Counts.none()
    row = jax.nn.one_hot((episode.action - start) * size + states.index[:-1], model.num_actions * size)
    row = row * episode.live[:, None].astype(row.dtype)
    found = jnp.einsum("tr,tk->rk", row, jax.nn.one_hot(states.index[1:], size))
    return Counts(found, row.sum(0)[:, None] * model.tables()[0].reshape(-1, size))


def _sights(model: FinitePOMDP, states: Any, episode: Episode, closing: bool) -> Counts:
    space = model.observation_space
    if not isinstance(space, gymnasium.spaces.Discrete) or model.num_states * int(space.n) > COUNT_LIMIT:
        return Counts.none()
    every = jnp.arange(int(space.n)) + int(space.start)
    likely = jax.vmap(lambda s: jax.vmap(lambda o: jnp.exp(model.observation_log_prob(o, s)))(every))(states)
    made = jnp.arange(episode.live.shape[0] + 1) < jnp.sum(episode.live) + int(closing)
    row = jax.nn.one_hot(states.index, model.num_states) * made[:, None].astype(float)
    seen = jax.nn.one_hot(episode.observation - int(space.start), int(space.n))
    return Counts(jnp.einsum("ts,to->so", row, seen), jnp.einsum("ts,to->so", row, likely))


def is_plain(distribution: NoiseDistribution) -> bool:
    """Whether draws are numbers whose averages mean something; lazy noise, for one, is a seed.

    >>> is_plain(Independent({"a": Gumbel((3,)), "b": Normal()}))
    True
    """
    if isinstance(distribution, Independent):
        return all(is_plain(part) for part in distribution.parts())
    return isinstance(distribution, Uniform | Normal | Gumbel | Bernoulli)


def _differences(inferred: Any, prior: Any, axes: int) -> Array:
    """Of all numbers behind the scenarios and so many axes, in the mean over scenarios."""
    pairs = zip(jax.tree.leaves(inferred), jax.tree.leaves(prior), strict=True)
    means = [(a.astype(float) - b.astype(float)).mean(0) for a, b in pairs]
    return jnp.concatenate([x.reshape(*x.shape[:axes], -1) for x in means], axes)


@dataclass
class Shifts:
    """Running moments of `Shift` over the log, `[D]` each."""

    count: int = 0
    scores: Moments = field(default_factory=Moments)
    steps: Any = 0.0
    scale: Any = 0.0
    total: Any = 0.0
    squares: Any = 0.0
    moves: "Sums" = field(default_factory=lambda: Sums())
    sights: "Sums" = field(default_factory=lambda: Sums())

    def add(self, shifts: Shift) -> None:
        """Count those of some episodes, `[n, D]`."""
        total = np.asarray(shifts.total, float)
        self.count += len(total)
        if shifts.scores.sums:
            self.scores.add(shifts.scores)
        self.steps = self.steps + np.sum(shifts.steps, axis=0, dtype=float)
        self.scale = self.scale + np.sum(shifts.scale, axis=0, dtype=float)
        self.total = self.total + total.sum(0)
        self.squares = self.squares + (total**2).sum(0)
        self.moves.add(shifts.moves)
        self.sights.add(shifts.sights)

    def diagnostic(self) -> tuple[Diagnostic, ...]:
        """The least likely finding: a shift of the noise, or transitions or observations that are too frequent."""
        found = (
            *self._scores(),
            *self._largest_shift(),
            *count_test("transitions deviate by", self.moves.found, self.moves.expected),
            *count_test("observations deviate by", self.sights.found, self.sights.expected),
        )
        if not found:
            return ()
        worst = min(found, key=lambda diagnostic: diagnostic.value)
        # As many times the chance of a false alarm as there are tests.
        chance = min(1.0, len(found) * worst.value)
        return (_mismatch(worst.what, worst.size, chance, worst.large, self._resolution()),)

    def _scores(self) -> list["_Finding"]:
        """One test for each kind of noise."""
        if self.count < FEW_EPISODES or not self.scores.count:
            return []
        return [_Finding(*group, LARGE_SHIFT) for group in self.scores.groups(SMALL_SHIFT)]

    def _resolution(self) -> float:
        """The smallest deviation of transitions that so many steps would show four times in five."""
        return resolution(self.moves.found, self.moves.expected)

    def _largest_shift(self) -> tuple["_Finding", ...]:
        """The largest shift over all noise variables, tested with as many hypotheses."""
        variance = self.squares / self.count - (self.total / self.count) ** 2
        # Sums over fewer steps than this are not normal yet.
        moved = np.asarray((variance > 1e-9) & (self.steps >= FEW_EPISODES))
        if self.count < FEW_EPISODES or not moved.any():
            return ()
        size = np.abs(self.total[moved]) / self.scale[moved]
        # What hardly ever happens has a tiny shift of tiny variance until it happens: only shifts that matter count.
        z = np.where(size >= SMALL_SHIFT, np.abs(self.total[moved]) / np.sqrt(self.count * variance[moved]), 0.0)
        chance = min(1.0, 2 * normal_above(z.max()) * moved.sum())
        return (
            _Finding(
                "noise after what was seen and done is shifted by", float(size[z.argmax()]), float(chance), LARGE_SHIFT
            ),
        )


@dataclass
class Sums:
    """Running sums of `Counts`."""

    found: Any = 0.0
    expected: Any = 0.0

    def add(self, counts: Counts) -> None:
        """Count those of some episodes, `[n, ...]`."""
        self.found = self.found + np.sum(counts.found, axis=0, dtype=float)
        self.expected = self.expected + np.sum(counts.expected, axis=0, dtype=float)


class _Finding(NamedTuple):
    """What a test of the averaged posterior found."""

    what: str
    size: float
    value: float
    """Probability under a right model."""
    large: float
    """From which size on it matters for certain."""


def count_test(what: str, found: np.ndarray, expected: np.ndarray) -> tuple[_Finding, ...]:
    """Pearson's chi-square of counts against expected ones, `[R, K]` each, pooled over the rows."""
    square, freedom, steps = 0.0, 0, 0.0
    for cells in _enough(found, expected):
        square += ((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum()
        freedom, steps = freedom + len(cells) - 1, steps + cells[:, 0].sum()
    if not freedom:
        return ()
    size = np.sqrt(max(square - freedom, 0.0) / steps)
    return (_Finding(what, float(size), float(chi_square_above(square, freedom)), LARGE_DEVIATION),)


def resolution(found: np.ndarray, expected: np.ndarray) -> float:
    """√(λ / n) of the deviation that the chi-square of these counts would find with probability 0.8; 0 of none."""
    rows = list(_enough(found, expected))
    freedom, steps = sum(len(cells) - 1 for cells in rows), sum(cells[:, 0].sum() for cells in rows)
    if not freedom:
        return 0.0
    needed = special.chndtrinc(special.chdtri(freedom, UNUSUAL), freedom, 1 - POWER)
    return float(np.sqrt(needed / steps))


def _enough(found: np.ndarray, expected: np.ndarray) -> Iterator[np.ndarray]:
    """Found and expected of each row with at least two cells, `[K, 2]`; what is too rare is counted together."""
    for counted, likely in zip(found, expected, strict=True) if np.ndim(found) == 2 else ():
        rare = likely < ENOUGH_EXPECTED
        cells = np.array([*np.stack([counted, likely], 1)[~rare], [counted[rare].sum(), likely[rare].sum()]])
        if cells[-1, 1] < ENOUGH_EXPECTED and len(cells) > 1:  # too rare even together: with the least of the others
            least = cells[:-1, 1].argmin()
            cells[least] += cells[-1]
            cells = cells[:-1]
        if len(cells) > 1:
            yield cells


def _mismatch(what: str, size: float, chance: float, large: float, smallest: float) -> Diagnostic:
    if chance >= UNUSUAL:
        if smallest > VISIBLE_DEVIATION:
            sentence = (
                f"The log is too small to tell whether the model is right: only deviations of its transitions above "
                f"{smallest:.2g} would show."
            )
            return Diagnostic("mismatch", chance, "caution", sentence)
        sentence = "Averaged over the log, the inferred noise is distributed as the model says."
        return Diagnostic("mismatch", chance, "trust", sentence)
    sentence = (
        f"Averaged over the log, the inferred noise is not distributed as the model says ({what} {size:.2g}, which "
        f"happens in a right model with probability {chance:.0e}): the model is wrong about the world."
    )
    certain = chance < RARE and size >= large
    return Diagnostic("mismatch", chance, "do not trust" if certain else "caution", sentence)
