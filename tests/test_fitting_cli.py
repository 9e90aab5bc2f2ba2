"""`coulda fit`, and `coulda evaluate` without a model: what is printed and written, and whose verdict rows carry."""

from pathlib import Path

import jax
import pytest
import tyro

from coulda.cli import main
from coulda.cli.evaluate import Evaluate
from coulda.cli.fit import Fit
from coulda.episodes import collect, write_any
from coulda.errors import CouldaError
from coulda.fitting import load_fitted
from coulda.report import load_report
from tests.triage import BEHAVIOR, triage

WORLD = "from tests.triage import TARGET\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ward")
    write_any(folder / "log.csv", collect(jax.random.key(0), triage(), BEHAVIOR, 1000))  # as in tests of evaluation
    (folder / "world.py").write_text(WORLD)
    return folder


def run(command, *arguments) -> None:
    tyro.cli(command, args=[str(argument) for argument in arguments]).run()


def test_a_log_becomes_a_model_and_its_verdict_goes_into_the_table(folder: Path, capsys):
    log, named = folder / "log.csv", ("--reparameterization", "gumbel_max")
    run(Fit, log, *named, "--dry-run")
    assert "A TabularFit, gumbel_max, 5 folds: since observations and actions are numbered." in capsys.readouterr().out
    assert not (folder / "model").exists()
    run(Fit, log, *named, "--out", folder / "model")
    assert "own policy: trust." in capsys.readouterr().out
    policy = ("--policy", f"{folder / 'world.py'}:TARGET")
    run(Evaluate, log, "--model", folder / "model", *policy, "--out", folder / "named")
    report, fitted = load_report(folder / "named"), load_fitted(folder / "model")
    assert report.model is not None
    assert report.model.sentences == fitted.summary
    rows = {row.method: row for row in report.table.rows}
    for method in ("MB-PE", "CF-PE"):
        names = [finding.name for finding in rows[method].findings]
        assert {d.name for d in fitted.verdict} <= set(names)
    assert "own policy" not in [finding.name for finding in rows["WIS"].findings]
    with pytest.raises(FileExistsError, match="exists"):
        run(Fit, log, *named, "--out", folder / "model")


@pytest.mark.slow
def test_without_a_model_one_is_fitted_unless_it_shall_not_be(folder: Path, capsys):
    policy = ("--policy", f"{folder / 'world.py'}:TARGET")
    run(Evaluate, folder / "log.csv", *policy)
    shown = capsys.readouterr().out
    assert "one was fitted to the log: a table with Gumbel-max" in shown
    assert "CF-PE" in shown
    run(Evaluate, folder / "log.csv", *policy, "--no-fit")
    said, _, rows = capsys.readouterr().out.partition("expected return")
    assert "there is no MB-PE and no CF-PE in the table" in " ".join(said.split())
    assert "WIS" in rows
    assert "MB-PE" not in rows


def test_what_does_not_fit_together_is_refused(folder: Path, capsys):
    with pytest.raises(CouldaError, match="nobody"):
        run(Evaluate, folder / "log.csv", "--policy", f"{folder / 'world.py'}:nobody")
    assert "fitted" not in capsys.readouterr().out  # a wrong name costs no fit
    with pytest.raises(CouldaError, match="--out is missing"):
        run(Fit, folder / "log.csv", "--reparameterization", "gumbel_max")
    with pytest.raises(CouldaError, match="--states 3 is for --recipe hidden"):
        run(Fit, folder / "log.csv", "--reparameterization", "gumbel_max", "--states", "3", "--dry-run")
    short = folder / "short.csv"
    short.write_text("episode,step,observation,action,reward\n" + "".join(f"{e},0,{9 * e},0,1\n" for e in range(6)))
    with pytest.raises(CouldaError, match="46 observations in 6 steps"):
        run(Fit, short, "--reparameterization", "gumbel_max", "--dry-run")
    rows = "".join(f"{e},{t},id{2 * e + t},0,1\n" for e in range(6) for t in range(2))
    short.write_text(f"episode,step,observation,action,reward\n{rows}")
    run(Fit, short, "--reparameterization", "gumbel_max", "--dry-run")
    assert "pairs of observation and action occur once" in capsys.readouterr().out
    with pytest.raises(CouldaError, match="name one of"):
        run(Fit, folder / "log.csv", "--reparameterization", "additive", "--dry-run")


def test_a_policy_that_no_fit_could_run_is_found_before_one_is_made(folder: Path):
    (folder / "many.py").write_text("from coulda.policies import UniformPolicy\nmany = UniformPolicy(7)\n")
    recipe = Evaluate(folder / "log.csv", [f"{folder / 'many.py'}:many"]).recipe()
    with pytest.raises(CouldaError, match=r"policy 'many' does not fit: UniformPolicy knows 7 actions.* in the log"):
        recipe.check_policies()


def test_slips_of_the_command_line_get_a_sentence(folder: Path, capsys):
    log = folder / "log.csv"
    for arguments, said in (
        ((log, log, "--reparameterization", "gumbel_max", "--dry-run"), "quote the pattern"),
        ((log, "--reparameterization", "additive", "--dry-run"), "since observations and actions are numbered: "),
        (
            (log, "--reparameterization", "gumbel_max", "--dry-run", "--recipe", "neural", "--order", "0", "1"),
            "'gumbel",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["fit", *map(str, arguments)])
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err
