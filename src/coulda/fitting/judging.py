"""Does a fitted model deserve belief? Each diagnostic is asked of episodes that the model, or its member, has not seen.

- Likelihood: are steps likelier than under linear regressions?
- Noise: are probability-integral transforms uniform, dimension by dimension?
- Independence: is the noise foreseen by the state, the action, and the noise of other dimensions?
- Open loop: how far off are 1, 5 and T steps on, against linear regressions?
- Own policy: what does the model say of whoever made the log, whose returns are known?
- Disagreement: are the members less of one mind where a policy goes than where the log is?

A large log finds every imperfection of a network, and a small one finds little. So what is graded is an effect: its
size counts as much as the noise that it is about is of the changes of the state (or of the rewards). A significant one
that may matter is a reason for caution; one whose lower confidence bound is large is not to be trusted.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax import Array
from scipy import special

from coulda.episodes import EpisodeLog
from coulda.episodes.behavior import SMALL_PENALTY, fitted_behavior
from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL, graded
from coulda.evaluation.estimate import Diagnostic, Verdict
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.scales import normal_above, normal_below, spread_of, unit_of

SMALL_SHARE, LARGE_SHARE = 0.01, 0.05
"""Of the variance of changes, or of rewards, that something foresees in the noise: a correlation of 0.1 and of 0.22."""
SMALL_DISTANCE, LARGE_DISTANCE = 0.05, 0.15
"""Of Kolmogorov and Smirnov between transforms and the uniform: a twentieth of all steps is somewhere else. Student
noise with three degrees of freedom that is taken for normal has 0.07, an exponential one 0.16. It counts as much as the
noise is of the spread of changes."""
BOUND = 2.33
"""Standard errors below an effect: less than that it is in one case of a hundred."""
SMALL_MISS, LARGE_MISS = 0.1, 0.25
"""Of the behavior's value, in standard deviations of returns."""
LITTLE_LIKELIER = 0.01
"""Nats a step."""
MOST_ROWS = 20_000
"""Steps that tests of noise look at: a share of 1 % is found with far fewer."""
WAVES = 60
"""Random features in which noise is foreseen."""
SIMULATED = 2000
"""Episodes of the behavior in the model."""
WORSE_OPEN_LOOP = 1.1
"""Times the error of linear regressions."""
SMALL_RATIO, LARGE_RATIO = 3.0, 10.0
"""Of the variance between members where a policy goes to that on the log, both in variances of the noise there."""
LITTLE_DISAGREEMENT = 0.05
"""Variance between members, in variances of the noise, below which it is of no consequence how it compares."""


class Noise(NamedTuple):
    """Inferred noise of steps that were not fitted to, `[n, ...]` each."""

    inputs: np.ndarray
    """Standardized state and action."""
    noise: np.ndarray
    """`[n, q]`; NaN where there is none."""
    end: np.ndarray
    """Whether it was the end less its probability; NaN where that says nothing."""
    episode: np.ndarray
    time: np.ndarray
    names: tuple[str, ...]
    """Of the q columns."""
    spread: np.ndarray
    """Of the noise, in spreads of changes and of rewards, `[q]`, at most 1: an error about it counts as much."""

    def first(self, most: int) -> "Noise":
        """The first episodes."""
        steps = (self.inputs, self.noise, self.end, self.episode, self.time)
        inputs, noise, end, episode, time = (values[:most] for values in steps)
        return Noise(inputs, noise, end, episode, time, self.names, self.spread)


def likelihood(gain: np.ndarray, episode: np.ndarray) -> Diagnostic:
    """Of the log-density of each step beyond that of the regressions, `[n]`."""
    each = np.bincount(episode, gain) / np.bincount(episode)
    mean, error = float(gain.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))
    worse = mean < -LITTLE_LIKELIER and mean < -2 * error
    sentence = (
        f"Unseen steps are {mean:.2g} nats likelier than under linear regressions."
        if mean > LITTLE_LIKELIER
        else f"Unseen steps are no likelier than under linear regressions ({mean:+.2g} nats a step): all that was "
        "found is linear."
    )
    if worse:
        sentence = (
            f"Unseen steps are {-mean:.2g} nats less likely than under linear regressions: too little was logged."
        )
    return Diagnostic("likelihood", mean, "caution" if worse else "trust", sentence)


