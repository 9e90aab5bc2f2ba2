"""Estimates against each other: two that are trusted and do not overlap cannot both be right."""

from dataclasses import replace

from coulda.evaluation.estimate import Diagnostic, Estimate, Verdict

ASSUMPTIONS = {"on-policy": 0, "IS": 1, "WIS": 1, "PDIS": 1, "WPDIS": 1, "DR": 2, "WDR": 2}
"""How much a method takes for granted: nothing; the behavior's probabilities; those, or fitted values. All others rest
on something of their own: a cap, fitted values, a model."""
SOMETHING_ELSE = 3


def assumptions(method: str) -> int:
    """Where a method stands in that order; fewer assumptions come first.

    >>> sorted(["MB-PE", "DR", "WIS"], key=assumptions)
    ['WIS', 'DR', 'MB-PE']
    """
    return ASSUMPTIONS.get(method, SOMETHING_ELSE)


def told_apart(rows: dict[str, Estimate]) -> dict[str, Estimate]:
    """The rows of one policy; those that are trusted and contradict each other say so.

    Of two, the one that takes more for granted is warned of, and not to be trusted where the gap between the intervals
    is wider than both of them; the other is as good as it was. Where neither does, both are warned of.
    """
    trusted = [row for row in rows.values() if row.verdict == "trust" and row.interval is not None]
    found: dict[str, list[Diagnostic]] = {}
    for i, one in enumerate(trusted):
        for other in trusted[i + 1 :]:
            gap = _gap(one, other)
            if gap <= 0:
                continue
            first, second = sorted((one, other), key=lambda row: assumptions(row.method))
            equals = assumptions(first.method) == assumptions(second.method)
            far = gap > _width(first) + _width(second) and not equals
            worse: Verdict = "do not trust" if far else "caution"
            found.setdefault(second.method, []).append(_contradicted(second, first, gap, worse))
            if equals:
                found.setdefault(first.method, []).append(_contradicted(first, second, gap, "caution"))
    return {
        method: replace(row, diagnostics=(*row.diagnostics, *found.get(method, ()))) for method, row in rows.items()
    }


def _contradicted(mine: Estimate, other: Estimate, gap: float, verdict: Verdict) -> Diagnostic:
    sentence = f"{mine.method} says {_said(mine)} and {other.method} says {_said(other)}: one of them is wrong."
    return Diagnostic("agreement", gap, verdict, sentence)


def _said(row: Estimate) -> str:
    assert row.interval is not None
    return f"{row.value:.3g} ({row.interval.low:.3g} to {row.interval.high:.3g})"


def _gap(one: Estimate, other: Estimate) -> float:
    """How far the intervals are apart; below 0 where they overlap."""
    assert one.interval is not None
    assert other.interval is not None
    return max(one.interval.low - other.interval.high, other.interval.low - one.interval.high)


def _width(row: Estimate) -> float:
    return 0.0 if row.interval is None else row.interval.width
