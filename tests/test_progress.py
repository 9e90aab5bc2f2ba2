"""The bar on the screen, on a real terminal and where there is none."""

import os
import pty
import subprocess
import sys

PROGRAM = """
import time
from coulda.progress import bar
with bar("episodes", 3) as advance:
    for _ in range(3):
        advance(1)
        time.sleep(0.3)
"""


def test_a_terminal_shows_how_much_is_done():
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stderr=theirs, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait() == 0
    assert b"episodes" in shown
    assert b"2/3" in shown


def test_elsewhere_nothing_is_drawn():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
