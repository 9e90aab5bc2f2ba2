"""The training commands: presets, checkpoints, resume to the bit, executors, and what they say about mistakes."""

from dataclasses import replace

import jax
import pytest

from coulda.cli import main, parse
from coulda.cli.search import Search
from coulda.cli.train import Train
from coulda.cli.train_policy import TrainPolicy
from coulda.cli.train_scenarios import TrainScenarios
from coulda.hindsight.conv_draw import load_scenario_model
from coulda.policies import load_policy
from coulda.recipes import IMPALA_RECIPES, PAPER_POLICY, SOKOBAN_WORLDS
from coulda.trainer import checkpoint_steps
from coulda.trainer.checkpoints import checkpoint_path
from coulda.trainer.logs import held_out_curve, read_log

QUICK = ["--batch", "8", "--evaluation-episodes", "64", "--evaluate-every", "2", "--no-progress"]


def trained(folder, *arguments: str) -> list[dict]:
    """The log of a run from the command line."""
    main(["train", *QUICK, *arguments, "--folder", str(folder)])
    return read_log(folder / "log.jsonl")


@pytest.mark.parametrize("preset", IMPALA_RECIPES)
@pytest.mark.parametrize("world", SOKOBAN_WORLDS)
def test_every_preset_is_a_recipe_in_every_world(preset, world):
    recipe = Train.of(world, preset).recipe
    assert recipe.world == world
    assert jax.eval_shape(recipe.first_policy).heads.bias.shape == (6,)


@pytest.mark.parametrize("command", [Train, TrainPolicy, TrainScenarios, Search])
def test_what_is_not_given_is_what_the_preset_has(command):
    def options(*arguments: str):
        return parse(command, "coulda", list(arguments))

    assert options() == command.of()
    assert options("--preset", "smoke") == command.of(preset="smoke") != command.of()
    given = options("--updates=7", "--preset=paper", "--learning-rate", "0.5", "--no-progress")
    paper = command.of(preset="paper")
    assert given.recipe == replace(paper.recipe, updates=7, learning_rate=0.5)
    assert given.running == replace(paper.running, progress=False)


def test_the_papers_policy_is_the_papers():
    assert Train.of("10x10", "paper").recipe.network == PAPER_POLICY
    assert Train.of("10x10", "paper").recipe.updates == 10**6
    architecture = jax.eval_shape(Train.of("10x10", "paper").recipe.first_policy).architecture
    assert (architecture.layers, architecture.channels, architecture.ticks) == (3, 32, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "load"),
    [("train-policy", "policy", load_policy), ("train-scenarios", "scenario-model", load_scenario_model)],
)
def test_a_network_is_trained_measured_and_kept(command, name, load, tmp_path, capsys):
    arguments = [command, "--world", "7x7", "--preset", "smoke", "--no-progress", "--folder", str(tmp_path)]
    main(arguments)
    assert "64 held-out levels" in capsys.readouterr().out
    assert load(tmp_path / name).architecture.channels == 4
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "exists; name another --folder" in capsys.readouterr().err.replace("\n", " ")


def test_a_world_is_trained_and_told(tmp_path, capsys):
    log = trained(tmp_path, "--world", "tiger", "--updates", "4")
    assert "after 4 updates" in capsys.readouterr().out
    told = [line for line in log if "frames" in line]
    assert told[-1]["frames"] == 8 * 4
    assert told[-1]["frames_per_second"] == pytest.approx(32 * told[-1]["steps_per_second"])
    assert {"loss/policy_loss", "loss/entropy", "staleness", "episode_return", "gradient_norm"} <= set(told[-1])
    rows = held_out_curve(log)
    assert [row["updates"] for row in rows] == [2, 4]
    assert rows[-1]["frames"] == 4 * 32


@pytest.mark.slow
def test_a_resumed_run_ends_where_it_would_have(tmp_path):
    options = ["--world", "tiger", "--updates", "6", "--max-staleness", "2"]
    trained(tmp_path / "whole", *options)
    trained(tmp_path / "cut", *options)
    for step in (4, 6):  # as if it had been killed after step 2
        (tmp_path / "cut" / f"step-{step:010d}").rename(tmp_path / f"gone-{step}")
    trained(tmp_path / "cut", *options, "--resume")
    parts = [checkpoint_path(tmp_path / name, 6) / "state.safetensors" for name in ("whole", "cut")]
    assert parts[0].read_bytes() == parts[1].read_bytes()
    assert checkpoint_steps(tmp_path / "cut")[-1] == 6


def test_a_run_goes_on_from_another_checkpoint_where_the_newest_is_damaged(tmp_path, capsys):
    options = ["--world", "tiger", "--updates", "4"]
    trained(tmp_path, *options)
    state = checkpoint_path(tmp_path, 4) / "state.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    with pytest.raises(SystemExit) as stopped:
        trained(tmp_path, *options, "--resume")
    assert stopped.value.code == 2
    assert "the newest good checkpoint is step=2; --from-step 2 goes on" in capsys.readouterr().err.replace("\n", " ")
    trained(tmp_path, *options, "--from-step", "2")
    assert state.read_bytes() == whole


@pytest.mark.slow
def test_other_processes_make_the_same_run(tmp_path):
    options = ["--world", "tiger", "--updates", "4", "--max-staleness", "1"]
    trained(tmp_path / "here", *options)
    trained(tmp_path / "there", *options, "--executor", "processes")
    parts = [checkpoint_path(tmp_path / name, 4) / "state.safetensors" for name in ("here", "there")]
    assert parts[0].read_bytes() == parts[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world", "nowhere"], "there is no world 'nowhere'; the worlds are bandit"),
        (["--world", "linear"], "`coulda search --world linear` learns there"),
        (["--world", "tiger", "--address", "auto"], "add --executor ray"),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *QUICK, *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "9x9"], "the presets are smoke, quick, desktop, paper"),
        (["train-policy", "--world", "tiger"], "its worlds are 7x7, 8x8, 10x10"),
        (["train-scenarios", "--world", "9x9"], "its worlds are 7x7, 8x8, 10x10"),
        (["reproduce", "search", "--world", "tiger"], "its worlds are 7x7, 8x8, 10x10"),
        (["reproduce", "sepsis", "--world", "7x7"], "leave out --world"),
    ],
)
def test_a_wrong_world_or_preset_says_which_there_are(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert message in (told.out + told.err).replace("\n", " ")
