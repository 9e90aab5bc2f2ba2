"""A small report that nothing was computed for."""

from coulda.report import Figure, Report
from coulda.report.contents import (
    Channel,
    ExploredEpisode,
    Explorer,
    Finding,
    LineFrames,
    MethodVerdict,
    Play,
    Provenance,
    Row,
    SeriesScene,
    Table,
)


def plain_report() -> Report:
    finding = Finding("support", 0.5, "caution", "Little is known.")
    row = Row("bold", "WIS", 0.5, 0.1, 0.9, 0.95, 12.0, "caution", "Few episodes.", (finding,), 0.1)
    table = Table((row,), (MethodVerdict("WIS", "caution", "Few."),), 12, 0.4, {"bold": 0.3})
    frames = LineFrames(((0.0, 1.0),), ((0.0, 0.5),), ((0.5, 1.5),))
    play = Play(frames, ("wait",), (1.0,), (1.0, 0.0))
    episodes = (ExploredEpisode(0, LineFrames(((0.0, None),)), play, (play,)),)
    explorer = Explorer(SeriesScene((Channel("pulse", ("low", "high")),)), ("bold",), 2, 0.5, episodes)
    figures = (Figure("Error", "It falls.", "<svg/>"),)
    facts = Provenance({"log": 1}, {"world": {"a": [1, 2]}}, {"jax": "1"}, {"log": "0" * 64})
    return Report("A report", ("It is bold.",), table, explorer, figures, facts)
