"""`explore`: the same logged episodes again under other policies, ready to be stepped through.

For each episode several scenarios are drawn from p(U | h). On each of them the logged actions are replayed and every
policy is run: all on the same noise, so that what differs is what the policy did. The first draw is shown; the others
say how sure that is.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.errors import CouldaError
from coulda.evaluation import Returns
from coulda.hindsight import ScenarioSource
from coulda.hindsight.choosing import chosen
from coulda.hindsight.source import informed
from coulda.noise import check_key
from coulda.pomdp import POMDP, Actor, Episode, Scenario, batched, rollout
from coulda.pomdp.batching import raised_as_they_are
from coulda.pomdp.rollout import run_actions
from coulda.report.contents import ExploredEpisode, Explorer, Frames, GridScene, LineFrames, Play, TileFrames
from coulda.report.frames import View, view_of

DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


EPISODES_AT_ONCE = 16
"""Each with all its draws: memory stays flat."""


class Played(NamedTuple):
    """One actor on the S draws of one episode's scenario."""

    frames: Any
    """`[S, T + 1, ...]`."""
    action: Any
    """The actions of the first draw, `[T, ...]`."""
    reward: Any
    """`[S, T]`."""
    length: Any
    """The length of the first draw."""


@raised_as_they_are()
def explore(
    key: Array,
    model: POMDP,
    episodes: EpisodeLog,
    policies: Mapping[str, Actor],
    scenarios: ScenarioSource | str = "auto",
    *,
    num_samples: int = 8,
    view: View | None = None,
    threshold: float | None = None,
    returns: Returns | None = None,
) -> Explorer:
    """Each episode's inferred scenario, and every policy on it.

    Args:
        key: consumed.
        model: the SCM we believe in.
        episodes: a log; some dozens are enough to look at.
        policies: the policies by name. Planners are welcome: they see the state of the inferred scenario.
        scenarios: a source of scenarios given an episode, or its name; `choose`n for the model by default.
        num_samples: draws of p(U | h) an episode, 1 to 63.
        view: how states are shown; see `view_of`.
        threshold: the return from which an episode is won; by default the mean return of these episodes.
        returns: what is asked of them; where they are discounted, rewards are shown as they count in them.
    """
    check_key(key)
    if not 1 <= num_samples < len(DIGITS):
        raise CouldaError(f"num_samples is {num_samples}; draw 1 to {len(DIGITS) - 1} scenarios per episode")
    if not policies or not len(episodes):
        raise CouldaError(f"nothing to explore: {len(episodes)} episodes, {len(policies)} policies; give some of both")
    view = view_of(model, episodes.schema) if view is None else view
    repeated = episodes.schema.last_observation == "repeated"
    keys, source = jax.random.split(key, len(episodes)), chosen(model, scenarios).source
    drawn, observed, replayed = _infer(model, source, view, repeated, num_samples, keys, episodes.padded(model.horizon))
    # Programs of their own, so that policies that differ in their numbers only share one.
    played = tuple(_run(model, policy, view, drawn) for policy in policies.values())
    observed, replayed, played = jax.tree.map(np.asarray, (observed, replayed, played))
    paid = (returns or Returns()).paid
    replayed, *played = (one._replace(reward=paid(one.reward)) for one in (replayed, *played))
    logged = [paid(np.asarray(episodes[i].reward)) for i in range(len(episodes))]
    explored = [
        _episode(i, view, reward, observed[i], _at((replayed, tuple(played)), i)) for i, reward in enumerate(logged)
    ]
    won = float(np.mean([reward.sum() for reward in logged])) if threshold is None else threshold
    return Explorer(view.scene, tuple(policies), num_samples, short(won), tuple(explored))


@eqx.filter_jit
def _infer(
    model: POMDP, source: ScenarioSource, view: View, repeated: bool, count: int, keys: Array, episodes: Episode
) -> tuple[Scenario, Array, Played]:
    """Scenarios `[N, S, ...]`, what was observed `[N, T + 1, ...]`, and the logged actions replayed."""

    def one(pair: tuple[Array, Episode]) -> tuple[Scenario, Array, Played]:
        key, episode = pair
        scenarios, _ = informed(source, repeated, episode).infer_many(key, episode, count)
        states, _, rewards = jax.vmap(lambda u: run_actions(model, u, episode.action))(scenarios)
        paid = jnp.where(episode.live[None], rewards, 0.0)
        replayed = Played(jax.vmap(jax.vmap(view.state))(states), episode.action, paid, episode.length)
        return scenarios, jax.vmap(view.observation)(episode.observation), replayed

    return batched(one, (keys, episodes), chunk_size=EPISODES_AT_ONCE)


@eqx.filter_jit
def _run(model: POMDP, policy: Actor, view: View, scenarios: Scenario) -> Played:
    """A policy on every scenario `[N, S, ...]`."""

    def one(scenarios: Scenario) -> Played:
        tau = jax.vmap(lambda u: rollout(model, policy, u))(scenarios)
        first = _at(tau.episode, 0)
        return Played(jax.vmap(jax.vmap(view.state))(tau.state), first.action, tau.episode.reward, first.length)

    return batched(one, scenarios, chunk_size=EPISODES_AT_ONCE)


def _episode(number: int, view: View, reward: np.ndarray, observed: np.ndarray, found: Any) -> ExploredEpisode:
    """Numbers to contents, of one episode."""
    replayed, played = found
    length = len(reward)
    factual = _play(view, replayed)
    logged = tuple(map(short, reward))
    return ExploredEpisode(
        number,
        frames_of(view, observed[None, : length + 1], known=True),
        Play(factual.frames, factual.actions, logged, factual.returns),
        tuple(_play(view, one) for one in played),
    )


def _play(view: View, played: Played) -> Play:
    length = int(played.length)
    return Play(
        frames_of(view, played.frames[:, : length + 1]),
        tuple(view.action(_at(played.action, t)) for t in range(length)),
        tuple(short(reward) for reward in played.reward[0, :length]),
        tuple(short(value) for value in played.reward.sum(1)),
    )


def frames_of(view: View, draws: np.ndarray, known: bool = False) -> Frames:
    """The first of draws `[S, T + 1, ...]`, and how far the others agree with it, unless it is known."""
    if isinstance(view.scene, GridScene):
        agreement = "" if known else _digits((draws == draws[0]).sum(0))
        return TileFrames(_digits(draws[0]), agreement)
    values = draws[0].astype(float)
    low, high = ((), ()) if known else (_lines(limit) for limit in np.quantile(draws, (0.05, 0.95), axis=0))
    return LineFrames(_lines(values), low, high)


def _lines(values: np.ndarray) -> tuple[tuple[float | None, ...], ...]:
    """`[T + 1, C]` to a tuple a channel; None where there is nothing."""
    return tuple(tuple(None if np.isnan(x) else short(x) for x in channel) for channel in values.T)


def _digits(numbers: np.ndarray) -> str:
    """A character a number in 0 … 63.

    >>> _digits(np.array([[0, 1], [26, 63]]))
    'ABa_'
    """
    return DIGITS[numbers.ravel()].tobytes().decode()


def short(value: Any) -> float:
    """Six digits, which is what a float32 holds.

    >>> short(np.float32(0.1))
    0.1
    """
    return float(f"{value:.6g}")


def _at(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)
