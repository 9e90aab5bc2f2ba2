"""Whether an environment is in the same state as before: what all of its parts hold, in a form that can be compared.

Objects are taken apart as `copy.deepcopy` does it, by `__reduce_ex__`, and compared number by number. Whether two parts
are one object, or equal, makes no difference. Nothing is written down, and nothing is ever made of it again.
"""

import copy
from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from coulda.environments.taping import layers

NO_STATE = np.random.Generator, gymnasium.Space, EnvSpec
"""What is not what an environment remembers."""
PLAIN = frozenset([type(None), bool, int, str, bytes, complex])
THEMSELVES = type, FunctionType, BuiltinFunctionType, ModuleType
"""What is the same only if it is the very same."""


class Memory:
    """What an environment and those that it wraps remember, told again and again.

    Tables that are as they were when they were last looked at are not gone through anew.
    """

    def __init__(self, env: gymnasium.Env):
        # Gymnasium's own checks note what they have looked at, which is no part of the state.
        checks = gymnasium.wrappers.PassiveEnvChecker
        self.layers = [vars(layer) for layer in layers(env) if not isinstance(layer, checks)]
        self.tables: dict[tuple[int, str], tuple[Any, Hashable]] = {}

    def now(self) -> Hashable | None:
        """All of it; None where that cannot be told."""
        try:
            return tuple(
                (name, self._part((i, name), part))
                for i, layer in enumerate(self.layers)
                for name, part in layer.items()
                if name != "env"
            )
        except Exception:  # of objects that cannot be taken apart, in as many ways
            return None

    def _part(self, place: tuple[int, str], value: Any) -> Hashable:
        if type(value) not in (dict, list):
            return contents(value)
        known, told = self.tables.get(place, (None, None))
        if type(known) is not type(value) or not _same(known, value):
            told = contents(value)
            self.tables.pop(place, None)
            if _is_plain(value):
                self.tables[place] = copy.deepcopy(value), told
        return told


def _same(known: Any, value: Any) -> bool:
    try:
        return bool(known == value)
    except ValueError:  # of arrays, which have come in since
        return False


def _is_plain(value: Any) -> bool:
    """Whether equality of such values says all."""
    if type(value) is dict:
        return all(_is_plain(name) and _is_plain(part) for name, part in value.items())
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in PLAIN or type(value) is float


def contents(value: Any, inside: tuple[int, ...] = ()) -> Hashable:
    """What a value holds, equal for values that hold the same.

    Args:
        value: anything.
        inside: which objects it is a part of; one that is part of itself is not entered again.
    """
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind is float:
        return value.hex()  # also of NaN, and of -0.0
    if isinstance(value, NO_STATE):
        return None
    if isinstance(value, THEMSELVES):
        return id(value)
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if id(value) in inside:
        return "inside", inside.index(id(value))
    inside, value = (*inside, id(value)), cast(Any, value)
    if kind is tuple or kind is list:
        return kind, *[contents(part, inside) for part in value]
    if kind is dict:
        return kind, *[(contents(name, inside), contents(part, inside)) for name, part in value.items()]
    if kind is set or kind is frozenset:
        return kind, frozenset(contents(part, inside) for part in value)
    return kind, contents(_parts(value), inside)


def _parts(value: Any) -> Any:
    """What an object is made of: how, of what, its attributes, and its elements."""
    made = value.__reduce_ex__(4)
    if isinstance(made, str):  # the name of something that there is once
        return made
    return [*made[:3], *[None if elements is None else list(elements) for elements in made[3:5]]]
