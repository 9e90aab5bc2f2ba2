"""`python -m coulda`, and the command `coulda`."""

import os
import signal
import sys

# While importing, Ctrl-C ends it without a word: half-imported libraries cannot be taken down in order.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from coulda import cli  # noqa: E402

__all__ = ["main"]


def main() -> None:
    """Run `coulda` with the arguments of this process."""
    if sys.argv[1:2] and sys.argv[1] in cli.LEARNING:
        _large_pages()
    cli.main()


def _large_pages() -> None:
    """Begin once more, with memory in large pages: an update is given, and gives back, hundreds of megabytes."""
    if sys.platform == "linux" and not cli.LARGE_PAGES.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | cli.LARGE_PAGES)  # noqa: S606


if __name__ == "__main__":
    main()
