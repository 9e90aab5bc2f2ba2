"""Check of a scenario source."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from coulda.hindsight import Prior, ScenarioSource
from coulda.pomdp import POMDP, Episode, Scenario
from coulda.testing.checks import describe, first_of, refuse, same, scenarios_of, trajectories_of

DRAWS = 200
"""Of one episode, that are compared in law where they differ: two thirds of a deviation are found."""
SURE = 1e-6
"""Probability of draws of one law that differ as much, below which they are said not to be."""


def check_scenarios(source: ScenarioSource, model: POMDP, *, seed: int = 0, episodes: int = 8) -> None:
    """Check a source of your own over `model`: draws fit the model, are made by the key, and see h_t only.

    Where a rounding may flip a choice, as in resampling, draws under vmap and one by one are compared in law. That they
    are the *right* posterior is not checked here: `calibrate` does, and `evaluate`, by replay and mismatch.
    """
    name = type(source).__name__
    refuse(not isinstance(source, ScenarioSource), f"{name} is not a ScenarioSource. Subclass it and write `infer`.")
    keys, others, draws = (jax.random.split(jax.random.key(seed + i), episodes) for i in range(3))
    logged, different = (_episodes(model, some) for some in (keys, others))
    _check_structure(name, source, model, draws[0], logged)
    drawn = _infer(source, draws, logged)
    again = _infer(source, draws, logged)
    refuse(
        not same(drawn, again),
        f"{name}.infer gives different scenarios for the same key and episode. Take all chance from `key`, and keep "
        "nothing between calls.",
    )
    alone = _infer_alone(source, draws[0], first_of(logged))
    refuse(
        not _close(alone, first_of(drawn)) and not _of_one_law(source, draws[0], first_of(logged)),
        f"{name}.infer gives another scenario under vmap than for one episode. Write it for one episode, in jax.numpy.",
    )
    _check_total(name, model, drawn)
    if not isinstance(source, Prior):
        _check_history(name, source, draws, logged, different)


def _check_structure(name: str, source: ScenarioSource, model: POMDP, key: Array, logged: Episode) -> None:
    drawn = jax.eval_shape(source.infer, key, first_of(logged))
    refuse(not isinstance(drawn, Scenario), f"{name}.infer gives a {type(drawn).__name__}; return a Scenario.")
    found, expected = describe(drawn), describe(jax.eval_shape(model.scenario_prior.sample, key))
    refuse(
        found != expected,
        f"{name}.infer gives {found}; the model's scenario_prior gives {expected}. Keep structure, shapes and dtypes; "
        "start from `fresh(key, model)`.",
    )


def _check_total(name: str, model: POMDP, drawn: Scenario) -> None:
    """Law 4: simulators are total."""
    reward = np.asarray(trajectories_of(model, drawn).episode.reward)
    refuse(
        not np.isfinite(reward).all(),
        f"a scenario of {name} has the reward {reward[~np.isfinite(reward)][:1]}. The model must accept whatever its "
        "source can draw: make `reward` finite there, or draw only noise that the prior could have drawn.",
    )


def _check_history(name: str, source: ScenarioSource, draws: Array, logged: Episode, different: Episode) -> None:
    """Law 8: nothing unobserved is used. What follows h_t is replaced by another episode, and must not matter."""
    horizon = logged.live.shape[1]
    for steps in sorted({0, 1, (horizon + 1) // 2}):
        given = source.given(steps)
        changed = _all_spliced(logged, different, jnp.int32(steps))
        refuse(
            not same(_infer(given, draws, logged), _infer(given, draws, changed)),
            f"{name}.given({steps}) depends on what comes after the first {steps} observations. Use "
            "`history_length(episode, self.steps)`, and draw the rest afresh with `where_known`.",
        )


@jax.jit
def _all_spliced(episodes: Episode, others: Episode, steps: Array) -> Episode:
    return jax.vmap(_spliced, (0, 0, None))(episodes, others, steps)


def _spliced(episode: Episode, other: Episode, steps: Array) -> Episode:
    """The episode up to h_t, and the other one after it; one that is over within h_t stays as it is."""

    def after(first: Array) -> Any:
        keep = episode.length + 1 <= steps

        def pick(a: Array, b: Array) -> Array:
            early = jnp.arange(a.shape[0]) < first
            return jnp.where(jnp.reshape(early | keep, (-1,) + (1,) * (a.ndim - 1)), a, b)

        return pick

    # h_t has one action less than observations; that the episode was not over at o_t is known with o_t.
    kept = {"observation": steps, "live": steps} | dict.fromkeys(("action", "reward", "log_prob"), steps - 1)
    return Episode(
        **{name: jax.tree.map(after(n), getattr(episode, name), getattr(other, name)) for name, n in kept.items()}
    )


def _episodes(model: POMDP, keys: Array) -> Episode:
    return trajectories_of(model, scenarios_of(model, keys)).episode


@eqx.filter_jit
def _infer(source: ScenarioSource, keys: Array, episodes: Episode) -> Scenario:
    return jax.vmap(source.infer)(keys, episodes)


@eqx.filter_jit
def _infer_alone(source: ScenarioSource, key: Array, episode: Episode) -> Scenario:
    return source.infer(key, episode)


def _of_one_law(source: ScenarioSource, key: Array, episode: Episode) -> bool:
    """Whether draws one by one and under vmap have one distribution, number by number (Kolmogorov and Smirnov)."""
    keys = jax.random.split(key, DRAWS)
    alone, together = (_many(source, keys, episode, one_by_one) for one_by_one in (True, False))
    pairs = zip(_columns(alone), _columns(together), strict=True)
    chances = [scipy.stats.ks_2samp(x, y).pvalue for x, y in pairs]  # pyright: ignore[reportAttributeAccessIssue]
    return min(chances, default=1.0) * len(chances) >= SURE


@eqx.filter_jit
def _many(source: ScenarioSource, keys: Array, episode: Episode, one_by_one: bool) -> Scenario:
    infer = lambda key: source.infer(key, episode)
    return jax.lax.map(infer, keys) if one_by_one else jax.vmap(infer)(keys)


def _columns(drawn: Scenario) -> list[np.ndarray]:
    """Every number of all draws, `[n]` each; seeds of lazy noise are none."""
    leaves = [leaf for leaf in jax.tree.leaves(drawn) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    return [column for leaf in leaves for column in np.asarray(leaf, float).reshape(len(leaf), -1).T]


def _close(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-4) for x, y in pairs)
