"""Numbers of docs/promises.md, from results/faults/*.json: the rows of its tables, by what they are about."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def rows(results: Path = ROOT / "results" / "faults") -> list[str]:
    """What the page must say, cell by cell, of each study."""
    told: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    fuzz, training = told["fuzz"], told["training"]
    counts = fuzz["outcomes"]
    refused, same = counts.pop("refused"), counts.pop("accepted as it is")
    bad = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "no crash, no hang, no misreading"
    damaged = told["corruption"]["outcomes"]
    requests = lambda name: f"{told[name]['kills']}, {told[name]['requests']} requests"
    return [
        f"| {fuzz['trials']:,} | {refused:,} refused, {same:,} read as what they say; {bad} |",
        f"| {told['corruption']['trials']:,} | {', '.join(f'{count:,} {name}' for name, count in damaged.items())} |",
        f"| {training['kills']}, of which {training['inside writes']} inside the write of a checkpoint | the bits",
        f"| {told['crashes']['kills']} | the bytes",
        f"| {requests('actors')} | none lost",
        f"| {requests('nodes')} | none lost",
        f"| {told['learner']['kills']} | the bits",
    ]
