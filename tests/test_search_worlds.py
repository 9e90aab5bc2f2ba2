"""Search on the project's small worlds and on a user's own, and from the command line."""

from dataclasses import replace

import jax
import pytest

from coulda.cli import main
from coulda.environments.pendulum import Pendulum
from coulda.errors import CouldaError
from coulda.policies.trainable import FeedforwardPolicy
from coulda.recipes import WORLDS, Running, SearchRecipe, find_world, search_policy, true_return
from coulda.testing import check_policy, check_pomdp
from coulda.trainer import checkpoint_steps
from coulda.trainer.checkpoints import checkpoint_path
from coulda.trainer.logs import read_log

KEY = jax.random.key(7)
QUICK = SearchRecipe(episodes=4, rollouts=4)
BRIEF = Running(evaluation_episodes=200, progress=False)


def searched(tmp_path, evaluate_every, resume=False, **options) -> list[dict]:
    """The evaluations of a run, in order."""
    recipe = replace(QUICK, **options)
    running = replace(BRIEF, folder=tmp_path, evaluate_every=evaluate_every, resume=resume)
    search_policy(recipe, recipe.find(), running)
    return [line for line in read_log(tmp_path / "log.jsonl") if "true_return" in line]


@pytest.mark.parametrize(("scenarios", "value"), [("hindsight", 0.9), ("first-observation", 0.1), ("prior", 0.1)])
def test_the_scenarios_make_the_method(tmp_path, scenarios, value):
    evaluations = searched(tmp_path, scenarios=scenarios, updates=60, evaluate_every=30, learning_rate=0.3)
    assert [line["step"] for line in evaluations] == [30, 60]
    # 200 episodes: four standard errors are 0.085; false failure once in 16,000.
    assert evaluations[-1]["true_return"] == pytest.approx(value, abs=0.1)


@pytest.mark.slow
def test_a_linear_system_is_brought_to_zero(tmp_path):
    options = {"world": "linear", "planner": "expert", "ratio": False, "learning_rate": 0.1}
    first, *_, last = searched(tmp_path, updates=61, evaluate_every=20, **options)
    assert first["true_return"] < last["low"], "better than before, beyond the interval"


LEARNED = {
    "bandit": {"planner": "expert", "beta": 0.9},
    # No expert here: one that sees the tiger opens a door at once, and who imitates it blindly is eaten.
    "tiger": {"temperature": 20.0},
    "sepsis": {"planner": "expert", "beta": 0.9, "ratio": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("world", LEARNED)
def test_a_world_is_learned_in_hindsight(tmp_path, world):
    made = find_world(world)
    before = true_return(made.environment, 2000)(KEY, made.policy(KEY))
    options = {"world": world, "episodes": 32, "rollouts": 10, "learning_rate": 0.1, **LEARNED[world]}
    evaluations = searched(tmp_path, updates=150, evaluate_every=150, **options)
    assert evaluations[-1]["low"] > before["high"]


@pytest.mark.slow
def test_a_resumed_run_ends_where_it_would_have(tmp_path):
    options = {"scenarios": "hindsight", "evaluate_every": 2, "refresh": 3}
    searched(tmp_path / "whole", updates=6, **options)
    searched(tmp_path / "parts", updates=2, **options)
    searched(tmp_path / "parts", updates=6, **options, resume=True)
    assert checkpoint_steps(tmp_path / "parts")[-1] == 6
    states = [(checkpoint_path(tmp_path / name, 6) / "state.safetensors").read_bytes() for name in ("whole", "parts")]
    assert states[0] == states[1]
    with pytest.raises(CouldaError, match="was trained with settings"):
        searched(tmp_path / "parts", updates=8, **{**options, "refresh": 2}, resume=True)


def own_world():
    return WORLDS["bandit"]()


def not_a_world():
    return 3


@pytest.mark.slow
def test_a_world_of_ones_own_is_named_by_its_module(capsys):
    options = "--updates 2 --episodes 2 --evaluation-episodes 8 --no-progress"
    main(["search", "--world", f"{__name__}:own_world", *options.split()])
    assert "true return" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world", "chess"], "there is no world 'chess'; the worlds are bandit"),
        (["--world", "8x8"], "`coulda reproduce search --world 8x8`"),
        (["--world", f"{__name__}:nothing"], "has no 'nothing'"),
        (["--world", f"{__name__}:not_a_world"], "is a int, not a World"),
        (["--planner", "expert"], "world 'hidden-bit' has no expert; use --planner policy"),
        (["--updates", "0"], "--updates is 0; it must be at least 1"),
        (["--policy", "my.py:policy"], "policy is 'my.py:policy', but no model is named; add --model."),
        (["--model", "my.py:model"], "needs a policy to begin with; add --policy file.py:name."),
        (["--model", "my.py:model", "--world", "tiger"], "leave out --world or --model."),
    ],
)
def test_mistakes_are_shown_as_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["search", *arguments])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_every_world_has_its_three_sources():
    for name in ("bandit", "hidden-bit", "tiger", "linear"):
        world = find_world(name)
        steps = [int(world.source(kind).steps) for kind in ("prior", "first-observation", "hindsight")]
        assert steps[:2] == [0, 1]
        assert steps[2] > world.model.horizon
    with pytest.raises(CouldaError, match="scenarios is 'future'"):
        world.source("future")


@pytest.mark.slow
def test_trainable_policies_and_the_pendulum_pass_the_public_checks():
    for name in ("tiger", "linear"):
        world = find_world(name)
        check_policy(world.policy(KEY), world.environment)
    pendulum = Pendulum(horizon=4)
    check_pomdp(pendulum)
    check_policy(FeedforwardPolicy(KEY, pendulum.observation_space, pendulum.action_space, width=8), pendulum)
    with pytest.raises(CouldaError, match="neither discrete nor vectors"):
        FeedforwardPolicy(KEY, pendulum.observation_space, pendulum.observation_space.__class__(0, 1, (2, 2)))
