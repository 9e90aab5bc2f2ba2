"""`coulda episodes info|validate|convert`: look at a log, check it, and change its format."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.table import Table

from coulda.cli.showing import Screen, plain
from coulda.episodes import Columns, EpisodeLog, StoredLog, fit_behavior, read_any, write_any
from coulda.episodes.facts import facts_of
from coulda.progress import bar

LogPath = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class Info:
    """Say what is in a log."""

    log: LogPath
    """A folder of ours or of Minari; a .parquet or .csv table, or a folder or a pattern of them ('logs/*.csv'); or the
    .npz of an MDPDataset."""
    columns: Columns = field(default_factory=Columns)
    """The names of a table's columns."""

    def run(self) -> None:
        """Print the summary."""
        log = read_any(self.log, self.columns)
        table = Table("", plain(str(self.log)), title="episodes")
        for name, value in facts_of(log.schema, _batches(log, "reading")).items():
            table.add_row(name, plain(value))
        Screen().print(table)


@dataclass(frozen=True)
class Validate:
    """Read every number of a log and check it; the first that is wrong is named."""

    log: LogPath
    """A log in any format."""
    columns: Columns = field(default_factory=Columns)
    """The names of a table's columns."""

    def run(self) -> None:
        """Raises what is wrong, or says that all is well."""
        log = read_any(self.log, self.columns)
        say(told(self.log, log))
        steps = sum(batch.num_steps for batch in _batches(log, "checking"))
        print(f"{self.log}: {len(log)} episodes, {steps} steps, all valid")


@dataclass(frozen=True)
class Convert:
    """Write a log in another format."""

    log: LogPath
    """A log in any format."""
    to: LogPath
    """Its name tells the format: .parquet, .csv, .npz (MDPDataset), a name such as random-v0 (Minari), else ours."""
    columns: Columns = field(default_factory=Columns)
    """The names of a table's columns."""
    fit_behavior: bool = False
    """Fit the behavior policy to the log, and write its probabilities, marked as fitted."""

    def run(self) -> None:
        """Convert, in batches where both formats allow it."""
        log = read_any(self.log, self.columns)
        if self.fit_behavior:
            log = fit_behavior(log.read() if isinstance(log, StoredLog) else log)
        write_any(self.to, log)
        say(told(self.log, log))
        print(f"{self.to}: {len(log)} episodes, {log.num_steps} steps")


def say(text: str) -> None:
    """A line as it is."""
    Screen(highlight=False, markup=False, soft_wrap=True).print(text)


def told(path: Path, log: EpisodeLog | StoredLog) -> str:
    """What was understood of a log, in one line: the first thing to look at."""
    known = "" if isinstance(log, StoredLog) else f"; {_probabilities(log)}"
    return f"{path.name}: {len(log):,} episodes, {log.num_steps:,} steps; {log.schema.sentence}{known}"


def _probabilities(log: EpisodeLog) -> str:
    share = 1 - float(np.isnan(log.log_prob).mean())
    if share in (0, 1):
        return f"{'' if share else 'no '}probabilities of actions"
    return f"probabilities of actions at {share:.1%} of the steps only, so that no weights can be made"


def _batches(log: EpisodeLog | StoredLog, what: str) -> Iterator[EpisodeLog]:
    """Batches under a progress bar that counts episodes and leaves nothing behind."""
    with bar(what, len(log)) as advance:
        for batch in log.batches():
            advance(len(batch))
            yield batch


COMMANDS = {"info": Info, "validate": Validate, "convert": Convert}
