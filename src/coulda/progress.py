"""A bar on the screen for work that can be counted: how much is done, and how long the rest will take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coulda.extras import require
from coulda.notebooks import Html, element, in_notebook

__all__ = ["Advance", "bar", "followed", "notebook_bar"]

Advance = Callable[[int], None]
"""Tells that so many more are done."""
OFTEN = 0.2
"""Seconds between two pictures in a notebook, each of which is a message to its front end."""


@contextmanager
def bar(what: str, total: int | None, show: bool = True) -> Iterator[Advance]:
    """Counts to `total`, where it is known, and is gone when the work is done.

    It is drawn in a notebook and on a terminal (standard error), and nowhere else.
    """
    if show and in_notebook():
        with notebook_bar(what, total) as tell:
            done = 0

            def advance(count: int) -> None:
                nonlocal done
                done += count
                tell(done, "")

            yield advance
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def followed(advance: Advance | None, what: str, total: int | None) -> Iterator[Advance]:
    """Whom to tell of work that may be followed: `advance`, or a bar where there is none and a notebook looks on."""
    if advance is not None:
        yield advance
        return
    with bar(what, total, show=in_notebook()) as shown:
        yield shown


@contextmanager
def notebook_bar(what: str, total: int | None) -> Iterator[Callable[[int, str], None]]:
    """A bar in a cell's output, told how many are done and what else there is to say; gone when the work is done."""
    display = require("IPython.display", extra="all")
    handle = display.display(display.HTML(drawn(what, 0, total, 0.0)), display_id=True)
    start = shown = time.monotonic()

    def tell(done: int, also: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > OFTEN:
            shown = now
            handle.update(display.HTML(drawn(what, done, total, now - start, also)))

    try:
        yield tell
    finally:
        handle.update(display.HTML(""))


def drawn(what: str, done: int, total: int | None, seconds: float, also: str = "") -> Html:
    """The bar as HTML.

    >>> drawn("episodes", 1, 4, 2.0)
    '<div>episodes <progress value="1" max="4"></progress> 1/4, 6 s left</div>'
    """
    if total is None:
        return element("div", f"{what} ", element("progress"), f" {also}".rstrip())
    left = f", {seconds * (total - done) / done:.0f} s left" if done else ""
    return element(
        "div", f"{what} ", element("progress", value=done, max=total), f" {done:,}/{total:,}{left} {also}".rstrip()
    )
