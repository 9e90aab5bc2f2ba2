"""A bar on the screen for work that can be counted: how much is done, and how long the rest will take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Advance", "bar"]

Advance = Callable[[int], None]
"""Tells that so many more are done."""


@contextmanager
def bar(what: str, total: int | None, show: bool = True) -> Iterator[Advance]:
    """Counts to `total`, where it is known, and is gone when the work is done.

    Nothing is drawn where standard error is no terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
