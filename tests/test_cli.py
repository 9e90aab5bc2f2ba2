"""The command line as a user meets it: real processes."""

import io
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from coulda.cli import COMMANDS, COMPUTING, main
from coulda.cli.demo import Demo
from coulda.environments.sokoban import generate, solve
from coulda.environments.sokoban.game import KEYS, Game, environment_of, read_keys
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


def test_help_and_version_do_not_wait_for_jax():
    program = "import sys; from coulda.cli import main; main([sys.argv[1]]); assert 'jax' not in sys.modules"
    for argument in ("--help", "--version"):
        subprocess.run([sys.executable, "-c", program, argument], check=True, capture_output=True)


WITH_PAGES = "import os\nraise LookupError(os.environ.get('GLIBC_TUNABLES'))"


@pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux")
@pytest.mark.parametrize(
    ("command", "set_before", "found"),
    [
        (["train", "--world", "mine.py:world"], None, "glibc.malloc.hugetlb=1"),
        (["train", "--world", "mine.py:world"], "glibc.malloc.check=0", "glibc.malloc.check=0"),
        (["calibrate", "--model", "mine.py:model"], None, "None"),
    ],
)
def test_commands_that_learn_begin_with_large_pages(command, set_before, found, tmp_path):
    (tmp_path / "mine.py").write_text(WITH_PAGES)
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {"GLIBC_TUNABLES": set_before} if set_before else {}
    result = run(*command, cwd=tmp_path, env=environment)
    assert result.returncode == 2
    assert f"LookupError: {found}" in result.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def policy(:", "SyntaxError"),
        ("import no_such_neighbor", "No module named 'no_such_neighbor'"),
        ("def policy():\n    return {}['ward']", "KeyError: 'ward'"),
    ],
)
def test_a_mistake_in_ones_own_file_shows_ones_own_frames(tmp_path, capsys, text, told):
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "log.csv").write_text("episode,step,observation,action,reward\n0,0,0,0,1.0\n0,1,1,1,0.0\n")
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path / "log.csv"), "--policy", f"{tmp_path / 'mine.py'}:policy"])
    error = capsys.readouterr().err
    assert stop.value.code == 2, error
    assert told in error
    assert "mine.py" in error
    assert "coulda/" not in error.replace(str(tmp_path), "")
    assert "your own code" in error


def test_a_policy_is_no_model(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def policy(observations):\n    return observations")
    (tmp_path / "log.csv").write_text("episode,step,observation,action,reward\n0,0,0,0,1.0\n0,1,1,1,0.0\n")
    name = f"{tmp_path / 'mine.py'}:policy"
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path / "log.csv"), "--model", name, "--policy", name])
    assert stop.value.code == 2
    assert "needs arguments, so that it is no POMDP" in capsys.readouterr().err.replace("\n", " ")


def test_where_compiled_programs_are_kept_is_one_variable(tmp_path):
    program = (
        "import os, sys; from coulda.cli import _keep_programs; _keep_programs();"
        "print(os.environ.get('JAX_COMPILATION_CACHE_DIR'))"
    )
    kept = {}
    for place in ("off", str(tmp_path)):
        environment = {"PATH": "", "HOME": str(tmp_path), "COULDA_CACHE": place, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        kept[place] = done.stdout.strip()
    assert kept == {"off": "None", str(tmp_path): str(tmp_path)}


@pytest.mark.slow
def test_two_processes_share_what_they_compile_and_a_third_compiles_nothing(tmp_path):
    """At once, into one empty folder: the same table from both, and no program is compiled twice after them."""
    (tmp_path / "mine.py").write_text(
        "from coulda.policies import TabularPolicy\npolicy = TabularPolicy([[0.9, 0.1], [0.2, 0.8]])"
    )
    rows = [f"{i},{t},{(i + t) % 2},{i * t % 2},{i % 3},0.5" for i in range(60) for t in range(2)]
    (tmp_path / "log.csv").write_text("\n".join(["episode,step,observation,action,reward,probability", *rows]))
    command = ["evaluate", "log.csv", "--policy", "mine.py:policy", "--no-fit"]
    keep = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = keep | {"COULDA_CACHE": str(tmp_path / "cache"), "PYTHONPATH": ":".join(sys.path)}
    start = lambda: subprocess.Popen(
        [sys.executable, "-m", "coulda", *command], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    entries = lambda: sorted(path.name for path in (tmp_path / "cache").glob("*-cache"))
    told = [process.communicate()[0] for process in [start(), start()]]
    compiled = entries()
    third = start()
    told.append(third.communicate()[0])
    assert third.returncode == 0
    assert "WIS" in told[0]
    assert told[0] == told[1] == told[2]
    assert len(compiled) > 3
    assert entries() == compiled


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
    with pytest.raises(FileExistsError, match="taken"):  # which is shown as a sentence, as below
        Demo(out=tmp_path / "taken").run()


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


@pytest.mark.parametrize("name", COMPUTING)
def test_what_computes_is_a_command(name):
    assert name in COMMANDS


@pytest.mark.slow
def test_commands_that_compute_have_all_cores():
    program = """
import os, jax
from coulda.cli import main
try:
    main(["train", "--world", "nowhere"])
except SystemExit:
    assert jax.local_device_count() == len(os.sched_getaffinity(0)), jax.local_device_count()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert "there is no world 'nowhere'" in result.stderr


@pytest.mark.slow
def test_a_level_is_played_to_its_end():
    levels = generate(jax.random.key(0), 1, 7, 7, 1)
    found = solve(levels, 1)
    letters = {action: key for key, action in KEYS.items()}
    moves = [letters[action] for action in found.actions[0, : found.length[0]].tolist()]
    game = Game(environment_of(levels, 0.9, 3), levels, seed=0, masked=False)
    game.press("h")
    assert f"{len(moves)} moves to go" in game.screen().plain
    for key in moves:
        assert "solved!" not in game.screen().plain
        assert game.press(key)
    assert f"step {len(moves)}  score +11" in game.screen().plain
    assert "solved!" in game.screen().plain
    game.press("r")
    assert "step 0  score +0" in game.screen().plain
    assert not game.press("n")  # it was the last


def test_a_masked_view_shows_less():
    levels = generate(jax.random.key(0), 1, 7, 7, 1)
    game = Game(environment_of(levels, 1.0, 3), levels, seed=0, masked=False)
    full = game.screen().plain
    game.press("m")
    assert game.screen().plain.count("█") < full.count("█")


def test_arrows_are_letters():
    assert list(read_keys(io.StringIO("\x1b[A\x1b[Dw q"))) == ["w", "a", "w", " ", "q"]


@pytest.mark.slow
def test_the_doctor_finds_nothing(capsys):
    main(["doctor"])
    told = capsys.readouterr().out
    assert "methods agree with the truth" in told
    assert "[plots]" in told


def test_a_shell_completes_commands_and_options(tmp_path):
    script = tmp_path / "coulda.bash"
    script.write_text(run("--completion", "bash").stdout)
    ask = "source {0}; COMP_WORDS=(coulda {1}); COMP_CWORD={2}; _coulda; echo ${{COMPREPLY[*]}}"
    for words, place, found in (
        ("eva", 1, "evaluate"),
        ("evaluate --mod", 2, "--model"),
        ("episodes con", 2, "convert"),
        ("fit --columns.epi", 2, "--columns.episode"),
    ):
        shown = subprocess.run(["bash", "-c", ask.format(script, words, place)], capture_output=True, text=True)
        assert shown.stdout.split() == [found], shown.stderr
    assert "bash" in run("--completion", "fish").stderr
