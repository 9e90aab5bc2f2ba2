"""Figures as text."""

import io
from typing import Any

from coulda.extras import require


def as_svg(figure: Any) -> str:
    """A matplotlib figure; the same one always gives the same bytes."""
    text = io.StringIO()
    # Without a salt of its own matplotlib names the parts of a figure anew each time.
    with require("matplotlib", extra="plots").rc_context({"svg.hashsalt": "coulda"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
