"""Every command of README and the documentation is understood, and runs where its page says that it does.

A page is run from top to bottom in an empty folder: its Python in one interpreter, its commands in a shell. A block of
Python whose first line is a comment such as `# my.py` is also that file.
"""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from coulda.cli import COMMANDS, parse
from tests.conftest import ROOT
from tests.test_docs import NEEDS, PAGES, blocks, write_files

MORE = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]

ELSEWHERE = {
    "make ": "what CI, and people, call",
    "pip install": "make release",
    "ray ": "tests/programs/cluster.py",
    "--address": "needs a cluster: tests/programs/cluster.py",
    "python -m coulda.studies": "hours; what each wrote is in results/",
    "coulda reproduce": "minutes to days: tests/test_experiments_*.py with the smallest preset",
    "coulda sokoban play": "needs a terminal: tests/test_sokoban_gym.py",
    "--from-step 400": "after 400 updates: tests/test_training_cli.py",
}
"""Commands that are not run here, and why."""

TINY = "--batch 2 --levels 64 --evaluate-every 1 --evaluation-episodes 2 --no-progress"
SHORTER = {
    "coulda search": "--updates 2 --episodes 8 --no-progress",
    "coulda train --world tiger": "--batch 8 --no-progress",
    "coulda train --world 8x8": f"--updates 1 {TINY}",
    "coulda train-policy": f"--updates 1 --cloning-updates 1 {TINY}",
    "coulda train-scenarios": f"--updates 1 {TINY}",
    "coulda train-hindsight": "--simulations 200 --passes 2 --width 8 --components 2",
    "coulda calibrate": "--episodes 20 --draws 15",
}
"""What makes a command small. A page says what is worth doing; here it is only to work."""

READERS = """
import numpy as np

from coulda.environments import tiger
from coulda.policies import TabularPolicy, UniformPolicy, load_parameters

probabilities = np.array([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]], np.float32)
model, policy = tiger(horizon=3, reparameterization="gumbel_max"), TabularPolicy(probabilities)


def ppo(observations):
    return probabilities[observations]  # stands for a network of another framework


def found():
    return load_parameters("found/policy", policy)


if __name__ == "__main__":
    import jax

    from coulda.episodes import collect, write_any

    for name in ("logs", "log", "log.csv"):
        write_any(name, collect(jax.random.key(0), model, UniformPolicy(3), 100))
"""
"""`my.py` of pages that speak of the reader's own."""


def commands(page: Path) -> list[str]:
    """The lines after `$` in blocks of the console, without comments."""
    consoles = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S)
    lines = [line for console in consoles for line in console.splitlines()]
    return [re.sub(r"\s+# .*", "", line[2:]) for line in lines if line.startswith("$ ")]


def inline(page: Path) -> list[str]:
    """Commands within sentences, as far as they are whole."""
    found = re.findall(r"`(coulda [^`]*)`", page.read_text())
    return [" ".join(line.split()) for line in found if not re.search(r"[…|]|COMMAND", line)]


WITH_COMMANDS = [page for page in PAGES if "_build" not in page.parts and commands(page)]


def is_run(command: str) -> bool:
    return not any(words in command for words in ELSEWHERE)


def small(command: str) -> str:
    return next((f"{command} {more}" for words, more in SHORTER.items() if command.startswith(words)), command)


def misunderstood(line: str, capsys) -> str:
    """What the command line says of unknown names, options and values; a sentence may leave out what is required."""
    name, *arguments = shlex.split(line)[1:]
    if name not in COMMANDS:
        return "" if name.startswith("--") else f"there is no command {name}"
    try:
        parse(import_module(f"coulda.cli.{name.replace('-', '_')}").COMMANDS, f"coulda {name}", arguments)
    except SystemExit as error:
        told = capsys.readouterr().err
        return told if error.code and re.search("unrecognized|invalid", told, re.I) else ""
    return ""


def test_every_command_is_understood(capsys):
    lines = {
        line for page in [*PAGES, *MORE] for line in [*commands(page), *inline(page)] if line.startswith("coulda ")
    }
    assert {line: told for line in sorted(lines) if (told := misunderstood(line, capsys))} == {}
    for wrong in ("coulda evaluat log", "coulda report run --pages 2", "coulda calibrate --episodes many --model m"):
        assert misunderstood(wrong, capsys)


def test_what_is_not_run_here_is_still_there():
    lines = [line for page in WITH_COMMANDS for line in commands(page)]
    for words in [*ELSEWHERE, *SHORTER]:
        assert any(words in line for line in lines), f"'{words}' is in no page any more"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in WITH_COMMANDS if any(map(is_run, commands(page)))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_run(page, tmp_path):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    if not write_files(page, tmp_path):
        (tmp_path / "my.py").write_text(READERS)
        run([sys.executable, "my.py"], tmp_path)
    else:
        run([sys.executable, "-c", blocks(page)], tmp_path)
    for command in filter(is_run, commands(page)):
        run(["bash", "-c", small(command)], tmp_path)


def run(command: list[str], folder: Path) -> None:
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # As readers have it: without our strict mode, and with their own cache of programs.
    environment = {**os.environ, "PATH": tools, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
