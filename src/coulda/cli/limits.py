"""What numbers of the command line may be: looked at before any work, so that a slip costs nothing."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from coulda.errors import CouldaError

LEAST = {
    **dict.fromkeys(("seed", "steps", "from_step", "frozen", "episode", "index", "window", "order"), 0),
    **dict.fromkeys(("max_staleness", "cloning_updates", "changes"), 0),
}
"""Whole numbers that may be less than 1; all others count something of which there must be one."""
LARGEST_SEED = 2**32 - 1
"""What a key is made of is 32 bits long: a larger seed would be a smaller one in disguise."""
POSITIVE = ("learning_rate", "temperature", "time_constant", "sharpness")
SHARES = ("beta", "decay", "mask_probability", "entropy_weight")


def check_numbers(command: Any) -> None:
    """Refuse a number that cannot be meant, in a command or in what it is made of."""
    for name, value in _numbers(command):
        if (problem := _problem(name, value)) is not None:
            raise CouldaError(f"--{name.replace('_', '-')} is {value}; it must be {problem}")


def _problem(name: str, value: float) -> str | None:
    if isinstance(value, int):
        least = LEAST.get(name, 1)
        if name == "seed" and not 0 <= value <= LARGEST_SEED:
            return f"from 0 to {LARGEST_SEED}"
        return None if value >= least else f"at least {least}"
    if not math.isfinite(value):
        return "a finite number"
    if name in POSITIVE and value <= 0:
        return "above 0"
    return "from 0 to 1" if name in SHARES and not 0 <= value <= 1 else None


def _numbers(config: Any) -> Iterator[tuple[str, Any]]:
    """Every number of a tree of dataclasses, with the name of its field."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _numbers(value)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float) and not isinstance(one, bool):
                yield field.name, one
