"""Tiles, level files, level pools, the generator and the checks of levels."""

import os

import jax
import numpy as np
import pytest

from coulda.environments.sokoban import (
    check_level,
    count_defects,
    generate,
    read_levels,
    read_pool,
    solve,
    tiles,
    write_levels,
    write_pool,
)
from coulda.environments.sokoban._generate import _reverse_play
from coulda.environments.sokoban._random import stream
from coulda.environments.sokoban.boxoban import LevelFileError
from coulda.environments.sokoban.checks import DEFECTS
from coulda.environments.sokoban.solver import SOLVED
from coulda.errors import CouldaError
from coulda.storage import ArtifactError
from tests.conftest import FIXTURES


@pytest.fixture(scope="module")
def levels() -> np.ndarray:
    return generate(jax.random.key(0), 300)


def test_generated_levels_are_well_formed_and_solvable(levels):
    assert not any(count.any() for count in count_defects(levels, num_boxes=3).values())
    solutions = solve(levels, num_boxes=3)
    assert (solutions.status == SOLVED).all()
    assert (solutions.length > 0).all()


@pytest.mark.parametrize(("height", "width", "num_boxes"), [(7, 7, 1), (8, 8, 2), (6, 12, 2), (12, 9, 5)])
def test_other_sizes(height, width, num_boxes):
    levels = generate(jax.random.key(1), 20, height, width, num_boxes)
    assert levels.shape == (20, height, width)
    assert not any(count.any() for count in count_defects(levels, num_boxes).values())


def test_a_level_depends_on_key_and_index_alone(levels, monkeypatch):
    np.testing.assert_array_equal(generate(jax.random.key(0), 7), levels[:7])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    np.testing.assert_array_equal(generate(jax.random.key(0), 300), levels)
    assert (generate(jax.random.key(1), 300) != levels).any()
    assert len(np.unique(levels.reshape(len(levels), -1), axis=0)) == len(levels)


def test_search_backwards_finds_the_farthest_place_of_a_box_in_a_corridor():
    """Five cells in a row, the target at one end: the player pulls the box until it stands at the other end itself."""
    floor, best = np.zeros(21, np.uint8), np.zeros(2, int)
    floor[8:13] = 1
    visited = np.zeros(64, np.uint64)
    score = _reverse_play(stream(np.uint64(0), 0), floor, np.array([8]), 9, 7, 10, 10, visited, best)
    assert (score, best.tolist()) == (3, [12, 11])
    assert _reverse_play(stream(np.uint64(0), 0), floor, np.array([12]), 9, 7, 10, 10, visited, best) == 3
    assert best.tolist() == [8, 9]
    assert _reverse_play(stream(np.uint64(0), 0), floor, np.array([8]), 9, 7, 10, 3, visited, best) == 2, "3 states"
    assert _reverse_play(stream(np.uint64(0), 0), floor, np.array([11]), 12, 7, 10, 10, visited, best) == 0, "stuck"


def test_a_room_that_is_too_small_is_refused():
    with pytest.raises(CouldaError, match="2 of 2 levels of 4×4 with 3 boxes"):
        generate(jax.random.key(0), 2, 4, 4, 3)
    with pytest.raises(CouldaError, match="num_boxes=0"):
        generate(jax.random.key(0), 2, num_boxes=0)


def test_statistics_of_real_levels():
    """Floor cells of four-box levels, against real ones: two means of n = 1000 and 2000.

    5 standard errors: fails by chance less than once in a million keys. The twin (a room two cells narrower) must fail.
    """
    real = read_levels(FIXTURES / "boxoban_unfiltered_test.txt", num_boxes=4)

    def distance(levels):
        a, b = ((x != tiles.WALL).sum((1, 2)) for x in (real, levels))
        return abs(a.mean() - b.mean()) / np.sqrt(a.var() / len(a) + b.var() / len(b))

    assert distance(generate(jax.random.key(2), 2000, num_boxes=4)) < 5
    assert distance(generate(jax.random.key(2), 2000, 10, 8, num_boxes=4)) > 5


def test_level_files_round_trip(tmp_path, levels):
    write_levels(tmp_path / "levels.txt", levels)
    np.testing.assert_array_equal(read_levels(tmp_path / "levels.txt", num_boxes=3), levels)


