"""Objects by name: `package.module:name`, or `file.py:name`. The one place where a user's own code is imported."""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from coulda.errors import CouldaError

__all__ = ["anywhere", "load", "named", "takes_nothing"]

Kind = TypeVar("Kind")


def named(name: str) -> Any:
    """The object called `package.module:name` or `file.py:name`.

    >>> named("math:pi")
    3.141592653589793
    >>> named("math:tau2")
    Traceback (most recent call last):
    coulda.errors.CouldaError: 'math:tau2': math has no 'tau2'
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise CouldaError(f"'{name}' names no object; write package.module:name or file.py:name")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(name, place)
    if not hasattr(module, attribute):
        raise CouldaError(f"'{name}': {place} has no '{attribute}'")
    return getattr(module, attribute)


def load(name: str, kind: type[Kind] | tuple[type[Kind], ...]) -> Kind:
    """The object of that name, or what the function of that name returns; it must be a `kind`, or one of several."""
    found: Any = named(name)
    kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    if not isinstance(found, kind) and callable(found):
        if not takes_nothing(found):
            raise CouldaError(f"'{name}' needs arguments, so that it is no {kinds}, nor a function that makes one")
        if _returns_nothing(found):
            raise CouldaError(f"'{name}' returns nothing, so that it makes no {kinds}; it was not called")
        found = found()
    if not isinstance(found, kind):
        raise CouldaError(f"'{name}' is a {type(found).__name__}, not a {kinds}")
    return found


def takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # built in, and does not say
        pass
    return True


def _returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether it says so: a program's `main` does, which would do who knows what."""
    if inspect.isclass(function):
        return False
    try:
        return inspect.signature(function).return_annotation in (None, "None")
    except ValueError:
        return False


def anywhere(name: str) -> str:
    """The same name such that it is found from any folder."""
    if name.endswith(".onnx"):
        return str(Path(name).resolve())
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).resolve()}:{attribute}" if place.endswith(".py") else name


def _from_package(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # What the module itself fails to import is its own matter.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise CouldaError(f"'{name}': there is no module '{error.name}'; a file is named file.py:name") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    path = path.resolve()
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    return _executed(path, path.stat().st_mtime_ns)


@functools.cache
def _executed(path: Path, changed: int) -> ModuleType:  # noqa: ARG001
    """The module of a file: one that is named twice is executed once, and again where it has changed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module, other = importlib.util.module_from_spec(spec), sys.modules.get(path.stem)
    # A file finds its neighbors, as when it is run; and dataclasses the module that they are defined in.
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        sys.modules.pop(path.stem, None)
        if other is not None:
            sys.modules[path.stem] = other
    return module
