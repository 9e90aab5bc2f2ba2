"""Is the noise of first states, transitions and observations distributed as the model says? Score tests.

Fisher's identity: the slope of log p(h) in a parameter of the noise's prior is the posterior mean of that prior's own
slope. For a standard normal number u that is E[u | h] for its mean and E[u² - 1 | h] for its scale; for a category k it
is P(k | h) - p_k. In a right model these average to zero over episodes, whoever acted; and against small errors of the
prior, or of dynamics that can be written as such, no test finds more (Rao, 1948).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.noise import Bernoulli, Categorical, Independent, NoiseDistribution, Point, has
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.scales import f_above, skewed_z, student_above

MOST_TOGETHER = 8
"""Numbers that are tested together, by Hotelling's T²; of more, or of more than a tenth of the episodes, each is tested
by itself."""
DRAWS = 32
"""Of an episode's posterior, of which means are taken where many draws cost little: what they add to the variance of a
mean is 3 % of the prior's."""


class Scores(eqx.Module):
    """Of one episode, by what they tell: sums over its steps `[d]`, of mean zero in a right model."""

    sums: dict[str, Array]
    steps: dict[str, Array]
    """How many steps were summed."""


def scores(model: POMDP, drawn: Scenario, episode: Episode, steps: Array, *, observed: bool) -> Scores:
    """Means over scenarios `[M, ...]` of one episode that were inferred from h_t, t = `steps`.

    `observed` is whether the noise of observations was inferred too.
    """
    seen = jnp.arange(model.horizon + 1) < jnp.minimum(steps, episode.length + 1)
    first, rest = seen[:1].astype(float), seen[1:].astype(float)
    at_first = jax.tree.map(lambda leaf: leaf[:, None], drawn.initial)
    noises = {"first states": (model.initial_noise, at_first, first)}
    noises["transitions"] = model.transition_noise, drawn.transition, rest
    if observed:
        noises["observations"] = model.observation_noise, drawn.observation, seen.astype(float)
    found = Scores({}, {})
    for name, (distribution, noise, weights) in noises.items():
        if not scored(distribution):
            continue
        means, spreads = jax.vmap(jax.vmap(lambda u, d=distribution: of_noise(d, u)))(noise)  # [M, T, d] each
        for what, values in (
            (f"the noise of {name} is shifted by", means),
            (f"its spread in {name} is off by", spreads),
        ):
            if values.shape[-1]:
                found.sums[what] = weights @ values.mean(0)
                found.steps[what] = weights.sum()
    return found


def scored(distribution: NoiseDistribution) -> bool:
    """Whether every part is plain numbers, and any has scores; lazy noise, for one, is a seed.

    >>> scored(Independent({"a": Bernoulli(0.5), "b": Categorical([0.5, 0.5])})), scored(Point(0.0))
    (True, False)
    """
    if isinstance(distribution, Independent):
        parts = [scored(part) for part in distribution.parts() if not isinstance(part, Point)]
        return bool(parts) and all(parts)
    return isinstance(distribution, Bernoulli | Categorical) or has(distribution, "to_normal")


def of_noise(distribution: NoiseDistribution, noise: Any) -> tuple[Array, Array]:
    """Scores of one draw: of the means of its numbers, and of their scales; nothing of noise that has none."""
    if isinstance(distribution, Independent):
        is_leaf = lambda x: isinstance(x, NoiseDistribution)
        parts = jax.tree.map(lambda d, u: [of_noise(d, u)], distribution.components, noise, is_leaf=is_leaf)
        found = jax.tree.leaves(parts, is_leaf=lambda x: isinstance(x, tuple))
        means, spreads = zip(*found, strict=True) if found else ((), ())
        return jnp.concatenate([jnp.zeros(0), *means]), jnp.concatenate([jnp.zeros(0), *spreads])
    none = jnp.zeros(0)
    if isinstance(distribution, Bernoulli):
        return _standard(noise, distribution.probability).ravel(), none
    if isinstance(distribution, Categorical):
        last = distribution.probabilities.shape[-1] - 1
        return _standard(jax.nn.one_hot(noise, last), distribution.probabilities[:last]), none
    if not has(distribution, "to_normal"):
        return none, none
    z = jnp.ravel(distribution.to_normal(noise))
    return z, z**2 - 1


def _standard(chosen: Array, probability: Array) -> Array:
    deviation = jnp.sqrt(probability * (1 - probability))
    return (chosen.astype(float) - probability) / jnp.where(deviation > 0, deviation, 1.0)


class Group(NamedTuple):
    """What was found of the numbers that are tested together."""

    what: str
    size: float
    """The largest mean score of a step."""
    chance: float
    """Probability in a right model."""


@dataclass
class Moments:
    """Running sums of scores over the log, by what they tell."""

    count: int = 0
    steps: dict[str, float] = field(default_factory=dict)
    powers: dict[str, np.ndarray] = field(default_factory=dict)
    """Of x, x² and x³, `[3, d]`."""
    products: dict[str, np.ndarray] = field(default_factory=dict)
    """`[d, d]`, of few numbers."""

    def add(self, found: Scores) -> None:
        """Count those of some episodes, `[n, d]` each."""
        for what, sums in found.sums.items():
            x = np.asarray(sums, float)
            powers = np.stack([x.sum(0), (x**2).sum(0), (x**3).sum(0)])
            self.powers[what] = self.powers.get(what, 0.0) + powers
            self.steps[what] = self.steps.get(what, 0.0) + float(np.sum(found.steps[what], dtype=float))
            if x.shape[1] <= MOST_TOGETHER:
                self.products[what] = self.products.get(what, 0.0) + x.T @ x
            self.count += len(x) if what == next(iter(found.sums)) else 0

    def groups(self, least: float) -> list[Group]:
        """One finding for each; what is smaller than `least` in all of its numbers is nothing."""
        return [self._group(what, least) for what in self.powers if self.steps[what] > 0]

    def _group(self, what: str, least: float) -> Group:
        n, powers = self.count, self.powers[what] / self.count
        size = np.abs(powers[0]) * n / self.steps[what]
        varies = powers[1] - powers[0] ** 2 > 1e-9
        if not varies.any() or size[varies].max() < least:
            return Group(what, float(size.max()), 1.0)
        z = skewed_z(n, *powers[:, varies])
        d = len(z)
        if what not in self.products or d > n / 10:
            chance = min(1.0, 2 * d * float(student_above(np.abs(z).max(), n - 1)))
            return Group(what, float(size[varies][np.abs(z).argmax()]), chance)
        mean, product = powers[0][varies], self.products[what][np.ix_(varies, varies)] / n
        covariance = product - np.outer(mean, mean)
        deviations = np.sqrt(np.diag(covariance))
        square, rank = _squared_length(z, covariance / np.outer(deviations, deviations))
        chance = float(f_above(square * (n - rank) / (rank * (n - 1)), rank, n - rank))
        return Group(what, float(size[varies][np.abs(z).argmax()]), chance)


def _squared_length(z: np.ndarray, correlation: np.ndarray) -> tuple[float, int]:
    """Hotelling's T², and its rank, which is less than `[d]` where numbers follow from others."""
    values, vectors = np.linalg.eigh(correlation)
    kept = values > 1e-4
    return float((((vectors[:, kept].T @ z) ** 2) / values[kept]).sum()), int(kept.sum())
