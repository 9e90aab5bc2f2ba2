"""Estimates, differences and tables as people see them: sentences, lines of text, HTML for notebooks, data frames."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coulda.extras import require
from coulda.notebooks import Html, element

if TYPE_CHECKING:
    import pandas as pd

    from coulda.evaluation.estimate import Estimate, Verdict
    from coulda.evaluation.intervals import Interval
    from coulda.evaluation.table import Comparison, Difference

COLORS = {"trust": "#1b7f4b", "caution": "#c77700", "do not trust": "#b3261e"}
"""Of the verdicts; told apart by eyes that do not see red and green, since they also differ in lightness."""
WIDTH, HEIGHT = 150, 14
"""Of the picture of an interval, in pixels."""
KEPT = (
    *("method", "value", "low", "high", "level", "interval", "standard error", "effective sample size"),
    *("status", "verdict", "reasons"),
)
"""What a data frame has of an estimate's plain form."""


@dataclass(frozen=True)
class Doubt:
    """One sentence that speaks against estimates, said once however many it is about."""

    about: str
    """Such as "bold (IS, WIS, DR)"."""
    verdict: "Verdict"
    sentence: str


def doubts_of(rows: Iterable[tuple[str, "Estimate"]]) -> list[Doubt]:
    """What keeps rows from being trusted, each sentence once, in the order of the rows; see `Estimate.doubts`."""
    about: dict[tuple[Verdict, str], dict[str, list[str]]] = {}
    for policy, row in rows:
        for sentence in row.doubts:
            about.setdefault((row.verdict, sentence), {}).setdefault(policy, []).append(row.method)
    return [Doubt(_about(methods), verdict, sentence) for (verdict, sentence), methods in about.items()]


def _about(methods: Mapping[str, list[str]]) -> str:
    """Policies of which the same methods are meant are named together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for policy, names in methods.items():
        together.setdefault(tuple(names), []).append(policy)
    return "; ".join(f"{listed(policies)} ({', '.join(names)})" for names, policies in together.items())


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def text_of(table: "Comparison") -> str:
    """The table in lines of text."""
    head = ("policy", "method", "value", "interval", "effective", "verdict")
    rows = [head, *(_cells(policy, row) for policy, row in table.rows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cells(policy: str, row: "Estimate") -> tuple[str, ...]:
    value = row.status if row.value is None else f"{row.value:.4g}"
    return policy, row.method, value, limits(row.interval), f"{row.effective_sample_size:,.1f}", row.verdict


def limits(interval: "Interval | None") -> str:
    """The ends of an interval; nothing where there is none."""
    return "" if interval is None else f"[{interval.low:.4g}, {interval.high:.4g}]"


def table_html(table: "Comparison") -> Html:
    """The table with its verdicts and small intervals, and below it what speaks against the rows."""
    heads = ("policy", "method", "value", "interval", "", "effective episodes", "verdict")
    head = element("tr", *(element("th", name, style="text-align:left") for name in heads))
    logged = table.logged_returns
    said = f"expected {table.asked}; the log's {len(logged):,} episodes had {logged.mean():.4g} on average"
    caption = element("caption", said, style="text-align:left")
    body = [
        row for policy, methods in table.estimates.items() for row in _rows_html(table, policy, list(methods.values()))
    ]
    return element("div", element("table", caption, head, *body), _doubts_html(doubts_of(table.rows())))


def _rows_html(table: "Comparison", policy: str, rows: list["Estimate"]) -> Iterator[Html]:
    marks = [(float(table.logged_returns.mean()), "the log's mean", "2 2")]
    marks += [(table.truth[policy], "the truth", "none")] if policy in table.truth else []
    scale = _scale(rows, [at for at, *_ in marks])
    for row in rows:
        cells = [element("td", cell, style="text-align:left") for cell in _cells(policy, row)]
        cells[-1] = element("td", badge(row), style="text-align:left")
        yield element("tr", *cells[:4], element("td", interval_svg(row, scale, marks)), *cells[4:])


def _doubts_html(doubts: Sequence[Doubt]) -> Html:
    if not doubts:
        return element("p", "All diagnostics are fine.")
    told = [element("li", element("b", f"{one.about}: {one.verdict}. "), one.sentence) for one in doubts]
    return element("details", element("summary", "why not to trust them all"), element("ul", *told))


def estimate_html(row: "Estimate") -> Html:
    """The sentence of an estimate, with its verdict as a badge."""
    known = row.value is not None and row.interval is not None
    said = f"{row.method}: {row.value:.4g} {limits(row.interval)} " if known else f"{row.method}: {row.status} "
    picture = (interval_svg(row, _scale([row], [])), " ") if known else ()
    return element("div", element("b", said), *picture, badge(row), f" {row.reasons}")


def difference_html(one: "Difference") -> Html:
    """The sentence of a difference; its picture has a line at zero."""
    marks = [(0.0, "no difference", "2 2")]
    return element("div", interval_svg(one, _scale([one], [0.0]), marks), " ", badge(one), f" {one.sentence}")


def badge(row: "Estimate | Difference") -> Html:
    """The verdict, white on its color: readable on light pages and dark ones."""
    style = f"background:{COLORS[row.verdict]};color:white;padding:0 .5em;border-radius:.6em;white-space:nowrap"
    return element("span", row.verdict, style=style)


def interval_svg(
    row: "Estimate | Difference", scale: tuple[float, float], marks: Sequence[tuple[float, str, str]] = ()
) -> Html:
    """A small picture of an interval; what lies outside of the scale is cut off. Marks are (place, what, dashes)."""
    if row.value is None or row.interval is None:
        return Html("")
    low, high = scale
    x = lambda value: f"{min(max((value - low) / (high - low), -0.1), 1.1) * WIDTH:.1f}"
    line = {"stroke": COLORS[row.verdict], "stroke_width": 2, "y1": HEIGHT / 2, "y2": HEIGHT / 2}
    shown = [
        element(
            "line", element("title", what), x1=x(at), x2=x(at), y1=0, y2=HEIGHT, stroke="gray", stroke_dasharray=dashes
        )
        for at, what, dashes in marks
    ]
    shown.append(element("line", x1=x(row.interval.low), x2=x(row.interval.high), **line))
    shown.append(element("circle", cx=x(row.value), cy=HEIGHT / 2, r=3.5, fill=COLORS[row.verdict]))
    title = element("title", f"{row.value:.4g} {limits(row.interval)}")
    return element("svg", title, *shown, width=WIDTH, height=HEIGHT, style="vertical-align:middle")


def _scale(rows: Sequence["Estimate | Difference"], marks: Sequence[float]) -> tuple[float, float]:
    """From where to where rows are shown: all that may be believed, or all where none may."""
    known = [row for row in rows if row.interval is not None and math.isfinite(row.interval.width)]
    good = [row.interval for row in known if row.verdict != "do not trust"] or [row.interval for row in known]
    ends = [*marks, *(end for one in good if one is not None for end in (one.low, one.high))]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    edge = 0.05 * (high - low) or 0.5 * abs(low) or 0.5
    return low - edge, high + edge


def frame_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """A data frame of rows; needs the extra `tables`."""
    return require("pandas", extra="tables").DataFrame(list(rows))


def kept(found: Mapping[str, Any]) -> dict[str, Any]:
    """An estimate's plain form without what does not fit into a cell."""
    return {name: found[name] for name in KEPT}
