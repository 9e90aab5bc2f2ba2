"""The command line as a user meets it: real processes."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from coulda.cli import COMMANDS, main
from coulda.experiments import alice


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "coulda", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def test_help_names_every_command():
    result = run("--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in COMMANDS)


def test_version():
    assert run("--version").stdout.startswith("coulda 0.")


def test_an_unknown_command_says_what_there_is():
    result = run("nonsense")
    assert result.returncode == 2
    assert "there is no command 'nonsense'" in result.stderr
    assert "demo" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"coulda {name}" in capsys.readouterr().out


@pytest.mark.slow
def test_demo_tells_the_whole_story(tmp_path):
    result = run("demo", "--smoke", "--no-progress", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "MB-PS: solves" in result.stdout
    page = (tmp_path / "index.html").read_text()
    assert "CF-PE(25)" in page
    again = run("demo", "--smoke", "--no-progress", "--out", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "index.html").read_text() == page  # finished stages are reused, to the same bytes


def test_demo_into_a_file_is_a_clear_mistake(tmp_path):
    (tmp_path / "taken").write_text("")
    result = run("demo", "--out", str(tmp_path / "taken"))
    assert result.returncode == 2
    assert "taken" in result.stderr
    assert "Traceback" not in result.stderr


def test_alices_answer_is_the_closed_form():
    """Two conjugate Gaussians: E[Q_2 | friend] + E[U_outcome | feeling, outcome]; 5 standard errors, 6·10⁻⁷."""
    story, _ = alice.ask(jax.random.key(1))
    second = 0.8 / (1 + 0.6**2)
    precision = 1 + 1 / 0.5**2 + 1 / 0.3**2
    first = (-1.0 / 0.5**2 + (-0.3 - 1.0) / 0.3**2) / precision
    luck = (-0.3 - 1.0) - first
    assert abs(story.counterfactual - (second + luck)) < 5 * story.standard_error
    assert abs(story.counterfactual - second) > 5 * story.standard_error  # the twin: fresh luck instead of hers
    np.testing.assert_allclose(story.before, 0.0, atol=0.05)
