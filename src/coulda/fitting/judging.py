"""Does a fitted model deserve belief? Each diagnostic is asked of episodes that the model, or its member, has not seen.

- Likelihood: are steps likelier than under linear regressions?
- Noise: are probability-integral transforms uniform, dimension by dimension?
- Independence: is the noise foreseen by the state, the action, and the noise of other dimensions?
- Open loop: how far off are 1, 5 and T steps on, against linear regressions?
- Own policy: what does the model say of whoever made the log, whose returns are known?
- Disagreement: are the members less of one mind where a policy goes than where the log is?
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
from coulda.tails import normal_above, normal_below

SMALL_SHARE, LARGE_SHARE = 0.01, 0.05
"""Of the variance of noise that something foresees: a correlation of 0.1 and one of 0.22."""
SMALL_DISTANCE, LARGE_DISTANCE = 0.05, 0.15
"""Of Kolmogorov and Smirnov between transforms and the uniform: a twentieth of all steps is somewhere else. Student
noise with three degrees of freedom that is taken for normal has 0.07, an exponential one 0.16."""
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

    def first(self, most: int) -> "Noise":
        """The first episodes."""
        kept = slice(most)
        return Noise(
            self.inputs[kept], self.noise[kept], self.end[kept], self.episode[kept], self.time[kept], self.names
        )


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
    distances = {}
    for name, column in zip(found.names, found.noise.T, strict=True):
        known = column[np.isfinite(column)]
        if len(known) >= FEW_EPISODES:
            distances[name] = _from_uniform(normal_below(known)), len(known)
    if not distances:
        return ()
    name = max(distances, key=lambda key: distances[key][0])
    distance, size = distances[name]
    chance = min(1.0, len(distances) * float(special.kolmogorov(distance * np.sqrt(size))))
    verdict: Verdict = graded(distance, SMALL_DISTANCE, LARGE_DISTANCE) if chance < UNUSUAL else "trust"
    sentence = f"The noise of unseen steps is normal to {distance:.3f} at most ({name})."
    if verdict != "trust":
        sentence = (
            f"The noise of {name} is not as the model says: its distribution is off by {distance:.2f}. What hindsight "
            "infers still is the noise that was; what is simulated without it is not."
        )
    return (Diagnostic("noise", distance, verdict, sentence),)


def independence(rng: np.random.Generator, found: Noise) -> tuple[Diagnostic, ...]:
    """Whether state, action and the other dimensions foresee the noise of one, or its size."""
    found = found.first(MOST_ROWS)
    others = np.nan_to_num(found.noise)
    best = Foreseen(0.0, 1.0, "")
    for column, name in enumerate(found.names):
        before = np.concatenate([found.inputs, np.delete(others, column, 1)], 1)
        best = min(
            best, *_foreseen_in(rng, before, found.noise[:, column], found.episode, name), key=lambda x: x.chance
        )
    best = min(best, *_foreseen_in(rng, found.inputs, found.end, found.episode, "the end")[:1], key=lambda x: x.chance)
    by = "state, action and the noise of other dimensions"
    return (graded_share("independence", best, 2 * len(found.names) + 1, by, "the model is wrong about the step"),)


class Foreseen(NamedTuple):
    """How much of something is foreseen on episodes that the regression has not seen."""

    share: float
    chance: float
    what: str


def _foreseen_in(
    rng: np.random.Generator, before: np.ndarray, noise: np.ndarray, episode: np.ndarray, name: str
) -> list[Foreseen]:
    """The noise, and its size."""
    known = np.isfinite(noise)
    if np.unique(episode[known]).size < 2 * FEW_EPISODES:
        return [Foreseen(0.0, 1.0, "")] * 2
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
    spread = before.std(0)
    x = (before - before.mean(0)) / np.where(spread > 1e-6, spread, 1.0)
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
    share = float(
        1 - ((target - target.mean() - foreseen) ** 2).sum() / max(((target - target.mean()) ** 2).sum(), 1e-12)
    )
    return Foreseen(max(share, 0.0), chance, name)


def graded_share(test: str, best: Foreseen, tests: int, by: str, means: str, least: float = SMALL_SHARE) -> Diagnostic:
    """The verdict on the most that was foreseen in so many tests."""
    chance = min(1.0, tests * best.chance)
    if chance >= UNUSUAL or best.share < least:
        return Diagnostic(test, best.share, "trust", f"Noise of unseen steps is not foreseen by {by}.")
    sentence = (
        f"{best.what[:1].upper()}{best.what[1:]} of unseen steps is foreseen by {by}, to {best.share:.1%} of its "
        f"variance: {means}."
    )
    certain = chance < RARE and best.share >= LARGE_SHARE
    return Diagnostic(test, best.share, "do not trust" if certain else "caution", sentence)


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
    size = abs(miss) / max(float(logged.std()), 1e-9 * (1 + abs(float(logged.mean()))))
    chance = float(2 * normal_above(abs(miss) / error)) if error > 0 else float(abs(miss) < 1e-6)
    verdict: Verdict = "trust"
    if chance < UNUSUAL and size >= SMALL_MISS:
        verdict = "do not trust" if chance < RARE and size >= LARGE_MISS else "caution"
    sentence = (
        f"Of whoever made the log the model says {made.mean():.4g} ± {made.std() / np.sqrt(len(made)):.2g}; the log "
        f"says {logged.mean():.4g} ± {logged.std() / np.sqrt(len(logged)):.2g}."
    )
    return (Diagnostic("own policy", size, verdict, sentence),)


@eqx.filter_jit
def returns_in(model: POMDP, policy: Policy, keys: Array) -> Array:
    """Returns of simulated episodes, `[n]`."""
    return batched(lambda key: rollout(model, policy, model.scenario_prior.sample(key)).episode_return, keys)


def open_loop(errors: dict[int, tuple[float, float]]) -> Diagnostic:
    """Errors after so many steps under logged actions, of the model and of regressions, in spreads of states."""
    worst = max(own / max(linear, 1e-9) for own, linear in errors.values())
    told = ", ".join(f"{own:.2g} after {steps}" for steps, (own, _) in errors.items())
    linear = ", ".join(f"{other:.2g}" for _, other in errors.values())
    sentence = (
        f"From unseen first states, under the logged actions, predictions are off by {told} steps (spreads of states)"
    )
    return Diagnostic(
        "open loop",
        worst,
        "caution" if worst > WORSE_OPEN_LOOP else "trust",
        f"{sentence}; linear regressions by {linear}.",
    )


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
