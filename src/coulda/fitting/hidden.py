"""`HiddenFit`: states that nobody saw, by expectation maximization; numbered ones, or linear-Gaussian vectors.

Hidden states are known up to their names: values of policies are claimed, what single episodes would have become is
not.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.environments import TabularPOMDP
from coulda.episodes import EpisodeLog
from coulda.errors import CouldaError
from coulda.evaluation.estimate import Diagnostic
from coulda.evaluation.reading import generator
from coulda.fitting import finite_em, gaussian_em, judging
from coulda.fitting.finite_em import HiddenTables
from coulda.fitting.folds import deal
from coulda.fitting.gaussian_em import HiddenSystem
from coulda.fitting.memory import markov
from coulda.fitting.systems import FittedSystem, Units, rewarded, system_model, units_of
from coulda.mechanisms import choice
from coulda.pomdp import POMDP, Episode


@dataclass(frozen=True)
class HiddenFit:
    """Expectation maximization for logs whose observations tell of a state and are not it.

    Numbered observations and actions give a finite model, vectors of both a linear-Gaussian one.
    """

    states: int
    """How many hidden states, or how many numbers a hidden vector has."""
    reparameterization: str
    """"gumbel_max" or "inverse_cdf" of numbered states, "location_scale" of vectors; never by default."""
    rounds: int = 200
    """Of expectation and maximization."""
    starts: int = 4
    """Guesses to start from; the likeliest result is kept."""
    folds: int = 5
    """Fits that leave one out judge it, and tell how well the value is known."""

    def __post_init__(self) -> None:
        """Numbers are checked before anything is read."""
        for name in ("states", "rounds", "starts"):
            if getattr(self, name) < 1:
                raise CouldaError(f"{name} is {getattr(self, name)}; it must be at least 1.")


class FittedHidden(TabularPOMDP):
    """Hidden numbered states that were fitted to a log; rewards are means, given states and action."""

    def __init__(
        self,
        initial: np.ndarray,
        transition: np.ndarray,
        observation: np.ndarray,
        reward: np.ndarray,
        *,
        horizon: int,
        reparameterization: str,
    ):
        over = np.arange(len(initial)) == len(initial) - 1
        super().__init__(
            initial,
            transition,
            observation,
            reward,
            horizon=horizon,
            reparameterization=reparameterization,
            terminal=over,
        )

    @property
    def rewards_vary(self) -> bool:
        """They do: what is paid is a mean over what was not seen."""
        return True


@dataclass(frozen=True)
class HiddenResult:
    """What came of it: the model, and those without each fold."""

    model: POMDP
    members: tuple[POMDP, ...]
    verdict: tuple[Diagnostic, ...]
    summary: tuple[str, ...]


def fit_hidden(key: Array, log: EpisodeLog, recipe: HiddenFit) -> HiddenResult:
    """Fit, and judge by folds that were left out. Consumes `key`."""
    seen, done = log.schema.observation_space, log.schema.action_space
    key_fit, key_judge, key_own = jax.random.split(key, 3)
    if isinstance(seen, spaces.Discrete) and isinstance(done, spaces.Discrete):
        choice(recipe.reparameterization, 2)
        found = _finite(key_fit, generator(key_judge), log, recipe)
    elif isinstance(seen, spaces.Box) and len(seen.shape) == 1 and isinstance(done, spaces.Box):
        if recipe.reparameterization != "location_scale":
            raise CouldaError(
                f"reparameterization is {recipe.reparameterization!r}; that of a linear-Gaussian fit is "
                "'location_scale'."
            )
        found = _gaussian(key_fit, generator(key_judge), log, recipe)
    else:
        raise CouldaError(
            f"HiddenFit needs numbered observations and actions, or vectors of both; this log's are {seen} and {done}."
        )
    # Whoever made the log may remember more than an observation: then a right model differs too.
    own = tuple(
        replace(d, verdict="caution") if d.verdict == "do not trust" else d
        for d in judging.own_policy(key_own, found.model, log)
    )
    names = Diagnostic(
        "names",
        float(recipe.states),
        "trust",
        "Hidden states are known up to their names: values are claimed, and what single episodes would have become "
        "is not.",
    )
    return replace(found, verdict=(*found.verdict, *own, names))


def _finite(key: Array, rng: np.random.Generator, log: EpisodeLog, recipe: HiddenFit) -> HiddenResult:
    seen, done = log.schema.observation_space, log.schema.action_space
    assert isinstance(seen, spaces.Discrete)
    assert isinstance(done, spaces.Discrete)
    if int(seen.start) or int(done.start):
        raise CouldaError(f"observations and actions must be numbered from 0; these are {seen} and {done}.")
    ended = log.terminated & (log.lengths < log.max_length)
    if ended.any() and (~log.terminated & (log.lengths < log.max_length)).any():
        raise CouldaError(
            "some episodes came to their end and others were cut off before the horizon: which it was cannot be told "
            "from what was seen of a hidden state. Leave out the episodes that were cut off."
        )
    _, fold = deal(log, recipe.folds)
    episodes, closing = log.padded(), jnp.asarray(log.schema.last_observation == "logged")
    counts = np.bincount(np.asarray(log.observation).astype(int), minlength=int(seen.n))
    spread = jnp.asarray(counts / counts.sum(), jnp.float32)
    over, everyone = jnp.asarray(ended), jnp.ones(len(log))
    run = lambda tables, weight, rounds: finite_em.run_em(tables, episodes, over, weight, closing, rounds)
    best: tuple[float, Any] = (-np.inf, None)
    for one in jax.random.split(key, recipe.starts):
        tables, evidence = run(
            finite_em.guess(one, recipe.states + 1, int(done.n), int(seen.n), spread), everyone, recipe.rounds
        )
        best = max(best, (float(evidence[-1]), tables), key=lambda pair: pair[0])
    tables = best[1]
    shorter = max(1, recipe.rounds // 4)
    without = [run(tables, jnp.asarray(fold != k, jnp.float32), shorter)[0] for k in range(recipe.folds)]
    make = lambda found: _finite_model(found, log.max_length, recipe)
    own = np.stack([np.asarray(finite_em.evidence_of(t, episodes, over, closing), float) for t in without])
    held_out = own[fold, np.arange(len(log))]
    verdict = (
        _likelier(held_out - _chain(log, fold, ended), log),
        *markov(rng, _surprises(without, log, episodes, fold)),
    )
    summary = (
        f"{recipe.states} hidden states for {int(seen.n)} observations: {best[0] / log.num_steps:.4f} nats a step.",
        "Rewards are means, given states and action; they are no evidence of the state.",
    )
    return HiddenResult(make(tables), tuple(map(make, without)), verdict, summary)


def _finite_model(tables: HiddenTables, horizon: int, recipe: HiddenFit) -> FittedHidden:
    initial, transition, observation = (
        np.asarray(x, float) for x in (tables.initial, tables.transition, tables.observation)
    )
    normal = lambda table: table / table.sum(-1, keepdims=True)
    return FittedHidden(
        normal(initial),
        normal(transition),
        normal(observation),
        np.asarray(tables.reward),
        horizon=horizon,
        reparameterization=recipe.reparameterization,
    )


def _chain(log: EpisodeLog, fold: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Log p of what was seen in each episode by a chain of observations that was counted without its fold, `[N]`."""
    episodes = log.padded()
    observed, action, live = (np.asarray(x) for x in (episodes.observation, episodes.action, episodes.live))
    n, actions = int(observed.max()) + 1, int(action.max()) + 1
    closing = log.schema.last_observation == "logged"
    last = np.arange(live.shape[1]) == (log.lengths - 1)[:, None]
    known = live & (closing | ~last)
    # An end is one more thing to see.
    after = observed[:, 1:] + n * (last & ended[:, None])
    found = np.zeros(len(log))
    for k in range(fold.max() + 1):
        rest, own = fold != k, fold == k
        first = np.bincount(observed[rest, 0], minlength=n) + 0.5
        moves = np.full((actions, n, 2 * n), 0.5 if ended.any() else 1e-12)
        moves[:, :, :n] = 0.5
        chosen = known & rest[:, None]
        np.add.at(moves, (action[chosen], observed[:, :-1][chosen], after[chosen]), 1)
        log_first, log_moves = np.log(first / first.sum()), np.log(moves / moves.sum(-1, keepdims=True))
        steps = np.where(known, log_moves[action, observed[:, :-1], after], 0.0).sum(1)
        found[own] = (log_first[observed[:, 0]] + steps)[own]
    return found