def _from_uniform(values: np.ndarray) -> float:
    """Kolmogorov's largest distance of the distribution of numbers from the uniform one on [0, 1]."""
    steps, ordered = np.arange(len(values) + 1) / len(values), np.sort(values)
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def transforms(found: Noise) -> tuple[Diagnostic, ...]:
    """Whether Φ(u) is uniform; the worst dimension speaks."""
    tried = []
    for name, column, spread in zip(found.names, found.noise.T, found.spread, strict=True):
        known = column[np.isfinite(column)]
        if len(known) >= FEW_EPISODES:
            distance, root = _from_uniform(normal_below(known)), np.sqrt(len(known))
            chance = float(special.kolmogorov(distance * root))
            # By the inequality of Dvoretzky, Kiefer and Wolfowitz.
            least = distance - np.sqrt(np.log(2 / UNUSUAL) / 2) / root
            tried.append(Foreseen(spread * distance, chance, name, float(spread * least)))
    if not tried:
        return ()
    worst = gravest(tried, len(tried), SMALL_DISTANCE)
    verdict = verdict_on(worst, len(tried), SMALL_DISTANCE, LARGE_DISTANCE)
    sentence = f"The noise of unseen steps is normal to {worst.share:.3f} of the spread of changes ({worst.what})."
    if verdict != "trust":
        sentence = (
            f"The noise of {worst.what} is not as the model says: its distribution is off by {worst.share:.2f} of the "
            "spread of changes. What hindsight infers still is the noise that was; what is simulated without it is not."
        )
    return (Diagnostic("noise", worst.share, verdict, sentence),)


def independence(rng: np.random.Generator, found: Noise, triangular: bool = False) -> tuple[Diagnostic, ...]:
    """Whether state, action and the other dimensions foresee the noise of one, or its size.

    Where other dimensions alone do, the way out is named: "triangular" noise, or, where it is that, another order.
    """
    found = found.first(MOST_ROWS)
    others = np.nan_to_num(found.noise)
    tried = []
    for column, (name, spread) in enumerate(zip(found.names, found.spread, strict=True)):
        before = np.concatenate([found.inputs, np.delete(others, column, 1)], 1)
        told = _foreseen_in(rng, before, found.noise[:, column], found.episode, name)
        tried += [foreseen.of_changes(spread) for foreseen in told]
    tried += _foreseen_in(rng, found.inputs, found.end, found.episode, "the end")[:1]
    worst = gravest(tried, len(tried), SMALL_SHARE)
    means = "the model is wrong about the step"
    if verdict_on(worst, len(tried), SMALL_SHARE, LARGE_SHARE) != "trust" and _is_shared(
        rng, found, tried.index(worst)
    ):
        means += (
            "; its dimensions may be drawn in another order (order=…)"
            if triangular
            else "; dimensions share their noise: fit with triangular"
        )
    by = "state, action and the noise of other dimensions"
    return (graded_share("independence", tried, by, means),)


def _is_shared(rng: np.random.Generator, found: Noise, test: int) -> bool:
    """Whether the noise of other dimensions is enough to foresee that of one; tests are of it and its size in turn."""
    column, of_size = divmod(test, 2)
    if found.noise.shape[1] < 2 or column == found.noise.shape[1]:
        return False
    before = np.delete(np.nan_to_num(found.noise), column, 1)
    told = _foreseen_in(rng, before, found.noise[:, column], found.episode, "")[of_size]
    return told.of_changes(found.spread[column]).share >= SMALL_SHARE


class Foreseen(NamedTuple):
    """How much of something is foreseen on episodes that the regression has not seen."""

    share: float
    """Of its variance."""
    chance: float
    """With which nothing is as much."""
    what: str
    least: float
    """The lower confidence bound of the share."""

    def of_changes(self, spread: float) -> "Foreseen":
        """As a share of the variance of changes, of which the noise has so much of the spread."""
        return self._replace(share=float(self.share * spread**2), least=float(self.least * spread**2))


NOTHING = Foreseen(0.0, 1.0, "", 0.0)


