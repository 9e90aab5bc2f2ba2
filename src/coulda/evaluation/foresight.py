"""Does the model foresee each observation from what came before it, where its state is hidden?

The place of an observation among those that a filter foresaw (`hindsight.predictions`) is, as a normal score z,
standard normal and independent of the past. So sums of z and of z² - 1, over the log and times what was seen and done
before, have mean zero and a variance that is known: each is one test.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri

from coulda.evaluation.diagnostics import FEW_EPISODES, RARE, UNUSUAL
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.mismatch import LARGE_SHIFT, SMALL_SHIFT, before
from coulda.evaluation.reading import Reading, generator, over_log, sample
from coulda.hindsight import ScenarioSource
from coulda.hindsight.likelihood import Evidence
from coulda.hindsight.particles import Sampler
from coulda.hindsight.predictions import Foreseen, foreseen
from coulda.pomdp import POMDP, BlackBoxPOMDP, Episode, LinearGaussianPOMDP
from coulda.pomdp.observing import no_density
from coulda.scales import normal_above

PARTICLES = 1000
"""Of the filter."""
FEW_PARTICLES = 100
"""Behind a prediction, as two filters that know nothing of each other tell, below which nothing is said: with 30 or so,
a right model with unknowns that never change was found at fault in half of the logs; with 160 to 260, in none of 30."""


class Sums(NamedTuple):
    """Of one episode or of a log, `[C]` each, one for each test."""

    total: Array
    variance: Array
    """Of the total, in a right model."""
    weight: Array
    """Σ |w|: the total over it is a shift in deviations."""
    steps: Array
    """How many there were."""


def foresight_diagnostic(key: Array, source: ScenarioSource, model: POMDP, reading: Reading) -> tuple[Diagnostic, ...]:
    """Of sources that hold noise against densities, where the last observations were logged. Consumes `key`.

    Nothing is said of finite models, whose transitions and observations are counted; nor where filters cannot tell.
    """
    weighs = isinstance(source, Sampler) or isinstance(model, LinearGaussianPOMDP)
    skipped = not weighs or isinstance(model, BlackBoxPOMDP) or no_density(model) is not None
    if skipped or reading.chosen_by_ends or len(reading) < FEW_EPISODES:
        return ()
    function = eqx.Partial(_of_episode, Evidence.of(model, getattr(source, "behavior", None)), key)
    parts = list(over_log(function, sample(generator(key), reading.log), model.horizon))
    sums, apart, known = jax.tree.map(lambda *leaves: np.concatenate(leaves).sum(0, dtype=float), *parts)
    # The squared difference of two means of n zeros and ones is p (1 - p) 2 / n on average, and p is uniform.
    if known == 0 or apart / known > 1 / (3 * FEW_PARTICLES):
        return ()
    return (judged(sums),)


def _of_episode(evidence: Evidence, key: Array, episode: Episode, index: Array) -> tuple[dict[str, Sums], Array, Array]:
    """Sums by what is told; squared differences between the filters, and of how many numbers."""
    found = foreseen(jax.random.fold_in(key, index), evidence, episode, PARTICLES)
    tests = _tests(evidence.model, episode, found)
    sums = {what: _sums(values, weights, found.known) for what, (values, weights) in tests.items()}
    known = jnp.where(found.known, 1.0, 0.0)
    return sums, jnp.sum(known * found.apart**2), jnp.sum(known)


def _tests(model: POMDP, episode: Episode, found: Foreseen) -> dict[str, tuple[Array, Array]]:
    """By what is told: values `[T + 1, D]` of mean 0 and variance 1, whatever came before, and weights `[T + 1, W]`.

    The weights are known before: the action, the numbers seen before it, and how earlier observations lay.
    """
    score = jnp.where(found.known, ndtri(found.places), 0.0)
    spread = jnp.where(found.known, (score**2 - 1) / jnp.sqrt(2.0), 0.0)
    first = jnp.where(jnp.arange(len(score)) == 0, 1.0, 0.0)[:, None]
    # What was seen and done at a step is known before the next observation.
    taken, numbers = (_later(column) for column in before(model, episode))
    earlier = _later(jnp.cumsum(score, 0)[:-1] / jnp.sqrt(jnp.arange(1.0, len(score)))[:, None])
    return {
        "first observations lie off by": (score, first),
        "the spread of first observations is off by": (spread, first),
        "observations lie off by": (score, jnp.concatenate([taken, numbers], 1)),
        "the spread of observations is off by": (spread, taken),
        "errors follow earlier ones by": (score, earlier),
    }


def _later(column: Array) -> Array:
    return jnp.pad(column, ((1, 0), (0, 0)))


def _sums(values: Array, weights: Array, known: Array) -> Sums:
    there = jnp.where(known, 1.0, 0.0)
    added = lambda a, b: jnp.einsum("tw,td->wd", a, b).ravel()
    return Sums(
        added(weights, values),
        added(weights**2, there),
        added(jnp.abs(weights), there),
        added(jnp.where(weights != 0, 1.0, 0.0), there),
    )


def judged(found: dict[str, Sums]) -> Diagnostic:
    """The least likely of all sums, tested with as many hypotheses."""
    worst, tests = ("", 0.0, 1.0), 0
    for what, sums in found.items():
        enough = (sums.steps >= FEW_EPISODES) & (sums.variance > 0)
        if not enough.any():
            continue
        total, variance, weight = (np.abs(x[enough]) for x in (sums.total, sums.variance, sums.weight))
        # However long the log is, only what matters counts.
        z = np.where(total / weight >= SMALL_SHIFT, total / np.sqrt(variance), 0.0)
        size, chance = float((total / weight)[z.argmax()]), float(2 * normal_above(z.max()))
        worst, tests = min(worst, (what, size, chance), key=lambda one: one[2]), tests + len(z)
    what, size, chance = worst[0], worst[1], min(1.0, tests * worst[2])
    if chance >= UNUSUAL:
        sentence = "The model foresees what is seen next from what came before it."
        return Diagnostic("foresight", chance, "trust", sentence)
    sentence = (
        f"What is seen next is not what the model foresees from what came before it ({what} {size:.2g} deviations, "
        f"which happens in a right model with probability {chance:.0e}): the model is wrong about the world."
    )
    certain = chance < RARE and size >= LARGE_SHIFT
    return Diagnostic("foresight", chance, "do not trust" if certain else "caution", sentence)
