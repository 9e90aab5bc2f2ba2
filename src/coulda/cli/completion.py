"""`coulda --completion bash`: commands, their subcommands and options, for the shell to complete."""

import importlib
from typing import Any

import tyro

from coulda.cli import COMMANDS

__all__ = ["script"]


def script() -> str:
    """For bash, to be sourced; paths are completed where nothing else is."""
    cases = [f"    {name}) words='{' '.join(words(name))}' ;;" for name in COMMANDS]
    return "\n".join(
        (
            "_coulda() {",
            "  local words=''",
            "  case ${COMP_WORDS[1]} in",
            *cases,
            "  esac",
            f"  [ $COMP_CWORD -eq 1 ] && words='{' '.join(COMMANDS)} --help --version --completion'",
            '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
            "}",
            "complete -o default -F _coulda coulda",
        )
    )


def words(name: str) -> list[str]:
    """What may follow a command: its subcommands, and the options of all of them."""
    commands = importlib.import_module(f"coulda.cli.{name.replace('-', '_')}").COMMANDS
    if not isinstance(commands, dict):
        return options(commands)
    return list(dict.fromkeys([*commands, *(option for one in commands.values() for option in options(one))]))


def options(command: Any) -> list[str]:
    """As tyro reads them, those of nested settings included."""
    presets = {"default": command.of()} if hasattr(command, "of") else {}
    parser = tyro.extras.get_parser(command, **presets)
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
