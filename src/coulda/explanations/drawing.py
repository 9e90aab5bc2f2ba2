"""What k buys on the average, and at which steps, as a figure."""

from pathlib import Path

import numpy as np

from coulda.drawing import as_png, new_figure
from coulda.explanations.answers import LogExplanation
from coulda.storage import replace_file


def draw_curve(found: LogExplanation, path: Path | str) -> None:
    """The mean return over the number of changes with its interval and guarantees, and how often each step is changed.

    Needs the extra `plots`.
    """
    figure = new_figure(8, 3.4)
    left, right = figure.subplots(1, 2)
    curve, changes = found.curve, np.arange(len(found.curve))
    values = np.array([estimate.value for estimate in curve])
    limits = np.array([(e.interval.low, e.interval.high) for e in curve if e.interval is not None])
    left.plot(changes, values, "o-", label="expected")
    if np.isfinite(limits).all():
        left.fill_between(changes, *limits.T, alpha=0.2, label="95 % over episodes")
    if found.answers.worst is not None and found.answers.best is not None:
        left.plot(changes, found.answers.worst.mean(0), "k--", lw=1, label="whatever the mechanism")
        left.plot(changes, found.answers.best.mean(0), "k:", lw=1, label="at best")
    left.set(xlabel="at most so many changes", ylabel="mean return", xticks=changes)
    left.legend(fontsize="small")
    counts = found.answers.changed[:, -1].sum(0)
    right.bar(np.arange(len(counts)), counts)
    right.set(xlabel="step", ylabel=f"changed, of {len(found):,} episodes")
    replace_file(Path(path), as_png(figure))
