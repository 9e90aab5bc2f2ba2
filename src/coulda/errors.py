"""`CouldaError`: the one class of error for what you can mend; and what of a traceback is yours."""

import sysconfig
import traceback
from pathlib import Path

__all__ = ["CouldaError", "own_frames"]


class CouldaError(ValueError):
    """Something that you can mend: the message says what was wrong, the value received, and the fix.

    The command line shows these in one line. Whatever else is raised is a defect of coulda's or of your own code, and
    shows its traceback.
    """


def own_frames(error: Exception) -> str:
    """The part of the traceback that is the user's: neither coulda's, nor a library's; nothing where there is none."""
    theirs = (Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")))
    outside = lambda name: not name.startswith("<") and not any(Path(name).is_relative_to(place) for place in theirs)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if outside(frame.filename)]
    wrong = isinstance(error, SyntaxError) and error.filename is not None and outside(error.filename)
    if not frames and not wrong:
        return ""
    return "".join(
        ["Traceback (your code):\n", *traceback.format_list(frames), *traceback.format_exception_only(error)]
    )
