"""Figures as bytes that are the same each time, without pyplot: a notebook keeps its backend."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coulda.errors import CouldaError
from coulda.extras import require
from coulda.storage import replace_file

__all__ = ["Picture", "as_png", "as_svg", "new_figure"]


@dataclass(frozen=True)
class Picture:
    """A figure that notebooks show as it is, and that `save("picture.svg")` or `save("picture.png")` writes."""

    figure: Any
    """Matplotlib's, to change at will."""

    def save(self, path: Path | str) -> Path:
        """Write it, whole or not at all; the format is the file's ending, svg or png."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise CouldaError(f"{path} ends with '{path.suffix}'; pictures are saved as .svg or .png")
        replace_file(path, as_png(self.figure) if path.suffix == ".png" else as_svg(self.figure).encode())
        return path

    def _repr_svg_(self) -> str:
        return as_svg(self.figure)


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
