"""`python -m coulda`, and the command `coulda`."""

import signal

# While importing, Ctrl-C ends it without a word: half-imported libraries cannot be taken down in order.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from coulda.cli import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
