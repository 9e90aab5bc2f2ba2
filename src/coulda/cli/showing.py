"""What names of somebody else's may do to a terminal: nothing."""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape as plain
from rich.segment import Segment

__all__ = ["Screen", "plain"]

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tabs and new lines; escape sequences begin with one of them."""


class Screen(Console):
    """A console on which control characters are shown and never sent; `plain` text has no markup either."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """The segments, those of text without anything that a terminal would obey."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), style, control)