def test_real_level_file_round_trips_to_the_byte(tmp_path):
    path = FIXTURES / "boxoban_unfiltered_test.txt"
    write_levels(tmp_path / "copy.txt", read_levels(path))
    assert (tmp_path / "copy.txt").read_text().strip() == path.read_text().strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no levels"),
        ("####\n", "line 1: a row before any level"),
        ("; 0\n####\n#@x#\n", "level '0', line 3, column 3: unknown tile 'x'"),
        ("; 0\n####\n#@##\n###\n", "level '0', line 4: 3 tiles wide"),
        ("; 0\n####\n\n####\n", "level '0', line 4: a blank line inside"),
        ("; a\n######\n#@$. #\n\n; b\n######\n#  $.#\n", "level 'b', line 6: 0 agents"),
        ("; a\n######\n#@$$.#\n", "level 'a', line 2: 2 boxes and 1 targets"),
        ("; a\n####\n#@ #\n\n; b\n", "level 'b', line 6: the level has no rows"),
        ("; a\n#@$.#\n\n; b\n#@ $.#\n", r"level 'b', line 5: size \(1, 6\)"),
    ],
)
def test_level_files_are_refused_with_file_level_and_line(tmp_path, text, message):
    path = tmp_path / "broken.txt"
    path.write_text(text)
    with pytest.raises(LevelFileError, match=message) as error:
        read_levels(path)
    assert str(path) in str(error.value)


def test_number_of_boxes_is_checked(tmp_path, levels):
    write_levels(tmp_path / "levels.txt", levels[:2])
    with pytest.raises(LevelFileError, match="3 boxes and 3 targets; expected 4 of each"):
        read_levels(tmp_path / "levels.txt", num_boxes=4)
    (tmp_path / "binary.txt").write_bytes(b"; \xff")
    with pytest.raises(LevelFileError, match="not ASCII"):
        read_levels(tmp_path / "binary.txt")


def test_pool_round_trips_at_25_bytes_a_level(tmp_path, levels):
    on_target = tiles.from_text("#######\n#+*$ ##\n#######")
    digest = write_pool(tmp_path / "a", levels)
    assert digest == write_pool(tmp_path / "b", levels) != write_pool(tmp_path / "c", levels[:-1])
    np.testing.assert_array_equal(read_pool(tmp_path / "a"), levels)
    assert (tmp_path / "a" / "levels.bin").stat().st_size <= 25 * len(levels)
    write_pool(tmp_path / "d", on_target[None])
    np.testing.assert_array_equal(read_pool(tmp_path / "d")[0], on_target)
    large = np.pad(on_target, ((0, 20), (0, 20)), constant_values=tiles.WALL)[None]
    write_pool(tmp_path / "e", large)
    np.testing.assert_array_equal(read_pool(tmp_path / "e"), large)


def test_damaged_pools_are_refused(tmp_path, levels):
    write_pool(tmp_path / "pool", levels[:20])
    for part in ("levels.bin", "manifest.json"):
        path = tmp_path / "pool" / part
        good = path.read_bytes()
        for place in range(0, len(good), 37):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(ArtifactError):
                read_pool(tmp_path / "pool")
        path.write_bytes(good[:-1])
        with pytest.raises(ArtifactError):
            read_pool(tmp_path / "pool")
        path.write_bytes(good)
    np.testing.assert_array_equal(read_pool(tmp_path / "pool"), levels[:20])


def test_malformed_levels_do_not_enter_a_pool(tmp_path, levels):
    bad = levels[:3].copy()
    bad[1][tiles.has_agent(bad[1])] = tiles.EMPTY
    with pytest.raises(CouldaError, match="the first is level 1 with 0 agents"):
        write_pool(tmp_path / "pool", bad)
    with pytest.raises(CouldaError, match="at least one level"):
        write_pool(tmp_path / "pool", levels[:0])
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("text", "defects", "solvable"),
    [
        ("#####\n#@$.#\n#####", {}, True),
        ("#####\n# $.#\n#####", {"no agent": 1}, False),
        ("#######\n#@@$.+#\n#######", {"extra agents": 2, "extra targets": 1}, True),
        ("#####\n#@ .#\n#####", {"missing boxes": 1}, False),
        ("######\n#@$$.#\n######", {"extra boxes": 1}, False),
        ("#####\n#@$ #\n#####", {"missing targets": 1}, False),
        ("#####\n#@* #\n#####", {"solved": 1}, True),
        (" ####\n#@$. \n#####", {"open border": 2}, True),
    ],
)
def test_check_level_counts_every_defect(text, defects, solvable):
    check = check_level(tiles.from_text(text), num_boxes=1, solvable=True)
    assert check.defects == defects
    assert check.solvable is solvable
    assert check.well_formed is (not defects)
    assert set(defects) <= set(DEFECTS)


def test_levels_at_the_door():
    with pytest.raises(CouldaError, match=r"shape \[n, height, width\], got \(3, 3\)"):
        solve(np.zeros((3, 3), np.uint8), 1)
    with pytest.raises(CouldaError, match=r"in \[7, 7\]"):
        solve(np.full((1, 3, 3), 7), 1)
    with pytest.raises(CouldaError, match="float64"):
        solve(np.zeros((1, 3, 3)), 1)
    with pytest.raises(CouldaError, match="unknown tile characters"):
        tiles.from_text("#?#")
