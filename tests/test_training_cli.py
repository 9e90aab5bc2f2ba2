"""`coulda train`: presets, checkpoints, resume to the bit, executors, and what it says about mistakes."""

import jax
import pytest

from coulda.cli import main
from coulda.cli.train import Train
from coulda.recipes.impala import RECIPES
from coulda.trainer import checkpoint_steps
from coulda.trainer.checkpoints import checkpoint_path
from coulda.trainer.logs import held_out_curve, read_log

QUICK = ["--batch", "8", "--evaluation-episodes", "64", "--evaluate-every", "2", "--no-progress", "--no-all-cores"]


def trained(folder, *arguments: str) -> list[dict]:
    """The log of a run from the command line."""
    main(["train", *QUICK, *arguments, "--folder", str(folder)])
    return read_log(folder / "log.jsonl")


@pytest.mark.parametrize("preset", RECIPES)
def test_every_preset_is_a_recipe(preset):
    recipe = Train(preset=preset, updates=7, learning_rate=0.5).recipe()
    assert (recipe.preset, recipe.updates, recipe.learning_rate) == (preset, 7, 0.5)
    assert recipe.batch == RECIPES[preset].batch
    assert jax.eval_shape(recipe.first_policy).heads.bias.shape == (6,)


def test_a_world_is_trained_and_told(tmp_path, capsys):
    log = trained(tmp_path, "--environment", "tiger", "--updates", "4")
    assert "after 4 updates" in capsys.readouterr().out
    told = [line for line in log if "frames" in line]
    assert told[-1]["frames"] == 8 * 4
    assert told[-1]["frames_per_second"] == pytest.approx(32 * told[-1]["steps_per_second"])
    assert {"loss/policy_loss", "loss/entropy", "staleness", "episode_return", "gradient_norm"} <= set(told[-1])
    rows = held_out_curve(log)
    assert [row["updates"] for row in rows] == [2, 4]
    assert rows[-1]["frames"] == 4 * 32


def test_a_resumed_run_ends_where_it_would_have(tmp_path):
    options = ["--environment", "tiger", "--updates", "6", "--max-staleness", "2"]
    trained(tmp_path / "whole", *options)
    trained(tmp_path / "cut", *options)
    for step in (4, 6):  # as if it had been killed after step 2
        (tmp_path / "cut" / f"step-{step:010d}").rename(tmp_path / f"gone-{step}")
    trained(tmp_path / "cut", *options, "--resume")
    parts = [checkpoint_path(tmp_path / name, 6) / "state.safetensors" for name in ("whole", "cut")]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    assert checkpoint_steps(tmp_path / "cut")[-1] == 6


@pytest.mark.slow
def test_other_processes_make_the_same_run(tmp_path):
    options = ["--environment", "tiger", "--updates", "4", "--max-staleness", "1"]
    trained(tmp_path / "here", *options)
    trained(tmp_path / "there", *options, "--executor", "processes")
    parts = [checkpoint_path(tmp_path / name, 4) / "state.safetensors" for name in ("here", "there")]
    assert parts[0].read_bytes() == parts[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "9x9"], "the presets are 7x7, 8x8, 10x10"),
        (["--environment", "nowhere"], "there is no world 'nowhere'"),
        (["--environment", "linear"], "learns discrete actions"),
        (["--environment", "tiger", "--address", "auto"], "add --executor ray"),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *QUICK, *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
