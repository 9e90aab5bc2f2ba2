"""From a `Comparison` to the table, the verdicts and the sentences of a report."""

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from coulda.evaluation import Comparison, Difference, Estimate
from coulda.evaluation.estimate import VERDICTS, Verdict, assumptions, finite, plain, worst
from coulda.evaluation.shown import listed
from coulda.fitting import Fitted
from coulda.report.contents import Finding, MethodVerdict, ModelVerdict, Paired, Provenance, Quantity, Row, Table


def tabulate(comparison: Comparison) -> Table:
    """The table of a report."""
    rows = tuple(_row(name, estimate, comparison) for name, estimate in comparison.rows())
    returns = comparison.logged_returns
    return Table(
        rows=rows,
        verdicts=_verdicts(rows),
        num_episodes=len(returns),
        logged_mean=float(returns.mean()),
        truth=dict(comparison.truth),
        of=str(comparison.asked),
        differences=tuple(map(_paired, comparison.differences())),
    )


def summarize(table: Table) -> tuple[str, ...]:
    """The headline, and what the most precise of the trusted methods says of each policy."""
    parts = []
    for verdict, start in zip(VERDICTS, ("trust", "be careful with", "do not trust"), strict=True):
        methods = [found.method for found in table.verdicts if found.verdict == verdict]
        parts += [f"{start} {listed(methods)}"] if methods else []
    headline = "; ".join(parts)
    how = table.of.removeprefix("return")  # such as ", discounted by 0.9 a step"
    logged = f"The log's {table.num_episodes:,} episodes returned {table.logged_mean:.3g} on average{how}."
    return (headline[:1].upper() + headline[1:] + ".", logged, *_answers(table))


def describe(fitted: Fitted) -> ModelVerdict:
    """The page of a fitted model: what was found in the log, and what speaks for and against it."""
    findings = (Finding(d.name, finite(d.value), d.verdict, d.sentence) for d in fitted.verdict)
    return ModelVerdict(fitted.trusted, fitted.summary, tuple(findings))


def provenance(
    seeds: Mapping[str, int], config: Mapping[str, Any], digests: Mapping[str, str] | None = None
) -> Provenance:
    """Seeds, configuration and digests, with the versions of what computed."""
    packages = ("coulda", "jax", "equinox", "numpy")
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    return Provenance(dict(seeds), dict(config), versions, dict(digests or {}))


def _row(policy: str, estimate: Estimate, comparison: Comparison) -> Row:
    found = plain(estimate)
    return Row(
        policy=policy,
        findings=tuple(Finding(**finding) for finding in found["diagnostics"]),
        effective_sample_size=found["effective sample size"],
        error=comparison.error(policy, estimate.method),
        distribution=tuple(
            Quantity(name, one["value"], one["low"], one["high"], one["verdict"])
            for name, one in found["distribution"].items()
        ),
        **{name: found[name] for name in ("method", "value", "low", "high", "level", "verdict", "reasons")},
    )


def _paired(one: Difference) -> Paired:
    found = one.plain()
    return Paired(
        sentence=one.sentence, **{name: found[name] for name in Paired.__struct_fields__ if name != "sentence"}
    )


def _verdicts(rows: tuple[Row, ...]) -> tuple[MethodVerdict, ...]:
    """The worst verdict of each method with its reasons, most trusted methods first."""
    found = []
    for method in dict.fromkeys(row.method for row in rows):
        of_method = [row for row in rows if row.method == method]
        verdict = worst(row.verdict for row in of_method)
        found.append(MethodVerdict(method, verdict, _why(of_method, verdict)))
    return tuple(sorted(found, key=lambda v: VERDICTS.index(v.verdict)))


def _why(rows: list[Row], verdict: Verdict) -> str:
    """The reasons, with the policies that each is about where it is not about all."""
    policies: dict[str, list[str]] = {}
    for row in rows:
        if row.verdict == verdict:
            policies.setdefault(row.reasons, []).append(row.policy)
    if len(policies) == 1 and len(rows) == len(next(iter(policies.values()))):
        return next(iter(policies))
    return " ".join(f"{listed(names)}: {reasons}" for reasons, names in policies.items())


def _answers(table: Table) -> list[str]:
    """A sentence for each policy that some trusted method knows the value of."""
    sentences = []
    for policy in dict.fromkeys(row.policy for row in table.rows):
        trusted = [row for row in table.rows if row.policy == policy and row.verdict == "trust"]
        # What was run in the environment is no answer from the log; the table shows it as the truth.
        known = [row for row in trusted if _width(row) < math.inf and row.method != "on-policy"]
        if known:
            # What rests on fewer assumptions first, and among those the most precise.
            best = min(known, key=lambda row: (assumptions(row.method), _width(row)))
            limits = f"{best.low:.3g} to {best.high:.3g}"
            sentences.append(f"By {best.method}, {policy} would have returned {best.value:.3g} ({limits}).")
        sentences += _beyond_the_mean(policy, known)
        disagreeing = [f for row in table.rows if row.policy == policy for f in row.findings if f.name == "agreement"]
        sentences += list(dict.fromkeys(f"{policy}: {finding.sentence}" for finding in disagreeing))[:1]
    return sentences


def _beyond_the_mean(policy: str, known: list[Row]) -> list[str]:
    """What is trusted of the distribution of returns, by the first method that tells."""
    told = [row for row in known if row.distribution]
    if not told:
        return []
    best = min(told, key=lambda row: (assumptions(row.method), _width(row)))
    parts = [f"{one.name} {one.value:.3g}{_between(one)}" for one in best.distribution if one.verdict == "trust"]
    return [f"By {best.method}, of the returns of {policy}: {', '.join(parts)}."] if parts else []


def _between(one: Quantity) -> str:
    return "" if one.low is None or one.high is None else f" ({one.low:.3g} to {one.high:.3g})"


def _width(row: Row) -> float:
    return math.inf if row.value is None or row.low is None or row.high is None else row.high - row.low
