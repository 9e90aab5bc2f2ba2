"""Arguments that cannot be meant: each a sentence and exit code 2, before any work."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from gymnasium import spaces

from coulda.cli import main
from coulda.cli.evaluate import table
from coulda.cli.showing import Screen
from coulda.episodes import collect, write_log
from coulda.episodes.log import Schema
from coulda.episodes.validation import checked_log
from coulda.evaluation import ImportanceSampling, compare
from tests.triage import BEHAVIOR, TARGET, triage

TABLE = "episode,step,observation,action,reward\n0,0,0,0,1.0\n0,1,1,1,0.0\n"
TRAIN = ["train", "--world", "tiger", "--preset", "smoke"]
MISTAKES = {
    "no batch": ([*TRAIN, "--batch", "0"], "--batch is 0; it must be at least 1"),
    "a negative batch": ([*TRAIN, "--batch", "-1"], "--batch is -1; it must be at least 1"),
    "a rate that is no number": ([*TRAIN, "--learning-rate", "nan"], "--learning-rate is nan; it must be a finite"),
    "the opposite of what is learned": (
        ["train-policy", "--sharpness", "-1"],
        "--sharpness is -1.0; it must be above",
    ),
    "no rate": ([*TRAIN, "--learning-rate", "0"], "--learning-rate is 0.0; it must be above 0"),
    "a huge seed": ([*TRAIN, "--seed", "99999999999999999999"], "it must be from 0 to 4294967295"),
    "a seed that would be 0": ([*TRAIN, "--seed", str(2**32)], "it must be from 0 to 4294967295"),
    "nothing measured": ([*TRAIN, "--evaluation-episodes", "0"], "--evaluation-episodes is 0; it must be at least 1"),
    "a command as world": (["train", "--world", "coulda.cli:main"], "'coulda.cli:main' returns nothing"),
    "a class as world": (["train", "--world", "pathlib:Path"], "is a PosixPath, not a World"),
    "a missing name": (["train", "--world", "coulda.cli:nothing"], "coulda.cli has no 'nothing'"),
    "a missing module": (["train", "--world", "no_such:world"], "there is no module 'no_such'"),
    "a missing file": (["train", "--world", "no_such.py:world"], "there is no file no_such.py"),
    "no level": (["evaluate", "LOG", "--policy", "uniform", "--level", "0"], "level is 0.0; it must lie between"),
    "a level of 1": (["evaluate", "LOG", "--policy", "uniform", "--level", "1"], "level is 1.0; it must lie between"),
    "steps below 0": (
        ["evaluate", "LOG", "--policy", "uniform", "--steps", "-3"],
        "--steps is -3; it must be at least",
    ),
    "no scenarios": (["evaluate", "LOG", "--policy", "uniform", "--num-scenarios", "0"], "--num-scenarios is 0"),
    "a discount of NaN": (["evaluate", "LOG", "--policy", "uniform", "--discount", "nan"], "--discount is nan"),
    "a policy as model": (["search", "--model", "MINE:policy", "--policy", "MINE:policy"], "it is no POMDP"),
    "a model as policy": (["search", "--model", "MINE:model", "--policy", "MINE:model"], "MINE:model|policy"),
    "no updates": (["search", "--updates", "0"], "--updates is 0; it must be at least 1"),
    "no episodes": (["calibrate", "--model", "MINE:model", "--episodes", "0"], "--episodes is 0"),
    "a negative seed": (["train-policy", "--seed", "-1"], "--seed is -1"),
    "no levels": (["train-scenarios", "--levels", "0"], "--levels is 0"),
    "one fold": (["fit", "LOG", "--out", "OUT", "--reparameterization", "gumbel_max", "--folds", "0"], "--folds is 0"),
    "no simulations": (["train-hindsight", "--model", "m", "--out", "OUT", "--simulations", "0"], "--simulations is 0"),
    "no level to render": (["sokoban", "render", "LOG", "OUT", "--index", "-1"], "--index is -1"),
}
MINE = """
from coulda.environments import tiger

def policy(observations):
    return observations

def model():
    return tiger(horizon=2, reparameterization="gumbel_max")
"""


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_a_sentence(arguments, message, tmp_path: Path, capsys):
    (tmp_path / "log.csv").write_text(TABLE)
    (tmp_path / "mine.py").write_text(MINE)
    names = {"LOG": tmp_path / "log.csv", "OUT": tmp_path / "out", "MINE": tmp_path / "mine.py"}
    for name, path in names.items():
        arguments = [one.replace(name, str(path)) for one in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    told = capsys.readouterr().err.replace("\n", " ")
    assert stopped.value.code == 2, told
    assert "Traceback" not in told

    assert re.search(message.replace("MINE", ""), told), told


HOSTILE = ("[/bold]", "\x1b[31mred", "[link=file:///etc]x", "a\x9b2Jb", "constructor")


def test_names_of_others_are_only_shown(tmp_path: Path, capsys):
    """In a log's own notes and labels, and in what is said of a wrong path."""
    schema = Schema(spaces.Discrete(3), spaces.Discrete(5), action_names=HOSTILE, notes=HOSTILE)
    steps = np.zeros(2, int)
    write_log(
        tmp_path / "log", checked_log(schema, np.zeros(3, int), steps, steps.astype(float), [2], np.array([True]))
    )
    main(["episodes", "info", str(tmp_path / "log")])
    main(["episodes", "validate", str(tmp_path / "log")])
    for name in HOSTILE:
        with pytest.raises(SystemExit):
            main(["episodes", "info", name])
    told = capsys.readouterr()
    for text in (told.out, told.err):
        assert "[/bold]" in text
        assert "\x1b" not in text
        assert "\x9b" not in text


def test_policies_may_be_called_anything_in_the_table(capsys):
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 60)
    found = compare(jax.random.key(1), log, dict.fromkeys(HOSTILE, TARGET), [ImportanceSampling()])
    Screen(width=200).print(table(found))
    told = capsys.readouterr().out
    assert "[/bold]" in told
    assert "\x1b" not in told
    assert "\x9b" not in told
