"""`coulda report RUN`: the page of a run, one HTML file to look at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from coulda.report import load_report, write_report


@dataclass(frozen=True)
class MakeReport:
    """Make one self-contained HTML page of a run: verdicts, table, figures and the counterfactual explorer."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder in which a command left its report, such as that of `coulda evaluate --out`."""
    output: Path | None = None
    """Where the page goes; RUN/index.html by default."""

    def run(self) -> None:
        """Write the page and print its path."""
        path = self.run_folder / "index.html" if self.output is None else self.output
        write_report(path, load_report(self.run_folder))
        print(path)


COMMANDS = MakeReport
