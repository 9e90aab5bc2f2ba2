"""`CouldaError`: the one class of error for what you can mend."""

__all__ = ["CouldaError"]


class CouldaError(ValueError):
    """Something that you can mend: the message says what was wrong, the value received, and the fix.

    The command line shows these in one line. Whatever else is raised is a defect of coulda's or of your own code, and
    shows its traceback.
    """
