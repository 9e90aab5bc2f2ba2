"""Figures as bytes that are the same each time, without pyplot: a notebook keeps its backend."""

import io
from typing import Any

from coulda.extras import require

__all__ = ["as_png", "as_svg", "new_figure"]


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, of so many inches."""
    require("matplotlib", extra="plots")
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained")


def as_svg(figure: Any) -> str:
    """A matplotlib figure; the same one always gives the same bytes."""
    text = io.StringIO()
    # Without a salt of its own matplotlib names the parts of a figure anew each time.
    with require("matplotlib", extra="plots").rc_context({"svg.hashsalt": "coulda"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def as_png(figure: Any) -> bytes:
    """A matplotlib figure at 150 dots per inch; the same one always gives the same bytes."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()
