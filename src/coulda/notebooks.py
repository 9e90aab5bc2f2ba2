"""What notebooks show: HTML that cannot be broken out of, since all text that is not marked as HTML is escaped."""

import html
import sys
from collections.abc import Mapping

__all__ = ["Html", "element", "facts_table", "in_notebook"]


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: object) -> Html:
    """An element of HTML or SVG; in the names of attributes `_` stands for `-`, and is dropped at the end.

    >>> element("td", "1 < 2", element("b", "yes"), class_="x")
    '<td class="x">1 &lt; 2<b>yes</b></td>'
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"' for key, value in attributes.items()
    )
    inside = "".join(child if isinstance(child, Html) else html.escape(child) for child in children)
    return Html(f"<{name}{told}>{inside}</{name}>")


def facts_table(title: str, facts: Mapping[str, str]) -> Html:
    """A table of two columns: what it is, and how it is."""
    left = "text-align:left;vertical-align:top"
    rows = [
        element("tr", element("th", name, style=left), element("td", value, style=left))
        for name, value in facts.items()
    ]
    caption = element("caption", title, style="text-align:left;font-weight:bold")
    return element("table", caption, *rows)


def in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter's, whose front end shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
