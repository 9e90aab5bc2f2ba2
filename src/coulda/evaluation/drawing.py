"""Pictures of estimates: every one with its interval, the terms of one, and the error against t. Needs `plots`."""

from typing import TYPE_CHECKING, Any

from coulda.drawing import Picture, new_figure
from coulda.evaluation.shown import COLORS

if TYPE_CHECKING:
    from coulda.evaluation.estimate import Estimate
    from coulda.evaluation.table import Comparison, Difference

STEPS = "steps of hindsight"
"""The detail of a row that says t."""


def draw_estimates(comparison: "Comparison") -> Picture:
    """One panel a policy: each method's interval in the color of its verdict, and the truth where it is known."""
    panels = list(comparison.estimates.items())
    height = 1.5 + 0.3 * max(len(methods) for _, methods in panels)
    figure = new_figure(4.5 * len(panels), height)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axis, (name, methods) in zip(axes[0], panels, strict=True):
        for number, row in enumerate(methods.values()):
            if row.value is None or row.interval is None:
                axis.text(0.5, number, row.status, transform=axis.get_yaxis_transform(), ha="center", va="center")
            else:
                _draw_interval(axis, row, number)
        if name in comparison.truth:
            axis.axvline(comparison.truth[name], color="black", linestyle=":", label="truth")
            axis.legend(loc="best")
        # A name is text, and no formula of matplotlib's.
        axis.set_title(name, parse_math=False)
        axis.set(xlabel=f"expected {comparison.asked}", yticks=range(len(methods)), yticklabels=list(methods))
    axes[0][0].invert_yaxis()
    return Picture(figure)


def draw_errors(comparison: "Comparison") -> Picture:
    """Relative error of MB-PE (t = 0) and CF-PE(t) against t, a line a policy (Figure 2, left)."""
    figure = new_figure(5, 3.5)
    axis = figure.subplots()
    for name, methods in comparison.estimates.items():
        points = [
            (row.details[STEPS], comparison.error(name, row.method)) for row in methods.values() if STEPS in row.details
        ]
        known = sorted((t, error) for t, error in points if error is not None)
        if known:
            axis.plot(*zip(*known, strict=True), "o-", label=name)
    axis.set(xlabel="t, steps of the log that scenarios are inferred from", ylabel="relative error", ylim=(0, None))
    axis.legend()
    return Picture(figure)


def draw_estimate(row: "Estimate") -> Picture:
    """What each episode contributes, and the interval of the mean."""
    figure = new_figure(4.5, 2.4)
    axis = figure.subplots()
    if row.value is None or row.interval is None:
        axis.text(0.5, 0.5, row.status, transform=axis.transAxes, ha="center", va="center")
    else:
        axis.hist(row.terms, bins=30, color="#b8c4d0")
        axis.axvspan(row.interval.low, row.interval.high, color=COLORS[row.verdict], alpha=0.25, linewidth=0)
        axis.axvline(row.value, color=COLORS[row.verdict])
    axis.set(
        title=f"{row.method}: {row.verdict}",
        xlabel="terms of the episodes; their mean, and its interval",
        ylabel="episodes",
    )
    return Picture(figure)


def draw_difference(one: "Difference") -> Picture:
    """The interval of a difference beside no difference."""
    figure = new_figure(4.5, 1.4)
    axis = figure.subplots()
    _draw_interval(axis, one, 0)
    axis.axvline(0, color="black", linestyle=":")
    axis.set_xlabel(f"{one.policies[0]} minus {one.policies[1]}, by {one.method}", parse_math=False)
    axis.set(yticks=[])
    return Picture(figure)


def _draw_interval(axis: Any, row: "Estimate | Difference", at: int) -> None:
    assert row.interval is not None
    color = COLORS[row.verdict]
    axis.plot([row.interval.low, row.interval.high], [at, at], color=color, linewidth=2)
    axis.plot(row.value, at, "o", color=color)
