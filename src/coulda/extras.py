"""Optional dependencies, imported only where they are used."""

import importlib
from types import ModuleType

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of coulda brings it.

    >>> require("json", extra="plots").__name__
    'json'
    >>> require("no_such_module", extra="plots")
    Traceback (most recent call last):
    ImportError: this needs 'no_such_module', which is not installed; pip install 'coulda[plots]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing dependency *of* the module is a broken installation: let that message through.
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        fix = f"pip install 'coulda[{extra}]'"
        raise ImportError(f"this needs '{module}', which is not installed; {fix}") from error
