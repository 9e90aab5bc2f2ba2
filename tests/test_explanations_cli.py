"""`coulda explain`: what is printed and written is what `explain_log` finds, and mistakes are told before the work."""

import json
from pathlib import Path

import jax
import pytest
import tyro

from coulda.cli.explain import Explain
from coulda.environments import forest
from coulda.episodes import collect, write_any
from coulda.errors import CouldaError
from coulda.explanations import Question, explain_log
from coulda.hindsight import ObservedStates
from coulda.policies import UniformPolicy
from coulda.report import load_report
from tests.test_explanations_search import ACTIONS, bent

WORLD = """
from coulda.environments import forest

def model():
    return forest(horizon=5, reparameterization="gumbel_max")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wood")
    model = forest(horizon=5, reparameterization="gumbel_max")
    write_any(folder / "log", collect(jax.random.key(0), model, UniformPolicy(2), 40))
    (folder / "world.py").write_text(WORLD)
    return folder


def run(folder: Path, *arguments: str) -> None:
    tyro.cli(Explain, args=[str(folder / "log"), "--model", f"{folder / 'world.py'}:model", *arguments]).run()


def test_what_is_written_is_what_was_found(folder: Path, capsys):
    run(folder, "--changes", "2", "--target", "8", "--out", str(folder / "out"))
    printed = capsys.readouterr().out
    model = forest(horizon=5, reparameterization="gumbel_max")
    log = collect(jax.random.key(0), model, UniformPolicy(2), 40)
    expected = explain_log(jax.random.key(0), model, log, question=Question(2, target=8.0))
    written = json.loads((folder / "out" / "explanations.json").read_text())
    assert [row["value"] for row in written["curve"]] == pytest.approx([e.value for e in expected.curve], abs=1e-5)
    assert [row["episode"] for row in written["saved by one change"]] == [s.episode for s in expected.saved()]
    assert "With at most 2 other decisions" in printed
    assert (folder / "out" / "curve.png").stat().st_size > 1000
    report = load_report(folder / "out")
    assert report.explorer is not None
    assert report.explorer.changes == 2
    assert len(report.explorer.episodes) == 40
    assert report.table is not None
    # The verdict is that of CF-PE in the report's own table.
    assert written["episodes"][0]["verdict"] == report.table.rows[-1].verdict
    with pytest.raises(FileExistsError, match="holds a report already"):
        run(folder, "--out", str(folder / "out"))


@pytest.mark.slow
def test_one_episode(folder: Path, capsys):
    run(folder, "--episode", "3", "--changes", "1", "--discount", "0.5", "--out", str(folder / "one"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "The return was" in printed
    assert "The mean return, discounted by 0.5 a step, would have been" in printed
    assert "-inf" not in printed  # one episode has no interval
    written = json.loads((folder / "one" / "explanations.json").read_text())
    assert [episode["episode"] for episode in written["episodes"]] == [3]
    log = collect(jax.random.key(0), forest(horizon=5, reparameterization="gumbel_max"), UniformPolicy(2), 40)
    assert written["episodes"][0]["logged"] == pytest.approx(log.discounted_returns(0.5)[3])


@pytest.mark.slow
def test_continuous_actions_to_try(tmp_path: Path, capsys):
    model, log = bent()
    write_any(tmp_path / "log", log)
    (tmp_path / "bent.py").write_text("from tests.test_explanations_search import Bent as model\n")
    command = [str(tmp_path / "log"), "--model", f"{tmp_path / 'bent.py'}:model", "--out", str(tmp_path / "out")]
    with pytest.raises(CouldaError, match="say with actions= which of them to try"):
        tyro.cli(Explain, args=command).run()
    tyro.cli(Explain, args=[*command, "--actions", "-1", "0", "1"]).run()
    assert "Caution" in capsys.readouterr().out  # nobody to hold the model against the log by
    written = json.loads((tmp_path / "out" / "explanations.json").read_text())
    expected = explain_log(jax.random.key(0), model, log, ObservedStates(model), Question(3, actions=ACTIONS))
    assert [row["value"] for row in written["curve"]] == pytest.approx([e.value for e in expected.curve], abs=1e-5)


def test_mistakes_are_told_before_the_work(folder: Path):
    for arguments, message in (
        (["--episode", "40"], "episode is 40, but the log has the episodes 0 … 39"),
        (["--changes", "6"], "changes is 6, but the longest episode has 5 steps"),
        (["--discount", "0"], r"discount is 0.0; it must lie in \(0, 1\]"),
        (["--actions", "2"], r"action 2 is outside Discrete\(2\)"),
        (["--actions", "0.5"], r"action 0.5 is no number of an action; give some of 0 … 1"),
        (["--budget", "1000000000000"], "would take hours"),
        (["--num-scenarios", "2"], "scenarios is 2; draw at least 4"),
    ):
        with pytest.raises(CouldaError, match=message):
            run(folder, *arguments)
