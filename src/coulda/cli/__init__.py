"""The command line: arguments only.

A command is a frozen dataclass whose fields carry their help and whose `run` does the work. Its module is
imported only when the command is called, so that `coulda --help` is quick.
"""

import importlib
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import tyro
from rich.console import Console

from coulda.cli.presets import named
from coulda.errors import CouldaError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "demo": "tell the whole story, end to end",
    "evaluate": "one table of what policies would have been worth on a log, and what to believe",
    "fit": "make a model of a log, with its hindsight and a verdict on both",
    "calibrate": "whether inferred scenarios are draws of the posterior, on episodes whose noise is known",
    "explain": "which decisions of a log mattered, and what others would have made of it",
    "report": "one page to look at, of a run: verdicts, table and the counterfactual explorer",
    "episodes": "look at a log of episodes, check it, convert it",
    "search": "find a policy on counterfactual trajectories",
    "train": "train a policy by IMPALA, without a model",
    "train-policy": "train a policy for PO-Sokoban from the exact solver",
    "train-scenarios": "train a scenario model of PO-Sokoban, which infers levels from histories",
    "reproduce": "every figure of the paper, from scratch",
    "sokoban": "play, generate, solve and draw PO-Sokoban levels",
}
"""Commands, in the order of `--help`. `coulda.cli.<name>.COMMANDS` is a dataclass, or a dict of them by name."""

COMPUTING = tuple(name for name in COMMANDS if name not in ("report", "episodes", "sokoban"))
"""Commands that compute, on all cores."""

MISTAKES = (CouldaError, OSError, ImportError)
"""What a user can mend: shown as one line, without a traceback."""


def main(arguments: list[str] | None = None) -> None:
    """Run `coulda ARGUMENTS`. Exits with 2 for a mistake and 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name in ("-V", "--version"):
        print(f"coulda {version('coulda')}")
    elif name not in COMMANDS:
        _fail(f"there is no command '{name}'; the commands are {', '.join(COMMANDS)}.")
    else:
        _run(name, rest)


def _run(name: str, arguments: list[str]) -> None:
    try:
        commands = importlib.import_module(f"coulda.cli.{name.replace('-', '_')}").COMMANDS
        command = parse(commands, f"coulda {name}", arguments)
        if name in COMPUTING:
            _use_all_cores()
        command.run()
    except MISTAKES as error:
        if os.environ.get("COULDA_TRACEBACK"):
            raise
        _fail(str(error))
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)


def parse(commands: Any, prog: str, arguments: list[str]) -> Any:
    """The command with its options; those that are not given are its preset's, where it has presets (`of`)."""
    if isinstance(commands, dict):
        return tyro.extras.subcommand_cli_from_dict(commands, prog=prog, args=arguments)
    if not hasattr(commands, "of"):
        return tyro.cli(commands, prog=prog, args=arguments)
    return tyro.cli(commands, prog=prog, args=arguments, default=commands.of(**named(prog, arguments)))


def _use_all_cores() -> None:
    from coulda.trainer import use_all_cores

    # A program that used JAX before it called `main` keeps the devices that it has.
    with suppress(CouldaError):
        use_all_cores()


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    return (
        "usage: coulda COMMAND …\n\n"
        "What would have happened, had we acted differently? Counterfactual evaluation and\n"
        "policy search on logged experience.\n\n"
        f"{commands}\n\n"
        "  --help      this page; `coulda COMMAND --help` for each command's\n"
        "  --version   the version\n\n"
        "COULDA_TRACEBACK=1 shows where an error came from."
    )


def _fail(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {_escape(message)}")
    sys.exit(2)


def _escape(message: str) -> str:
    return message.replace("[", r"\[")
