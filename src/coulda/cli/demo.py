"""`coulda demo`: the whole story on PO-Sokoban, end to end."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.panel import Panel

from coulda.cli.showing import Screen
from coulda.experiments import story
from coulda.report.page import FOLDER
from coulda.storage import exclusive


@dataclass(frozen=True)
class Demo:
    """Log a random policy, infer its scenarios, evaluate other policies on them, search for a better one, and look.

    Some minutes on two cores. What is finished is kept and reused; Ctrl-C loses nothing.
    """

    out: Path = Path("report")
    """The folder where everything goes, OUT/index.html above all."""
    smoke: bool = False
    """Make everything so small that it takes seconds and means nothing."""
    progress: bool = True
    """Show how much of each stage is done, and how long the rest will take."""

    def run(self) -> None:
        """Tell the story, write the page."""
        console = Screen()
        with exclusive(self.out):  # before the work: a wrong path should cost nothing
            shutil.rmtree(self.out / FOLDER, ignore_errors=True)
            console.print(Panel(story.__doc__ or "", title="Woulda, coulda, shoulda"))
            page = story.tell(self.out, story.SMOKE if self.smoke else story.DEMO, console, self.progress)
        console.print(f"\nLook at it: [bold]{page.resolve().as_uri()}[/]")


COMMANDS = Demo