def gravest(tried: list[Foreseen], tests: int, small: float) -> Foreseen:
    """The largest of those that are significant in so many tests and not small; else the least likely."""
    shown = [x for x in tried if tests * x.chance < UNUSUAL and x.share >= small]
    if shown:
        return max(shown, key=lambda x: x.share)
    return min(tried, key=lambda x: x.chance, default=NOTHING)


def verdict_on(effect: Foreseen, tests: int, small: float, large: float) -> Verdict:
    """Significant and not small: caution. For certain large: do not trust."""
    chance = tests * effect.chance
    if chance >= UNUSUAL or effect.share < small:
        return "trust"
    return "do not trust" if chance < RARE and effect.least >= large else "caution"


def _foreseen_in(
    rng: np.random.Generator, before: np.ndarray, noise: np.ndarray, episode: np.ndarray, name: str
) -> list[Foreseen]:
    """The noise, and its size."""
    known = np.isfinite(noise)
    if np.unique(episode[known]).size < 2 * FEW_EPISODES:
        return [NOTHING] * 2
    before, noise, episode = before[known], noise[known], episode[known]
    # Heavy tails would decide otherwise.
    targets = {
        f"the noise of {name}": np.clip(noise, -4, 4),
        f"the size of the noise of {name}": np.minimum(np.abs(noise), 4),
    }
    return [_foreseen(rng, before, target, episode, what) for what, target in targets.items()]


def _foreseen(
    rng: np.random.Generator, before: np.ndarray, target: np.ndarray, episode: np.ndarray, name: str
) -> Foreseen:
    """By a regression on random features, fitted to half of the episodes and asked about the other half."""
    x = (before - before.mean(0)) / spread_of(before)
    waves = np.cos(x @ rng.normal(size=(x.shape[1], WAVES)) / np.sqrt(2) + rng.uniform(0, 2 * np.pi, WAVES))
    x = np.concatenate([x, x**2 - 1, waves], 1)
    half = (rng.permutation(episode.max() + 1) % 2 == 0)[episode]
    products, foreseen = np.zeros(len(target)), np.zeros(len(target))
    for train, test in ((half, ~half), (~half, half)):
        center, mean = x[train].mean(0), target[train].mean()
        inner = x[train] - center
        weights = np.linalg.solve(
            inner.T @ inner + 1e-2 * len(inner) * np.eye(x.shape[1]), inner.T @ (target[train] - mean)
        )
        foreseen[test] = (x[test] - center) @ weights
        products[test] = foreseen[test] * (target[test] - mean)
    each = np.bincount(episode, products)[np.bincount(episode) > 0]
    error = each.std(ddof=1) / np.sqrt(len(each))
    chance = float(normal_above(each.mean() / error)) if error > 0 else 1.0
    return share_of(target - target.mean(), foreseen, episode, chance, name)


def share_of(
    target: np.ndarray, foreseen: np.ndarray, episode: np.ndarray, chance: float, name: str, lost: float = 0.0
) -> Foreseen:
    """The share of a centered target's variance that predictions explain, less what is `lost` to chance."""
    gain, total = np.bincount(episode, foreseen * (2 * target - foreseen)), max(float(target @ target), 1e-12)
    counted = np.bincount(episode) > 0
    share = float(gain.sum() / total) - lost
    error = float(gain[counted].std(ddof=1) * np.sqrt(counted.sum()) / total)
    return Foreseen(max(share, 0.0), chance, name, share - BOUND * error)


def graded_share(test: str, tried: list[Foreseen], by: str, means: str, small: float = SMALL_SHARE) -> Diagnostic:
    """The verdict on the most that was foreseen in all tests."""
    worst = gravest(tried, len(tried), small)
    verdict = verdict_on(worst, len(tried), small, LARGE_SHARE)
    if verdict == "trust":
        return Diagnostic(test, worst.share, verdict, f"Noise of unseen steps is not foreseen by {by}.")
    sentence = (
        f"{worst.what[:1].upper()}{worst.what[1:]} of unseen steps is foreseen by {by}, to {worst.share:.1%} of the "
        f"variance of changes: {means}."
    )
    return Diagnostic(test, worst.share, verdict, sentence)