def _likelier(gain: np.ndarray, log: EpisodeLog) -> Diagnostic:
    found = judging.likelihood(np.repeat(gain / log.lengths, log.lengths), np.repeat(np.arange(len(log)), log.lengths))
    return replace(found, sentence=found.sentence.replace("linear regressions", "a chain of observations"))


def _surprises(without: list[HiddenTables], log: EpisodeLog, episodes: Episode, fold: np.ndarray) -> judging.Noise:
    """What was seen less its probability, one column per observation, by the fit that has not seen the episode."""
    n = without[0].observation.shape[1]
    likely = np.stack([np.asarray(finite_em.foreseen(tables, episodes), float) for tables in without])
    likely = likely[fold, np.arange(len(log))]
    observed, action, live = (np.asarray(x) for x in (episodes.observation, episodes.action, episodes.live))
    last = np.arange(live.shape[1]) == (log.lengths - 1)[:, None]
    ends = last & (log.terminated & (log.lengths < log.max_length))[:, None]
    known = live & ~ends & ((log.schema.last_observation == "logged") | ~last)
    surprise = (np.eye(n)[observed[:, 1:]] - likely) / np.sqrt(np.maximum(likely * (1 - likely), 1e-3))
    actions = int(action.max()) + 1
    inputs = np.concatenate([np.eye(n)[observed[:, :-1]], np.eye(actions)[action]], -1)
    episode, time = np.nonzero(known)
    names = tuple(f"observation {o}" for o in range(n))
    return judging.Noise(
        inputs[known], surprise[known], np.full(len(time), np.nan), episode, time, names, np.ones(len(names))
    )


