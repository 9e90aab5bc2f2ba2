"""`--preset`: how large. What is not given on the command line is what the preset has."""

from dataclasses import dataclass
from typing import Literal, get_args

import tyro

from coulda.errors import CouldaError

PresetName = Literal["smoke", "quick", "desktop", "paper"]


@dataclass(frozen=True)
class _Named:
    world: str | None = None
    preset: str | None = None


def named(prog: str, arguments: list[str]) -> dict[str, str]:
    """The world and the preset that the arguments name, those of them that they do."""
    found, _ = tyro.cli(_Named, prog=prog, args=arguments, return_unknown_args=True, add_help=False)
    if found.preset not in (None, *get_args(PresetName)):
        known = ", ".join(get_args(PresetName))
        raise CouldaError(f"there is no preset '{found.preset}'; the presets are {known}.")
    return {name: value for name, value in vars(found).items() if value is not None}
