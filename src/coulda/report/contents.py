"""What a report holds: plain values that become JSON and back, and know nothing of how they are shown."""

from typing import Any

import msgspec

from coulda.evaluation.estimate import Verdict


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything in a report."""


class Finding(Contents, frozen=True):
    """One diagnostic of an estimate."""

    name: str
    value: float | None
    """None where it is not finite."""
    verdict: Verdict
    sentence: str


class Quantity(Contents, frozen=True):
    """A quantile or CVaR of the return."""

    name: str
    """Such as "0.05 quantile"."""
    value: float
    low: float | None
    high: float | None
    verdict: Verdict


class Row(Contents, frozen=True):
    """One estimate of the table."""

    policy: str
    method: str
    value: float | None
    """None where the log cannot tell."""
    low: float | None
    """None where there is no interval, or no end to it."""
    high: float | None
    level: float | None
    """The level of the interval, such as 0.95."""
    effective_sample_size: float
    verdict: Verdict
    reasons: str
    findings: tuple[Finding, ...] = ()
    error: float | None = None
    """Relative to the truth, where that is known."""
    distribution: tuple[Quantity, ...] = ()
    """Quantiles and CVaRs, where they were asked for."""


class MethodVerdict(Contents, frozen=True):
    """Whether to believe a method, over all policies."""

    method: str
    verdict: Verdict
    why: str


class Paired(Contents, frozen=True):
    """How much better one policy is than another, on the same episodes."""

    first: str
    second: str
    method: str
    value: float
    """E[G] of the first minus that of the second."""
    low: float | None
    high: float | None
    level: float
    verdict: Verdict
    sentence: str


class Table(Contents, frozen=True):
    """Estimators by policies, and what they may be held against."""

    rows: tuple[Row, ...]
    verdicts: tuple[MethodVerdict, ...]
    num_episodes: int
    logged_mean: float
    """Mean return of the log."""
    truth: dict[str, float] = {}
    """E[G] of each policy, where it is known."""
    of: str = "return"
    """What the rows estimate the mean of."""
    differences: tuple[Paired, ...] = ()
    """Of every two policies, by one method each."""


class Figure(Contents, frozen=True):
    """A picture with its caption."""

    title: str
    caption: str
    svg: str
    """The text of an SVG file."""


class Tile(Contents, frozen=True):
    """What one category of a grid looks like."""

    name: str
    svg: str
    """SVG of a picture of 32 × 32, without a background: the floor shows through."""


class GridScene(Contents, frozen=True, tag="grid"):
    """States are grids of tiles."""

    height: int
    width: int
    tiles: tuple[Tile, ...]
    """The tiles by number, at most 64."""


class Channel(Contents, frozen=True):
    """A number that is followed over time."""

    name: str
    labels: tuple[str, ...] = ()
    """What the levels 0, 1, … are called; empty for a real number."""
    hidden: bool = False
    """Whether it is inferred only, never observed."""


class SeriesScene(Contents, frozen=True, tag="series"):
    """States are numbers over time."""

    channels: tuple[Channel, ...]


class TileFrames(Contents, frozen=True, tag="tiles"):
    """Grids over time, one character per tile: `A` is 0, `B` is 1, … as in base64url."""

    tiles: str
    """The tiles of all steps end to end, row by row."""
    agreement: str = ""
    """How many of the posterior draws have this tile here; empty for what was observed."""


class LineFrames(Contents, frozen=True, tag="lines"):
    """Channels over time, `[C][T + 1]`."""

    values: tuple[tuple[float | None, ...], ...]
    """None where nothing was observed."""
    low: tuple[tuple[float | None, ...], ...] = ()
    """The lower limit of nine in ten posterior draws; empty for what was observed."""
    high: tuple[tuple[float | None, ...], ...] = ()


Frames = TileFrames | LineFrames


class Play(Contents, frozen=True):
    """One episode as it went or would have gone: T steps and T + 1 frames, up to its end."""

    frames: Frames
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    returns: tuple[float, ...]
    """G on each posterior draw; the first is the one shown."""


class ChangedStep(Contents, frozen=True):
    """One decision that would have been different."""

    step: int
    did: str
    instead: str


class CreditStrip(Contents, frozen=True):
    """What each of the T decisions was worth against the policy's own, everything else done as it was."""

    effect: tuple[float, ...]
    """Below 0 it should have been otherwise."""
    low: tuple[float, ...]
    """The ends of its interval over scenarios; the effect itself where nothing was drawn."""
    high: tuple[float, ...]


class Explained(Contents, frozen=True):
    """What at most 0, 1, … k other decisions would have made of an episode."""

    plays: tuple[Play, ...]
    """The likeliest course for each number of changes, the first as it was."""
    changes: tuple[tuple[ChangedStep, ...], ...]
    values: tuple[float, ...]
    """The expected return with each number of changes."""
    guaranteed: tuple[float, ...]
    """What can be had whatever the mechanism; empty where that is not known."""
    sentence: str
    verdict: Verdict
    reasons: str
    credit: CreditStrip | None = None
    """The case of one change, step by step; None where no policy was asked."""


class ExploredEpisode(Contents, frozen=True):
    """A logged episode, and what would have become of it."""

    number: int
    """The number of the episode in the log."""
    observed: Frames
    factual: Play
    """Logged actions and rewards; frames are those of the inferred scenario, and `returns` what it pays for them."""
    counterfactual: tuple[Play, ...]
    """One play per policy, in the order of `Explorer.policies`, on the same scenario."""
    explained: Explained | None = None


class Explorer(Contents, frozen=True):
    """Logged episodes with inferred scenarios, and each policy on them."""

    scene: GridScene | SeriesScene
    policies: tuple[str, ...]
    num_samples: int
    """Posterior draws per episode."""
    threshold: float
    """An episode is won with this return or more."""
    episodes: tuple[ExploredEpisode, ...]
    changes: int = 0
    """The largest number of changes that every episode is explained with; 0 where none is."""


class Provenance(Contents, frozen=True):
    """What it takes to make the same numbers again."""

    seeds: dict[str, int] = {}
    config: dict[str, Any] = {}
    versions: dict[str, str] = {}
    digests: dict[str, str] = {}
    """SHA-256 of inputs, by name."""


class ModelVerdict(Contents, frozen=True):
    """What speaks for and against a model that was fitted to a log."""

    verdict: Verdict
    sentences: tuple[str, ...]
    """What was found in the log."""
    findings: tuple[Finding, ...]


class Report(Contents, frozen=True):
    """Everything on the page, in its order there; what is empty is left out."""

    title: str
    summary: tuple[str, ...] = ()
    """Sentences: the first is the headline."""
    table: Table | None = None
    explorer: Explorer | None = None
    figures: tuple[Figure, ...] = ()
    provenance: Provenance = Provenance()
    model: ModelVerdict | None = None
    """Of a model that was fitted; shown after the table."""
