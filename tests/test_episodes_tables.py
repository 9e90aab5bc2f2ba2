"""Tables as people have them: text, gaps, several files; and what must not pass for something else."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

from coulda.cli.episodes import told
from coulda.environments import TabularState
from coulda.episodes import (
    Columns,
    LogError,
    Schema,
    checked_log,
    from_arrays,
    from_frame,
    open_log,
    read_any,
    read_minari,
    read_table,
    validation,
    write_any,
    write_log,
)
from coulda.episodes.spaces import named_leaves
from coulda.fitting import FittedTable
from coulda.report.contents import SeriesScene
from coulda.report.frames import view_of
from tests.test_episodes_log import NESTED, assert_same
from tests.triage import triage

WARD = """patient,day,bp,glucose,unit,age,sex,drug,score
anna,0,120,5.5,icu,61,f,none,0
anna,1,,6.0,icu,,,low,0.5
anna,2,118,,ward,,,high,1
ben,0,130,7.1,ward,48,m,low,0
ben,1,131,7.0,,,,none,1
"""
MAPPED = Columns(
    "patient",
    "day",
    ("bp", "glucose", "unit"),
    "drug",
    "score",
    context=("age", "sex"),  # pyright: ignore[reportArgumentType]
)


def frame(**changes) -> pd.DataFrame:
    """Two episodes of two steps."""
    columns = {
        "episode": [0, 0, 1, 1],
        "step": [0, 1, 0, 1],
        "observation": [0.5, 1.5, 2.5, 3.5],
        "action": [0, 1, 1, 0],
        "reward": [0.0, 1, 0, 1],
    }
    return pd.DataFrame({name: value for name, value in (columns | changes).items() if value is not None})


def test_a_ward_is_read_with_its_names(tmp_path: Path):
    (tmp_path / "ward.csv").write_text(WARD)
    log = read_table(tmp_path / "ward.csv", MAPPED)
    names = ("bp", "glucose", "unit=icu", "unit=ward", "age", "sex=f", "sex=m")
    assert log.schema.observation_names == names
    assert log.schema.action_names == ("high", "low", "none")
    assert log.schema.action_space == spaces.Discrete(3)
    np.testing.assert_array_equal(log.action, [2, 1, 0, 1, 2])
    nan = np.nan
    expected = [[120, 5.5, 1, 0, 61, 1, 0], [nan, 6, 1, 0, 61, 1, 0], [118, nan, 0, 1, 61, 1, 0]]
    np.testing.assert_array_equal(log[0].observation, np.array([*expected, expected[-1]], np.float32))
    assert np.isnan(log[1].observation[1, 2:4]).all()
    line = told(tmp_path / "ward.csv", log)
    assert line.startswith("ward.csv: 2 episodes, 5 steps; 3 actions (high, low, none); 7 columns of observations (bp,")
    assert "bp is missing in 1 of 5 rows" in line
    assert "ends: by length" in line
    assert line.endswith("no probabilities of actions")
    write_log(tmp_path / "log", log)
    assert_same(open_log(tmp_path / "log").read(), log)


def test_names_reach_the_page():
    model = triage()
    schema = Schema(
        model.observation_space,
        model.action_space,
        observation_names=("ill", "worse", "well", "dead"),
        action_names=("wait", "treat"),
    )
    view, plain = view_of(model, schema), view_of(model)
    assert isinstance(view.scene, SeriesScene)
    assert (view.action(1), plain.action(1)) == ("treat", "1")
    assert view.scene.channels[0].labels == ("ill", "worse", "well", "dead")
    # A fitted table shows what was seen; ends by chance and what was never tried have no number of the log.
    sizes = {"horizon": 2, "reparameterization": "gumbel_max", "seen": 4, "twins": True, "varies": False}
    terminal = np.arange(10) >= 4
    fitted = FittedTable(np.eye(10)[0], np.tile(np.eye(10)[-1], (2, 10, 1)), np.zeros((2, 10, 10)), terminal, **sizes)
    view = view_of(fitted, schema)
    assert view.scene.channels[0].labels == ("ill", "worse", "well", "dead", "over", "never tried")
    assert not view.scene.channels[0].hidden
    shown = [float(view.state(TabularState(jnp.int32(i), jnp.int32(0)))[0]) for i in (1, 5, 8, 9)]
    assert shown == [1, 1, 4, 5]


@pytest.mark.parametrize(
    ("actions", "space", "names", "note"),
    [
        ([0.0, 1.0, 1.0, 0.0], spaces.Discrete(2), (), "taken as 2 choices"),
        ([True, False, True, True], spaces.Discrete(2), ("false", "true"), "taken as 2 choices"),
        (["b", "a", "c", "a"], spaces.Discrete(3), ("a", "b", "c"), ""),
        ([0, 2, 2, 0], spaces.Discrete(3), (), ""),
        ([0.0, 50.0, 100.0, 0.0], spaces.Box(-np.inf, np.inf, ()), (), ""),
        ([-1, 0, 1, 0], None, (), "below 0"),
    ],
)
def test_what_actions_are(actions, space, names, note):
    schema = from_frame(frame(action=actions)).schema
    assert space is None or schema.action_space == space
    assert schema.action_names == names
    assert note in schema.sentence


def test_an_integer_that_is_missing_is_missing():
    log = from_frame(frame(observation=pd.array([1, None, 2, 3], "Int64")))
    assert np.isnan(log[0].observation[1])
    assert "observation is missing in 1 of 4 rows" in log.schema.sentence


def test_a_category_that_is_missing_is_one_of_its_own():
    log = from_frame(frame(observation=["ill", None, "well", "ill"]))
    assert log.schema.observation_names == ("ill", "well", "(missing)")
    assert log.schema.observation_space == spaces.Discrete(3)
    assert log[0].observation[1] == 2
    assert "observation is missing in 1 of 4 rows, which is a category of its own" in log.schema.sentence


def test_a_log_in_many_files(tmp_path: Path):
    """Each file has episodes of its own, though they may be called the same; errors name the file."""
    (tmp_path / "logs").mkdir()
    for i in range(3):
        frame(reward=[float(i)] * 4, action=["a", "b", "a", "b"] if i else ["a"] * 4).to_parquet(
            tmp_path / "logs" / f"{i}.parquet"
        )
    for path in (tmp_path / "logs", tmp_path / "logs" / "*.parquet"):
        log = read_any(path)
        assert len(log) == 6
        np.testing.assert_array_equal(log.episode_returns, [0, 0, 2, 2, 4, 4])
        assert log.schema.action_names == ("a", "b")
    frame(reward=[0, 1, None, 1]).to_parquet(tmp_path / "logs" / "3.parquet")
    with pytest.raises(LogError, match=r"3.parquet, row 3, episode 1, step 0, field 'reward': is missing"):
        read_any(tmp_path / "logs")
    frame(more=0).to_parquet(tmp_path / "logs" / "3.parquet")
    with pytest.raises(LogError, match=r"3.parquet: has the columns"):
        read_any(tmp_path / "logs")


REFUSED = {
    "x beside x_0": (frame(observation_0=1.0), "there is 'observation' and 'observation_0'"),
    "a gap": (frame(observation=None, observation_0=1.0, observation_2=2.0), "there is no 'observation_1'"),
    "two of a name": (
        pd.concat([frame(), frame()[["reward"]]], axis=1),
        "field 'reward': there are two columns of this name",
    ),
    "a flag of 2": (frame(terminated=[0, 2, 0, 1]), r"row 2, episode 0, step 1, field 'terminated': is 2; a flag is"),
    "a flag of a half": (frame(truncated=[0, 0.5, 0, 1]), "field 'truncated': is 0.5; a flag"),
    "a flag of -1": (frame(terminated=[0, -1, 0, 1]), "is -1; a flag"),
    "no flag": (frame(terminated=[0, 1, 0, None]), "row 4, .*is nothing; a flag"),
    "text flags": (frame(terminated=["no", "yes", "no", "yes"]), "is 'no'; a flag"),
    "an infinite observation": (frame(observation=[0, np.inf, 0, 0]), "row 2, .*field 'observation': is infinite"),
    "a date": (frame(observation=["2024-01-03"] * 4), "'2024-01-03' is a date"),
    "a date with a time": (frame(observation=pd.to_datetime(["2024-01-03"] * 4)), "is a date"),
    "a word among numbers": (frame(observation=["1", "2", "oops", "4"]), "row 3, .*'oops' is not a number, as others"),
    "an integer that is not exact": (frame(observation=[0, 2**24 + 1, 1, 2]), "row 2, .*16777217 is beyond 16,777,216"),
    "an action of 2^62": (frame(action=[0, 1, 2**62, 0]), "row 3, .*4611686018427387904 would make more than 65,536"),
    "an action of 2^31": (frame(action=[0, 1, 2**31, 0]), "row 3, .*would make more than"),
    "a tiny probability": (frame(probability=[0.5, 1e-300, 0.5, 0.5]), "row 2, .*so little that no weight"),
    "a probability above one": (frame(probability=[0.5, 1.000001, 0.5, 0.5]), r"row 2, .*in \(0, 1\]"),
    "text as reward": (frame(reward=["a"] * 4), "field 'reward': 'a' is not a number"),
    "text as probability": (frame(probability=["a"] * 4), "'a' is not a probability"),
    "notes": (
        pd.concat(
            [frame(episode=[i] * 4, step=range(4), observation=[f"{i}.{j} note" for j in "abcd"]) for i in range(99)]
        ),
        "different texts, which are no categories",
    ),
    "a label that cannot be printed": (frame(action=["a", "b\x1b[31m", "a", "a"]), "characters that cannot be printed"),
    "a step beyond all": (frame(step=[0, 2**40, 0, 1]), "is not a step number"),
}


@pytest.mark.parametrize(("table", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(table: pd.DataFrame, message: str):
    with pytest.raises(LogError, match=message):
        from_frame(table)


def test_context_must_not_change():
    columns = Columns(context=("age",))
    log = from_frame(frame(age=[50.0, None, 60.0, 60.0]), columns)
    np.testing.assert_array_equal(log[0].observation[:, 1], [50, 50, 50])
    assert log.schema.observation_names == ("observation", "age")
    with pytest.raises(LogError, match=r"row 2, episode 0, step 1, field 'age': changes within the episode"):
        from_frame(frame(age=[50, 51, 60, 60]), columns)


def test_truncation_alone_tells_the_other():
    assert from_frame(frame(truncated=[0, 1, 0, 0])).terminated.tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("episode,step,observation,action,reward,reward\n0,0,0,0,1,2\n", "field 'reward': there are two columns"),
        ("episode,step,observation,action,reward\n0,0,0,0,\0\n", "line 2 has a null byte"),
        ("", "cannot be read|no such column"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str, message: str):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(LogError, match=message):
        read_any(tmp_path / "log.csv")


ARRAYS = {
    "observations": np.zeros((4, 2), np.float32),
    "actions": np.array([0, 1, 0, 1]),
    "rewards": np.ones(4),
    "terminals": np.array([0, 1, 0, 1]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminals": np.array(["no", "no", "no", "yes"])}, "field 'terminals': expected 0 or 1, got <U3"),
        ({"terminals": np.array([0, 2, 0, 1])}, r"field 'terminals\[1\]': is 2; a flag is 0 or 1"),
        ({"truncated": np.zeros(4)}, "field 'truncated': is not understood"),
        ({"observations": np.full((4, 2), np.inf)}, r"field 'observations\[0\]': is infinite"),
        ({"observations": np.full((4, 2), 1e300)}, "is not held by float32"),
        ({"actions": np.array([0, 1, 2**40, 0])}, "is outside"),
    ],
)
def test_what_an_npz_may_not_hold(tmp_path: Path, change, message: str):
    np.savez(tmp_path / "log.npz", **(ARRAYS | change))
    with pytest.raises(LogError, match=message):
        read_any(tmp_path / "log.npz")
    log = from_arrays(*ARRAYS.values(), probability=np.full(4, 0.5))
    np.testing.assert_allclose(log.log_prob, np.log(0.5))


def test_files_that_promise_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A header of a terabyte and an archive that grows a thousandfold are refused by what they say, unread."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**37,)})
    with zipfile.ZipFile(tmp_path / "terabyte.npz", "w") as archive:
        archive.writestr("observations.npy", header.getvalue() + b"\0" * 64)
    with pytest.raises(LogError, match=r"its header is of 1,099,511,6.* bytes"):
        read_any(tmp_path / "terabyte.npz")
    monkeypatch.setattr(validation, "SMALL", 2**20)
    path = tmp_path / "bomb.npz"
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2)
    with archive, archive.open("rewards.npy", "w", force_zip64=True) as file:
        for _ in range(8):
            file.write(b"\0" * 2**20)
    with pytest.raises(LogError, match="are said to hold"):
        read_any(path)


def test_hdf5_that_reaches_out_is_refused(tmp_path: Path):
    import h5py

    write_any(tmp_path / "log-v0", any_log(spaces.Discrete(3)))
    data = tmp_path / "log-v0" / "data" / "main_data.hdf5"
    (tmp_path / "secret").write_bytes(b"\1" * 80)
    whole = data.read_bytes()
    with h5py.File(data, "a") as file:
        del file["episode_0/rewards"]
        size = file["episode_0/terminations"].shape[0]
        file["episode_0"].create_dataset("rewards", (size,), "<f8", external=[(str(tmp_path / "secret"), 0, 8 * size)])
    with pytest.raises(LogError, match="rewards': is stored in other files"):
        read_minari(tmp_path / "log-v0")
    data.write_bytes(whole)
    with h5py.File(data, "a") as file:
        file["episode_0/more"] = h5py.ExternalLink("secret", "/")
    with pytest.raises(LogError, match="more': is a link"):
        read_minari(tmp_path / "log-v0")
    data.write_bytes(whole)
    metadata = tmp_path / "log-v0" / "data" / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"total_episodes": 7', '"total_episodes": 1'))
    with pytest.raises(LogError, match="says 1 episodes, the file has 7"):
        read_minari(tmp_path / "log-v0")


# ---- what is written is read again, in every format ----------------------------------------------------


def any_log(observation_space, action_space=None, seed: int = 0, episodes: int = 7):
    """Random numbers of the spaces."""
    import jax

    rng = np.random.default_rng(seed)
    action_space = spaces.Discrete(3) if action_space is None else action_space
    lengths = rng.integers(1, 5, episodes)
    total = int(lengths.sum())

    def drawn(space, count):
        space.seed(seed)
        return jax.tree.map(lambda *x: np.stack(x), *(space.sample() for _ in range(count)))

    return checked_log(
        Schema(observation_space, action_space),
        drawn(observation_space, total + episodes),
        drawn(action_space, total),
        rng.normal(size=total),
        lengths,
        rng.random(episodes) < 0.5,
        np.log(rng.uniform(0.1, 1, total)),
    )


SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, ()),
    spaces.Box(-np.inf, np.inf, (1,)),
    spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(-5, 5, (), np.int32),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, ()))),
    NESTED,
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_our_format_holds_every_space(tmp_path: Path, space, seed: int):
    for i, log in enumerate((any_log(space, seed=seed), any_log(spaces.Discrete(2), space, seed))):
        write_log(tmp_path / str(i), log)
        assert_same(open_log(tmp_path / str(i)).read(), log)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_minari_holds_every_space(tmp_path: Path, space):
    log = any_log(space)
    write_any(tmp_path / "log-v0", log)
    back = read_minari(tmp_path / "log-v0")
    np.testing.assert_allclose(back.log_prob, log.log_prob, rtol=1e-6)
    assert_same(back.with_log_prob(log.log_prob, "logged"), log)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1, 1, ()), spaces.Box(-1, 1, (2,))], ids=str)
def test_flat_formats_hold_what_is_flat(tmp_path: Path, suffix: str, action):
    """Spaces are given, or understood from the columns to the same numbers."""
    for i, space in enumerate(space for space in SPACES if len(named_leaves(space, "")) == 1):
        if len(space.shape or ()) > 1 and suffix != "npz":
            continue
        log, path = any_log(space, action), tmp_path / f"{i}.{suffix}"
        write_any(path, log)
        back = read_any(path)
        np.testing.assert_allclose(back.action, log.action, rtol=1e-6)
        for mine, theirs in zip(back, log, strict=True):
            last = len(theirs.reward) + (suffix != "npz")
            np.testing.assert_allclose(mine.observation[:last], theirs.observation[:last], rtol=1e-6)
            np.testing.assert_allclose(mine.log_prob, theirs.log_prob, rtol=1e-5)
            np.testing.assert_array_equal(mine.reward, theirs.reward)
        assert back.terminated.tolist() == log.terminated.tolist()
        if suffix != "npz":
            given = read_table(path, observation_space=space, action_space=action)
            plain = replace(given.with_log_prob(log.log_prob, "logged"), schema=log.schema)
            assert_same(plain, log)


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A write that fails leaves no file and no litter, in any format."""

    def fail(*_, **__):
        raise OSError("no space left")

    import coulda.episodes.formats as formats
    import coulda.episodes.minari as minari
    import coulda.episodes.tables as tables

    for module in (formats, tables):
        monkeypatch.setattr(module, "replace_file", fail)
    monkeypatch.setattr(minari, "_buffers", fail)
    for name in ("a.csv", "a.parquet", "a.npz", "a-v0"):
        with pytest.raises(OSError, match="no space"):
            write_any(tmp_path / name, any_log(spaces.Discrete(3)))
    assert not list(tmp_path.iterdir())