def own_policy(key: Array, model: POMDP, log: EpisodeLog) -> tuple[Diagnostic, ...]:
    """What the model says of the behavior, fitted as a function of the observation, against the logged returns.

    Consumes `key`. Nothing where episodes were cut off: what they would have returned is not known.
    """
    cut = ~log.terminated & (log.lengths < log.max_length)
    if cut.any() or len(log) < FEW_EPISODES:
        sentence = (
            f"{int(cut.sum())} episodes were cut off, and what they would have returned is not known"
            if cut.any()
            else f"There are {len(log)} episodes, too few"
        )
        said = f"{sentence}: the model cannot be asked about whoever made the log."
        return (Diagnostic("own policy", float("nan"), "caution", said),)
    behavior = fitted_behavior(log, SMALL_PENALTY)
    made = np.asarray(returns_in(model, behavior, jax.random.split(key, SIMULATED)), float)
    logged = log.episode_returns
    if not np.isfinite(made).all():
        sentence = "Episodes of the model do not stay finite under the policy that made the log."
        return (Diagnostic("own policy", float("nan"), "do not trust", sentence),)
    error = np.sqrt(made.var(ddof=1) / len(made) + logged.var(ddof=1) / len(logged))
    miss = float(made.mean() - logged.mean())
    scale = max(float(logged.std()), 1e-9 * (1 + abs(float(logged.mean()))))
    chance = float(2 * normal_above(abs(miss) / error)) if error > 0 else float(abs(miss) <= 1e-6 * unit_of(logged))
    found = Foreseen(abs(miss) / scale, chance, "", (abs(miss) - BOUND * float(error)) / scale)
    verdict = verdict_on(found, 1, SMALL_MISS, LARGE_MISS)
    sentence = (
        f"Of whoever made the log the model says {made.mean():.4g} ± {made.std() / np.sqrt(len(made)):.2g}; the log "
        f"says {logged.mean():.4g} ± {logged.std() / np.sqrt(len(logged)):.2g}."
    )
    return (Diagnostic("own policy", found.share, verdict, sentence),)


@eqx.filter_jit
def returns_in(model: POMDP, policy: Policy, keys: Array) -> Array:
    """Returns of simulated episodes, `[n]`."""
    return batched(lambda key: rollout(model, policy, model.scenario_prior.sample(key)).episode_return, keys)


def open_loop(errors: dict[int, tuple[np.ndarray, np.ndarray]]) -> Diagnostic:
    """Squared errors after so many steps under logged actions, of the model and of regressions, `[n]` each."""
    root = lambda squares: float(np.sqrt(squares.mean()))
    worst = max(root(own) / max(root(linear), 1e-9) for own, linear in errors.values())
    told = ", ".join(f"{root(own):.2g} after {steps}" for steps, (own, _) in errors.items())
    linear = ", ".join(f"{root(other):.2g}" for _, other in errors.values())
    sentence = (
        f"From unseen first states, under the logged actions, predictions are off by {told} steps (spreads of states)"
    )
    worse = any(_above_zero(own - WORSE_OPEN_LOOP**2 * other) for own, other in errors.values())
    return Diagnostic(
        "open loop", worst, "caution" if worse else "trust", f"{sentence}; linear regressions by {linear}."
    )


def _above_zero(values: np.ndarray) -> bool:
    """Whether the lower bound of the mean is."""
    return float(values.mean()) > BOUND * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else False


def disagreement(on_path: np.ndarray, log: float) -> Diagnostic:
    """Variance between members at steps of a policy `[n]`, and the mean of it on the log, in variances of the noise."""
    path = float(np.mean(on_path))
    ratio = path / max(log, 1e-9)
    verdict = graded(ratio, SMALL_RATIO, LARGE_RATIO) if path > LITTLE_DISAGREEMENT else "trust"
    sentence = (
        f"Where the policy goes, members differ by {np.sqrt(path):.2g} of the noise, and by {np.sqrt(log):.2g} where "
        "the log is."
    )
    if verdict != "trust":
        sentence += " It goes where little was logged: what is said of it is said by networks, and not by the log."
    return Diagnostic("disagreement", ratio, verdict, sentence)


def normal_log_density(values: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Log N(x; 0, Σ) of `[..., m]`."""
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, values.reshape(-1, values.shape[-1]).T)
    found = -0.5 * (white**2).sum(0) - np.log(np.diag(root)).sum() - 0.5 * len(root) * np.log(2 * np.pi)
    return found.reshape(values.shape[:-1])
