"""What a person wants to know of a log: facts, and pictures of its returns and lengths."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from coulda.drawing import Picture, new_figure

if TYPE_CHECKING:
    from coulda.episodes.log import EpisodeLog, Schema


def facts_of(schema: "Schema", batches: Iterable["EpisodeLog"]) -> dict[str, str]:
    """Counts, lengths, returns, ends, spaces and probabilities, each in a few words, from batches as they come."""
    lengths, returns, terminated, known = [], [], [], 0
    for batch in batches:
        lengths.append(batch.lengths)
        returns.append(batch.episode_returns)
        terminated.append(batch.terminated)
        known += int((~np.isnan(batch.log_prob)).sum())
    length, total = np.concatenate(lengths), np.concatenate(returns)
    if not len(length):
        return {"episodes": "0"}
    error = f" ± {total.std(ddof=1) / np.sqrt(len(total)):.4g}" if len(total) > 1 else ""
    return {
        "episodes": f"{len(length):,}",
        "steps": f"{length.sum():,}",
        "length": f"{length.min()} … {length.max()}, median {np.median(length):g}",
        "return": f"{total.mean():.4g}{error} (mean ± standard error), {total.min():.4g} … {total.max():.4g}",
        "came to their end": f"{np.concatenate(terminated).mean():.1%}",
        "observations": str(schema.observation_space),
        "last observation": schema.last_observation,
        "actions": str(schema.action_space),
        **({"understood": schema.sentence} if schema.notes or schema.action_names else {}),
        "behavior probabilities": _probabilities(schema, known / length.sum()),
    }


def _probabilities(schema: "Schema", share: float) -> str:
    return "unknown" if share == 0 else f"{schema.behavior}, at {share:.1%} of the steps"


def draw_log(log: "EpisodeLog") -> Picture:
    """How often which return, and which length."""
    figure = new_figure(7, 2.6)
    for axis, values, name in zip(
        figure.subplots(1, 2), (log.episode_returns, log.lengths), ("return", "length"), strict=True
    ):
        axis.hist(values, bins=30, color="#3b6ea5")
        axis.set(xlabel=name, ylabel="episodes")
    return Picture(figure)
