"""Gymnasium, pictures and the command line."""

import json

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from coulda.cli import main
from coulda.environments.sokoban import drawing, generate, read_levels, read_pool, solve, tiles
from coulda.environments.sokoban.gym import POSokobanEnv
from coulda.errors import CouldaError

ID = "coulda/POSokoban-v0"


@pytest.fixture(scope="module")
def levels() -> np.ndarray:
    return generate(jax.random.key(0), 30, 7, 7, 1)


@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_passes_gymnasiums_own_checker(levels, render_mode):
    check_env(gymnasium.make(ID, levels=levels, num_boxes=1, render_mode=render_mode).unwrapped)


def test_the_default_is_the_papers_game():
    env = gymnasium.make(ID, num_levels=20)
    assert env.observation_space.shape == (10, 10)
    assert env.action_space.n == 5
    env.reset(seed=0)
    for t in range(50):
        *_, terminated, truncated, _ = env.step(tiles.NOOP)
        assert not terminated
        assert truncated == (t == 49)


def test_an_episode_follows_from_its_seed(levels):
    env = gymnasium.make(ID, levels=levels, num_boxes=1)
    first, again, other = (env.reset(seed=seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (env.reset()[0] != other).any()


def test_a_solution_solves(levels):
    """Unmasked, the observation is the state: solve what is seen, and play it."""
    env = gymnasium.make(ID, levels=levels, num_boxes=1, mask_probability=0.0)
    observation, _ = env.reset(seed=0)
    solution = solve(observation[None], num_boxes=1)
    rewards = []
    for action in solution.actions[0]:
        _, reward, terminated, _, _ = env.step(action)
        rewards.append(reward)
    assert terminated
    assert rewards[-1] == 11
    assert sum(rewards) == 11


def test_the_vector_environment_resets_on_the_next_step(levels):
    envs = gymnasium.make_vec(ID, num_envs=6, levels=levels, num_boxes=1, horizon=5, render_mode="rgb_array")
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    again, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(observations, again)
    for t in range(1, 13):
        observations, rewards, terminated, truncated, _ = envs.step(np.full(6, tiles.NOOP))
        assert observations in envs.observation_space
        assert not terminated.any()
        assert truncated.all() == (t % 6 == 5)
        assert (rewards == 0).all()
    assert len(envs.render()) == 6


def test_misuse_is_explained(levels):
    env = gymnasium.make(ID, levels=levels, num_boxes=1).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    with pytest.raises(CouldaError, match="render_mode must be one of"):
        POSokobanEnv(levels=levels, num_boxes=1, render_mode="human")


def test_pictures_tell_tiles_apart():
    grid = np.arange(7, dtype=np.uint8).reshape(1, 7)
    for size in (8, 32):
        picture = drawing.draw(grid, size)
        assert picture.shape == (size, 7 * size, 3)
        sprites = picture.reshape(size, 7, size, 3).swapaxes(0, 1).astype(int)
        for a in range(7):
            for b in range(a):
                assert abs(sprites[a] - sprites[b]).mean() > 3
    with pytest.raises(CouldaError, match="at least 4 pixels"):
        drawing.draw(grid, 2)


def test_the_command_line(tmp_path, capsys, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    main(["sokoban", "generate", "pool", "--n", "5", "--height", "7", "--width", "7", "--boxes", "1"])
    main(["sokoban", "generate", "levels.txt", "--n", "5", "--height", "7", "--width", "7", "--boxes", "1"])
    np.testing.assert_array_equal(read_pool("pool"), read_levels("levels.txt"))
    main(["sokoban", "solve", "pool", "--out", "solutions.jsonl"])
    assert "solved" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "solutions.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["solved"] * 5
    main(["sokoban", "render", "pool", "episode.gif", "--index", "2"])
    main(["sokoban", "render", "pool", "episode.png"])
    with image.open("episode.gif") as animation:
        assert animation.n_frames == len(lines[2]["moves"]) + 1
    with image.open("episode.png") as strip:
        assert strip.size[0] > strip.size[1]


@pytest.mark.slow
def test_playing_a_solution(tmp_path, capsys, monkeypatch):
    (tmp_path / "level.txt").write_text("; 0\n#######\n#@ $ .#\n#######\n")
    keys = tmp_path / "keys"
    keys.write_text("hmm\x1b[Cddq")
    with keys.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        main(["sokoban", "play", "--levels", str(tmp_path / "level.txt")])
    out = capsys.readouterr().out
    assert "right, 3 moves to go" in out
    assert "masked view" in out
    assert "score +11" in out
    assert "solved! n for the next level" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "nothing.txt"], "nothing.txt"),
        (["render", "level.txt", "a.gif", "--index", "7"], "there is no level 7"),
        (["render", "level.txt", "a.bmp"], "must end with .gif or .png"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "level.txt").write_text("; 0\n#######\n#@ $ .#\n#######\n")
    with pytest.raises(SystemExit) as stop:
        main(["sokoban", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
