"""`coulda episodes`: the numbers printed are those of the log."""

from pathlib import Path

import numpy as np
import pytest
import tyro

from coulda.cli.episodes import Convert, Info, Validate
from coulda.episodes import LogError, read_any, write_any
from coulda.episodes.facts import facts_of
from coulda.errors import CouldaError
from tests.test_episodes_files import small_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_any(tmp_path / "log", small_log())
    return tmp_path / "log"


def test_info(path: Path, capsys):
    tyro.cli(Info, args=[str(path)]).run()
    printed = capsys.readouterr().out
    log = small_log()
    assert f"{log.num_steps:,}" in printed
    assert "Discrete(4)" in printed
    assert log.facts == facts_of(log.schema, read_any(path).batches())
    assert f"{log.episode_returns.mean():.4g}" in log.facts["return"]


def test_validate(path: Path, capsys):
    tyro.cli(Validate, args=[str(path)]).run()
    assert "30 episodes" in capsys.readouterr().out
    shard = path / "shard-000000.npz"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CouldaError, match="shard-000000"):
        Validate(path).run()


@pytest.mark.parametrize("name", ["there.csv", "there.parquet", "there-v0", "there"])
def test_convert_there_and_back(path: Path, name: str, tmp_path: Path):
    there, back = tmp_path / "new" / name, tmp_path / "new" / "back"
    there.parent.mkdir()
    tyro.cli(Convert, args=[str(path), str(there)]).run()
    Convert(there, back).run()
    np.testing.assert_allclose(read_any(back).read().log_prob, small_log().log_prob, rtol=1e-6)
    np.testing.assert_array_equal(read_any(back).read().reward, small_log().reward)


def test_convert_fits_the_behavior_on_request(path: Path, tmp_path: Path):
    Convert(path, tmp_path / "fitted", fit_behavior=True).run()
    assert read_any(tmp_path / "fitted").schema.behavior == "fitted"


def test_columns_are_arguments(tmp_path: Path):
    (tmp_path / "ward.csv").write_text("patient,step,observation,action,reward\n1,0,0,1,0.5\n")
    with pytest.raises(LogError, match="field 'episode': no such column"):
        tyro.cli(Validate, args=[str(tmp_path / "ward.csv")]).run()
    tyro.cli(Validate, args=[str(tmp_path / "ward.csv"), "--columns.episode", "patient"]).run()
