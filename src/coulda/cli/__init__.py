"""The command line: arguments only.

A command is a frozen dataclass whose fields carry their help and whose `run` does the work. Its module is
imported only when the command is called, so that `coulda --help` is quick.
"""

import atexit
import gc
import importlib
import itertools
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from coulda.cli.limits import check_numbers
from coulda.errors import CouldaError, own_frames

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
    "export": "write a policy for use without JAX: NumPy or ONNX",
    "train": "train a policy by IMPALA, without a model",
    "train-policy": "train a policy for PO-Sokoban from the exact solver",
    "train-hindsight": "train a network to infer the scenarios of your own simulator, also of a black box",
    "train-scenarios": "train a scenario model of PO-Sokoban, which infers levels from histories",
    "reproduce": "every figure of the paper, from scratch",
    "sokoban": "play, generate, solve and draw PO-Sokoban levels",
    "doctor": "versions, devices, extras and a self-test, to paste into a bug report",
}
"""Commands, in the order of `--help`. `coulda.cli.<name>.COMMANDS` is a dataclass, or a dict of them by name."""

COMPUTING = tuple(name for name in COMMANDS if name not in ("report", "episodes", "export", "sokoban"))
"""Commands that compute, on all cores."""

LEARNING = ("search", "train", "train-policy", "train-hindsight", "train-scenarios", "reproduce")
"""Commands that take gradients for minutes and hours."""
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""How the GNU C library is told, before a process starts, to take memory in large pages."""

ON_LOGS = ("evaluate", "fit", "explain")
"""Commands whose one argument without a name is a log."""

MISTAKES = (CouldaError, OSError, ImportError)
"""What a user can mend: shown as one line, without a traceback."""

ANSWERING = frozenset({"evaluate", "calibrate", "explain"})
"""Those of them whose programs take longer to compile than to run."""
CACHE_SIZE = 2**31
"""Bytes of compiled programs that are kept; the least used go first."""


def main(arguments: list[str] | None = None) -> None:
    """Run `coulda ARGUMENTS`.

    Exits with 2 for a mistake, also in the user's own code, 130 for Ctrl-C and 143 for SIGTERM.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name in ("-V", "--version"):
        from importlib.metadata import version

        print(f"coulda {version('coulda')}")
    elif name == "--completion":
        _complete(rest)
    elif name not in COMMANDS:
        _fail(f"there is no command '{name}'; the commands are {', '.join(COMMANDS)}.")
    else:
        _run(name, rest)


def _complete(arguments: list[str]) -> None:
    from coulda.cli.completion import script

    if arguments != ["bash"]:
        _fail(f"--completion is given '{' '.join(arguments)}'; give bash, which zsh understands too with bashcompinit")
    print(script())


def _run(name: str, arguments: list[str]) -> None:
    try:
        if name in COMPUTING:
            _keep_programs()
            if name in ANSWERING:
                _compile_soon()
                # OpenBLAS's threads wait for their next product by spinning, a tenth of a first table: here they sleep.
                os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
            # Modules and traced programs are many small objects that live on: to look through all of them for garbage,
            # as often as Python does by itself, is a tenth of the time until a first answer.
            gc.set_threshold(200_000, 50, 100)
            # And once more when the process ends, which gives all of them back anyway.
            atexit.register(gc.freeze)
        commands = importlib.import_module(f"coulda.cli.{name.replace('-', '_')}").COMMANDS
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on we say it ourselves
        _check_one_log(name, arguments)
        command = parse(commands, f"coulda {name}", arguments)
        check_numbers(command)
        if name in COMPUTING:
            _compute(command)
        else:
            command.run()
    except KeyboardInterrupt as stop:
        # A training says itself how far it came, and which signal stopped it.
        print(str(stop) or "interrupted", file=sys.stderr)
        sys.exit(128 + getattr(stop, "number", signal.SIGINT))
    except Exception as error:
        if os.environ.get("COULDA_TRACEBACK"):
            raise
        if not isinstance(error, CouldaError) and (own := own_frames(error)):
            print(own, file=sys.stderr)
            _fail("this came from your own code, above; coulda called it.")
        if not isinstance(error, MISTAKES):
            raise
        _fail(str(error))


def _check_one_log(name: str, arguments: list[str]) -> None:
    """Refuse the many files that a shell makes of a pattern, by saying how a log in many files is named."""
    files = [Path(one) for one in itertools.takewhile(lambda one: not one.startswith("-"), arguments)]
    if name in ON_LOGS and len(files) > 1 and all(file.is_file() for file in files):
        folder, suffix = files[0].parent, files[0].suffix
        raise CouldaError(
            f"{len(files)} files are named, and a log is one: quote the pattern, '{folder / '*'}{suffix}', so that the "
            f"shell leaves it as it is, or name the folder, {folder}"
        )


def parse(commands: Any, prog: str, arguments: list[str]) -> Any:
    """The command with its options; those that are not given are its preset's, where it has presets (`of`)."""
    import tyro

    from coulda.cli.presets import named

    if isinstance(commands, dict):
        return tyro.extras.subcommand_cli_from_dict(commands, prog=prog, args=arguments)
    if not hasattr(commands, "of"):
        return tyro.cli(commands, prog=prog, args=arguments)
    return tyro.cli(commands, prog=prog, args=arguments, default=commands.of(**named(prog, arguments)))


def _keep_programs() -> None:
    """Keep compiled programs in the user's cache folder, so that a second command compiles nothing.

    `COULDA_CACHE=off` keeps none, `COULDA_CACHE=FOLDER` keeps them there. A folder that JAX has been given itself stays
    as it is: programs that others keep there without a limit of its size would be a warning each, once there is one.
    It is read when JAX is imported, and workers inherit it. With a limit, JAX locks the folder, so that processes may
    share it.
    """
    place = os.environ.get("COULDA_CACHE")
    if place == "off" or "jax" in sys.modules or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coulda" if place is None else Path(place)
    )
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(CACHE_SIZE))
    # By default only programs that take a second are kept; ours are many and small.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _compile_soon() -> None:
    """XLA's older way of emitting loops: it compiles in two thirds of the time, and small programs run as fast.

    Later versions have the newer way alone, and refuse the flag.
    """
    from importlib.metadata import version

    if "jax" not in sys.modules and version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] = f"--xla_cpu_use_fusion_emitters=false {os.environ.get('XLA_FLAGS', '')}"


def _compute(command: Any) -> None:
    from coulda.devices import use_all_cores
    from coulda.pomdp.batching import raised_as_they_are

    # A program that used JAX before it called `main` keeps the devices that it has.
    with suppress(CouldaError):
        use_all_cores()
    with raised_as_they_are():
        command.run()


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    return (
        "usage: coulda COMMAND …\n\n"
        "What would have happened, had we acted differently? Counterfactual evaluation and\n"
        "policy search on logged experience.\n\n"
        f"{commands}\n\n"
        "  --help             this page; `coulda COMMAND --help` for each command's\n"
        "  --version          the version\n"
        "  --completion bash  completion of commands and options, to be sourced\n\n"
        "COULDA_TRACEBACK=1 shows where an error came from. Compiled programs are kept in\n"
        "~/.cache/coulda; COULDA_CACHE=off keeps none, COULDA_CACHE=FOLDER keeps them there."
    )


def _fail(message: str) -> None:
    from rich.markup import escape

    from coulda.cli.showing import Screen

    Screen(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}")
    sys.exit(2)
