"""Pictures of a comparison: every estimate with its interval, and the error against t. Needs the extra `plots`."""

from pathlib import Path

from coulda.drawing import as_png, new_figure
from coulda.evaluation.comparison import Comparison
from coulda.evaluation.on_scenarios import STEPS
from coulda.storage import replace_file

COLORS = {"trust": "#1b7f4b", "caution": "#c77700", "do not trust": "#b3261e"}
"""Of the verdicts; told apart by eyes that do not see red and green, since they also differ in lightness."""


def draw_estimates(comparison: Comparison, path: Path | str) -> None:
    """One panel a policy: each method's interval in the color of its verdict, and the truth where it is known."""
    panels = list(comparison.estimates.items())
    height = 1.5 + 0.3 * max(len(methods) for _, methods in panels)
    figure = new_figure(4.5 * len(panels), height)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axis, (name, methods) in zip(axes[0], panels, strict=True):
        for row, estimate in enumerate(methods.values()):
            if estimate.value is None or estimate.interval is None:
                axis.text(0.5, row, estimate.status, transform=axis.get_yaxis_transform(), ha="center", va="center")
                continue
            color = COLORS[estimate.verdict]
            axis.plot([estimate.interval.low, estimate.interval.high], [row, row], color=color, linewidth=2)
            axis.plot(estimate.value, row, "o", color=color)
        if name in comparison.truth:
            axis.axvline(comparison.truth[name], color="black", linestyle=":", label="truth")
            axis.legend(loc="best")
        axis.set(
            title=name, xlabel=f"expected {comparison.asked}", yticks=range(len(methods)), yticklabels=list(methods)
        )
    axes[0][0].invert_yaxis()
    replace_file(Path(path), as_png(figure))


def draw_errors(comparison: Comparison, path: Path | str) -> None:
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
    replace_file(Path(path), as_png(figure))