def _gaussian(key: Array, rng: np.random.Generator, log: EpisodeLog, recipe: HiddenFit) -> HiddenResult:
    if (log.terminated & (log.lengths < log.max_length)).any():
        raise CouldaError(
            "episodes come to an end before the horizon, which a linear-Gaussian state does not have. Fit observed "
            "vectors (NeuralFit), or numbered states."
        )
    if np.isnan(log.observation).any():
        raise CouldaError("observations are missing (NaN); a linear-Gaussian fit needs all of them.")
    _, fold = deal(log, recipe.folds)
    units = units_of(log)
    episodes, closing = (
        units.standardized(log.padded()),
        jnp.asarray(log.schema.last_observation == "logged", jnp.int32),
    )
    controls, sights = episodes.action.shape[-1], episodes.observation.shape[-1]
    run = lambda system, weight, rounds: gaussian_em.run_em(system, episodes, weight, closing, rounds)
    everyone = jnp.ones(len(log))
    best: tuple[float, Any] = (-np.inf, None)
    for one in jax.random.split(key, recipe.starts):
        system, evidence = run(gaussian_em.guess(one, recipe.states, controls, sights), everyone, recipe.rounds)
        reached = float(evidence[-1])
        best = max(best, (reached if np.isfinite(reached) else -np.inf, system), key=lambda pair: pair[0])
    if best[1] is None:
        raise CouldaError("expectation maximization did not stay finite from any start; take fewer states.")
    system = best[1]
    shorter = max(1, recipe.rounds // 4)
    without = [run(system, jnp.asarray(fold != k, jnp.float32), shorter)[0] for k in range(recipe.folds)]
    make = lambda found: _gaussian_model(found, episodes, log, units, closing)
    own = [gaussian_em.smoothed_all(found, episodes, closing) for found in without]
    held_out = np.stack([np.asarray(found.log_evidence, float) for found in own])[fold, np.arange(len(log))]
    noise = _innovations(own, episodes, fold)
    verdict = (
        _regressed(held_out, episodes, log, fold),
        *judging.transforms(noise),
        *markov(rng, noise),
    )
    nats = best[0] / log.num_steps - float(np.log(np.asarray(units.seen_spread)).sum())
    summary = (f"A hidden vector of {recipe.states} numbers, seen as {sights}; {nats:.4f} nats a step.",)
    return HiddenResult(make(system), tuple(map(make, without)), verdict, summary)


def _gaussian_model(
    system: HiddenSystem, episodes: Episode, log: EpisodeLog, units: Units, closing: Array
) -> FittedSystem:
    found = gaussian_em.smoothed_all(system, episodes, closing)
    payoff = rewarded(found.mean, found.covariance, episodes)
    return system_model(system, payoff, units, log.max_length)


def _regressed(held_out: np.ndarray, episodes: Episode, log: EpisodeLog, fold: np.ndarray) -> Diagnostic:
    """Against a regression of what is seen on what was seen and done just before, fitted without the fold."""
    observed, action, live = (np.asarray(x, float) for x in (episodes.observation, episodes.action, episodes.live))
    closing = log.schema.last_observation == "logged"
    known = (live > 0) & (closing | (np.arange(live.shape[1]) < (log.lengths - 1)[:, None]))
    x = np.concatenate([observed[:, :-1], action, np.ones((*action.shape[:2], 1))], -1)
    found = np.zeros(len(log))
    for k in range(fold.max() + 1):
        rest, own = fold != k, fold == k
        chosen = known & rest[:, None]
        weights = np.linalg.lstsq(x[chosen], observed[:, 1:][chosen], rcond=None)[0]
        left = observed[:, 1:] - x @ weights
        spread = np.cov(left[chosen].T).reshape(left.shape[-1], -1) + 1e-9 * np.eye(left.shape[-1])
        start = observed[rest, 0]
        first = np.cov(start.T).reshape(left.shape[-1], -1) + 1e-9 * np.eye(left.shape[-1])
        steps = np.where(known, judging.normal_log_density(left, spread), 0.0).sum(1)
        found[own] = (steps + judging.normal_log_density(observed[:, 0] - start.mean(0), first))[own]
    gain = held_out - found
    told = judging.likelihood(np.repeat(gain / log.lengths, log.lengths), np.repeat(np.arange(len(log)), log.lengths))
    return replace(told, sentence=told.sentence.replace("linear regressions", "a regression on what was seen before"))


def _innovations(own: list[Any], episodes: Episode, fold: np.ndarray) -> judging.Noise:
    """What was seen less what was foreseen, whitened, by the fit that has not seen the episode."""
    each = np.arange(len(fold))
    white = np.stack([np.asarray(found.innovation, float) for found in own])[fold, each][:, 1:]
    known = np.isfinite(white).all(-1)
    inputs = np.concatenate([np.asarray(episodes.observation, float)[:, :-1], np.asarray(episodes.action, float)], -1)
    episode, time = np.nonzero(known)
    names = tuple(f"observation {j}" for j in range(white.shape[-1]))
    return judging.Noise(
        inputs[known], white[known], np.full(len(time), np.nan), episode, time, names, np.ones(len(names))
    )
