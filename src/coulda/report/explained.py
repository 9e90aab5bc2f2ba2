"""`explore_changes`: logged episodes again with other decisions, ready to be stepped through, one more at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.errors import CouldaError
from coulda.evaluation import Returns
from coulda.explanations import Change, Course, Credit, LogExplanation
from coulda.pomdp import POMDP, Episode
from coulda.report.contents import ChangedStep, CreditStrip, Explained, ExploredEpisode, Explorer, Play
from coulda.report.explorer import frames_of, short
from coulda.report.frames import View, view_of


def explore_changes(
    model: POMDP,
    episodes: EpisodeLog,
    found: LogExplanation,
    credited: Sequence[Credit] | None = None,
    *,
    view: View | None = None,
    threshold: float | None = None,
) -> Explorer:
    """Each episode as it was, and with at most 1, 2, … k other decisions.

    Args:
        model: the SCM that we believe in.
        episodes: the log that was explained.
        found: its explanation.
        credited: what each decision of each episode was worth, by `credit_log`, for a strip under the trajectory.
        view: how states are shown; see `view_of`.
        threshold: the return from which an episode is won; by default the target, or the mean return of the log.
    """
    for what, count in (("explained", len(found)), ("credited", len(found if credited is None else credited))):
        if count != len(episodes):
            raise CouldaError(f"{count} episodes were {what}, and {len(episodes)} given; give the same log")
    view = view_of(model, episodes.schema) if view is None else view
    target = found.question.target if threshold is None else threshold
    chosen = float(found.answers.logged.mean()) if target is None else target
    strips = [None] * len(found) if credited is None else credited
    explored = tuple(_episode(view, episodes[i], found, i, credit) for i, credit in enumerate(strips))
    return Explorer(view.scene, (), 1, short(chosen), explored, found.question.changes)


def _episode(view: View, episode: Episode, found: LogExplanation, i: int, credit: Credit | None) -> ExploredEpisode:
    paid = Returns(found.question.discount).paid(np.asarray(episode.reward))
    answer, logged = found[i], tuple(map(short, paid))
    plays = [_play(view, course, float(e.value or 0.0)) for course, e in zip(answer.courses, answer.curve, strict=True)]
    actions = tuple(view.action(action) for action in np.asarray(episode.action))
    factual = Play(plays[0].frames, actions, logged, (short(answer.logged),))
    observed = np.asarray(_pictures(view.observation, episode.observation))
    guaranteed = () if answer.guaranteed is None else tuple(map(short, answer.guaranteed))
    explained = Explained(
        (factual, *plays[1:]),
        tuple(tuple(_change(view, change) for change in course.changes) for course in answer.courses),
        tuple(short(e.value) for e in answer.curve),
        guaranteed,
        answer.sentence,
        answer.verdict,
        answer.reasons,
        None
        if credit is None
        else CreditStrip(*(tuple(map(short, x)) for x in (credit.effect, credit.low, credit.high))),
    )
    return ExploredEpisode(found.first + i, frames_of(view, observed[None], known=True), factual, (), explained)


def _play(view: View, course: Course, value: float) -> Play:
    frames = np.asarray(_pictures(view.state, course.state))
    actions = tuple(view.action(action) for action in np.asarray(course.action))
    return Play(frames_of(view, frames[None]), actions, tuple(map(short, course.reward)), (short(value),))


def _change(view: View, change: Change) -> ChangedStep:
    return ChangedStep(change.step, view.action(change.did), view.action(change.instead))


@eqx.filter_jit
def _pictures(picture: Callable[[Any], Array], states: Any) -> Array:
    return jax.vmap(picture)(jax.tree.map(jnp.asarray, states))
