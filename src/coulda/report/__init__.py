"""One HTML page to look at: verdicts, the table of estimators, figures and the counterfactual explorer.

In the order in which they import each other: `contents` (what a report holds), `tables` (from a `Comparison`),
`sprites` and `frames` (what a model's states look like), `explorer` (logged episodes under other policies), `explained`
(under other decisions), `page` (the HTML, and the report as an artifact). `page.html`, `page.css`, `page.js`,
`explained.js` and `explorer.js` are put together when it is written.
"""

from coulda.report.contents import (
    Channel,
    Explorer,
    Figure,
    GridScene,
    LineFrames,
    ModelVerdict,
    Provenance,
    Report,
    SeriesScene,
    Table,
    Tile,
    TileFrames,
)
from coulda.report.explained import explore_changes
from coulda.report.explorer import explore
from coulda.report.frames import View, view_of
from coulda.report.page import load_report, save_report, write_report
from coulda.report.tables import describe, provenance, summarize, tabulate

__all__ = [
    "Channel",
    "Explorer",
    "Figure",
    "GridScene",
    "LineFrames",
    "ModelVerdict",
    "Provenance",
    "Report",
    "SeriesScene",
    "Table",
    "Tile",
    "TileFrames",
    "View",
    "describe",
    "explore",
    "explore_changes",
    "load_report",
    "provenance",
    "save_report",
    "summarize",
    "tabulate",
    "view_of",
    "write_report",
]
