"""Every format gives back what was written, and refuses what is broken."""

import io
import json
import os
import pickle
import random
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

from coulda.episodes import (
    Columns,
    LogError,
    Schema,
    checked_log,
    from_frame,
    open_log,
    read_any,
    read_minari,
    read_table,
    write_any,
    write_log,
    write_minari,
    write_table,
)
from coulda.errors import CouldaError
from coulda.storage import ArtifactError
from tests.test_episodes_log import NESTED, assert_same


def small_log(seed: int = 0, episodes: int = 30, observation_space: gymnasium.Space | None = None):
    """Any numbers of the right kind: formats do not care where they come from."""
    rng = np.random.default_rng(seed)
    observation_space = spaces.Discrete(4) if observation_space is None else observation_space
    observation_space.seed(seed)
    lengths = rng.integers(1, 6, episodes)
    total = int(lengths.sum())
    samples = [observation_space.sample() for _ in range(total + episodes)]
    return checked_log(
        Schema(observation_space, spaces.Discrete(3)),
        jax.tree.map(lambda *x: np.stack(x), *samples),
        rng.integers(0, 3, total),
        rng.normal(size=total),
        lengths,
        rng.random(episodes) < 0.5,
        np.log(rng.uniform(0.1, 1, total)),
    )


def untold(log):
    """Without what the reader of a table noted."""
    return replace(log, schema=replace(log.schema, notes=()))


@pytest.fixture
def log():
    return small_log()


@pytest.mark.parametrize("space", [spaces.Discrete(4), NESTED, spaces.Box(-1, 1, (3,))])
def test_our_format_is_exact(tmp_path: Path, space):
    log = small_log(1, observation_space=space)
    write_log(tmp_path / "log", log)
    stored = open_log(tmp_path / "log")
    assert (len(stored), stored.num_steps, stored.max_length) == (30, log.num_steps, log.max_length)
    assert_same(stored.read(), log)


def test_a_log_is_written_and_read_in_pieces(tmp_path: Path, log):
    written = []

    def pieces():
        for piece in log.batches(7):
            written.append(len(piece))
            yield piece

    write_log(tmp_path / "log", pieces())
    assert written == [7, 7, 7, 7, 2]
    stored = open_log(tmp_path / "log")
    assert [len(piece) for piece in stored.batches(4)] == [4, 3, 4, 3, 4, 3, 4, 3, 2]
    assert_same(stored.read(), log)
    # Reading the first piece does not touch the others.
    (tmp_path / "log" / "shard-000004.npz").unlink()
    assert len(next(stored.batches())) == 7
    with pytest.raises(ArtifactError, match=r"shard-000004\.npz"):
        list(stored.batches())


def test_nothing_to_write(tmp_path: Path):
    with pytest.raises(CouldaError, match="no episodes"):
        write_log(tmp_path / "log", iter([]))
    assert not (tmp_path / "log").exists()


def test_minari_reads_what_we_write_and_we_read_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = small_log(2, observation_space=spaces.Box(0, 255, (8, 8, 3), np.uint8))
    write_minari(tmp_path / "random-v0", log)
    assert_same(read_minari(tmp_path / "random-v0"), log)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    import minari

    dataset = minari.load_dataset("random-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (30, log.num_steps)
    third = dataset[3]
    np.testing.assert_array_equal(third.observations, log[3].observation)
    np.testing.assert_array_equal(third.rewards, log[3].reward)
    assert len(third.infos["probability"]) == len(third.rewards) + 1
    np.testing.assert_allclose(np.log(third.infos["probability"][1:]), log[3].log_prob, rtol=1e-6)


def test_minari_takes_whole_distributions(tmp_path: Path, log):
    import h5py

    write_minari(tmp_path / "random-v0", log)
    with h5py.File(tmp_path / "random-v0" / "data" / "main_data.hdf5", "a") as file:
        for i, episode in enumerate(log):
            infos = file[f"episode_{i}/infos"]
            del infos["probability"]
            infos["probabilities"] = np.tile([0.2, 0.3, 0.5], (len(episode.reward) + 1, 1))
    back = read_minari(tmp_path / "random-v0")
    np.testing.assert_allclose(np.exp(back.log_prob), np.array([0.2, 0.3, 0.5])[log.action], rtol=1e-6)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(-1, 1, (3,))])
def test_tables_are_exact(tmp_path: Path, suffix: str, space):
    log = small_log(3, observation_space=space)
    path = tmp_path / f"log.{suffix}"
    write_table(path, log)
    back = untold(read_table(path, observation_space=space, action_space=spaces.Discrete(3)))
    np.testing.assert_allclose(back.log_prob, log.log_prob, rtol=1e-6)
    assert_same(back.with_log_prob(log.log_prob, behavior="logged"), log)


def test_a_table_of_somebody_else():
    frame = pd.DataFrame(
        {
            "patient": ["b", "a", "a", "b", "b"],
            "day": [1, 1, 0, 0, 2],
            "age": [60, 50, 50, 60, 60],
            "pulse": [81.0, 70, 90, 80, 82],
            "dose": [0, 1, 2, 2, 1],
            "score": [1, 0, -1, 0, 5],
        }
    ).rename(columns={"age": "x_0", "pulse": "x_1"})
    columns = Columns(episode="patient", step="day", observation="x", action="dose", reward="score")
    log = from_frame(frame, columns)
    assert log.lengths.tolist() == [3, 2]
    assert log[0].observation.tolist() == [[60, 80], [60, 81], [60, 82], [60, 82]]
    assert log[1].reward.tolist() == [-1, 0]
    assert log.schema.last_observation == "repeated"
    assert log.schema.action_space == spaces.Discrete(3)
    assert log.terminated.all()
    assert not log.has_probabilities


def test_whole_distributions_in_a_table():
    frame = pd.DataFrame({"episode": [0, 0], "step": [0, 1], "observation": [0, 1], "action": [1, 0], "reward": [0, 1]})
    frame[["probability_0", "probability_1"]] = [[0.25, 0.75], [0.5, 0.5]]
    np.testing.assert_allclose(np.exp(from_frame(frame).log_prob), [0.75, 0.5], rtol=1e-6)


@pytest.mark.parametrize("name", ["log", "log.csv", "log.parquet", "log.npz", "log-v0"])
def test_any_format_by_its_name(tmp_path: Path, log, name: str):
    write_any(tmp_path / name, log)
    back = read_any(tmp_path / name)
    assert (len(back), back.num_steps, back.max_length) == (len(log), log.num_steps, log.max_length)
    with pytest.raises(FileExistsError):
        write_any(tmp_path / name, log)


# ---- what is broken is refused -------------------------------------------------------------------------


def columns(log) -> dict:
    names = ("observation", "action", "reward", "lengths", "terminated", "log_prob")
    return {name: np.copy(getattr(log, name)) for name in names}


def put(array: np.ndarray, index, value, dtype=None) -> np.ndarray:
    array = array.astype(array.dtype if dtype is None else dtype)
    array[index] = value
    return array


IN_MEMORY = {
    "NaN reward": ("reward", lambda x: put(x, 4, np.nan), "field 'reward': nan is not a number"),
    "infinite reward": ("reward", lambda x: put(x, 4, np.inf), "field 'reward': inf is outside"),
    "reward beyond float32": ("reward", lambda x: put(x, 4, 1e300, float), "field 'reward': 1e.300 is outside"),
    "missing reward": ("reward", lambda x: x[:-1], r"field 'reward': expected shape \[\d+\], got"),
    "text reward": ("reward", lambda x: x.astype(str), "field 'reward': expected float32, got <U"),
    "object reward": ("reward", lambda x: x.astype(object), "field 'reward': expected float32, got object"),
    "complex reward": ("reward", lambda x: x.astype(complex), "field 'reward': expected float32, got complex"),
    "action too large": ("action", lambda x: put(x, 4, 3), "field 'action': 3 is outside 0 … 2"),
    "negative action": ("action", lambda x: put(x, 4, -1), "field 'action': -1 is outside 0 … 2"),
    "action of another dtype": ("action", lambda x: x.astype(float), "field 'action': expected int32, got float64"),
    "action of another shape": ("action", lambda x: x[:, None], r"field 'action': expected shape \[\d+\], got"),
    "observation outside": ("observation", lambda x: put(x, 6, 9), "field 'observation': 9 is outside 0 … 3"),
    "observation beyond int32": (
        "observation",
        lambda x: put(x, 6, 2**32, np.int64),
        "field 'observation': 4294967296 is outside",
    ),
    "observation of another shape": ("observation", lambda x: x[:-1], "field 'observation': expected shape"),
    "observation of another structure": (
        "observation",
        lambda x: {"x": x},
        "field 'observation': expected the structure",
    ),
    "probability zero": ("log_prob", lambda x: put(x, 4, -np.inf), r"probability': .* in \(0, 1\]"),
    "probability above one": ("log_prob", lambda x: put(x, 4, 0.1), r"probability': .* in \(0, 1\]"),
    "infinite probability": ("log_prob", lambda x: put(x, 4, np.inf), "field 'log_prob': inf is not a number"),
    "empty episode": ("lengths", lambda x: put(x, 0, 0), "episode 0: the episode has no steps"),
    "negative length": ("lengths", lambda x: put(x, 0, -2), "episode 0: the episode has no steps"),
    "flags missing": ("terminated", lambda x: x[:-1], r"field 'terminated': expected bool\[30\]"),
    "flags of another dtype": ("terminated", lambda x: x.astype(int), r"field 'terminated': expected bool\[30\]"),
}


@pytest.mark.parametrize(("field", "change", "message"), IN_MEMORY.values(), ids=IN_MEMORY.keys())
def test_malformed_arrays(log, field, change, message):
    broken = columns(log)
    broken[field] = change(broken[field])
    with pytest.raises(LogError, match=message) as error:
        checked_log(log.schema, **broken)
    if "outside" in message or "not a number" in message:
        index, lengths = (6, log.lengths + 1) if field == "observation" else (4, log.lengths)
        episode = int(np.searchsorted(np.cumsum(lengths), index, side="right"))
        assert (error.value.episode, error.value.step) == (episode, index - int(lengths[:episode].sum()))


def test_a_number_may_be_missing_in_an_observation_and_nowhere_else():
    log = small_log(observation_space=spaces.Box(-1, 1, (3,)))
    broken = columns(log)
    broken["observation"][int(log.lengths[0]) + 2, 1] = np.nan
    assert np.isnan(checked_log(log.schema, **broken).observation).sum() == 1
    broken["reward"][int(log.lengths[0]) + 1] = np.nan
    with pytest.raises(LogError, match=r"memory, episode 1, step 1, field 'reward': .* is not a number"):
        checked_log(log.schema, **broken)


def drop(frame: pd.DataFrame, row: int) -> pd.DataFrame:
    return frame.drop(index=row)


def cell(row: int, **values):
    return lambda frame: frame.assign(
        **{name: [value if i == row else old for i, old in enumerate(frame[name])] for name, value in values.items()}
    )


# The frame of `small_log().to_frame()`; its first episode has five steps and a closing row.
IN_TABLES = {
    "no reward column": (lambda f: f.drop(columns="reward"), "field 'reward': no such column"),
    "no rows": (lambda f: f.iloc[:0], "the table has no rows"),
    "missing reward": (cell(1, reward=None), "episode 0, step 1, field 'reward': is missing"),
    "infinite reward": (cell(1, reward=-np.inf), "row 2, episode 0, step 1, field 'reward': is infinite"),
    "missing action": (cell(1, action=None), "episode 0, step 1, field 'action': is missing"),
    "one word among numbers": (cell(1, action="left"), "row 2, .*field 'action': 'left' is not a number, as others"),
    "fractional action": (cell(1, action=0.5), "field 'action': expected int32, got float64"),
    "action out of space": (cell(1, action=7), "episode 0, step 1, field 'action': 7 is outside"),
    "probability zero": (cell(1, probability=0.0), "episode 0, step 1, field 'probability': is 0.0"),
    "negative probability": (cell(1, probability=-0.5), "episode 0, step 1, field 'probability': is -0.5"),
    "probability above one": (cell(1, probability=1.5), r"episode 0, step 1, field 'probability': .* in \(0, 1\]"),
    "gap in the steps": (lambda f: drop(f, 1), "episode 0, step 1, field 'step': step 1 is missing; the next one is 2"),
    "first step missing": (lambda f: drop(f, 0), "episode 0, step 0, field 'step': step 0 is missing"),
    "step twice": (cell(2, step=1), "episode 0, step 1, field 'step': step 1 is there twice"),
    "fractional step": (cell(1, step=0.5), "episode 0, field 'step': 0.5 is not a step number"),
    "negative step": (cell(0, step=-1), "episode 0, field 'step': -1 is not a step number"),
    "missing episode": (cell(3, episode=None), "row 4, field 'episode': the row has no episode"),
    "no final flag": (
        lambda f: f.assign(terminated=False, truncated=False),
        r"episode 0, step \d, field 'terminated': the last step is neither",
    ),
    "early final flag": (
        cell(0, terminated=True),
        "episode 0, step 0, field 'terminated': is set, but the episode goes on",
    ),
    "closing row of one episode missing": (
        lambda f: drop(f, int(f.index[f.episode == 0][-1])),
        "episode 0, step 5, field 'observation': has no row for the observation after",
    ),
    "episode without steps": (
        lambda f: pd.concat([f, f.iloc[[5]].assign(episode=99, step=0)], ignore_index=True),
        "episode 99: the episode has no steps",
    ),
}


@pytest.mark.parametrize(("change", "message"), IN_TABLES.values(), ids=IN_TABLES.keys())
def test_malformed_tables(change, message):
    log = small_log()
    assert log.lengths[0] == 5
    with pytest.raises(LogError, match=message) as error:
        from_frame(change(log.to_frame()), action_space=spaces.Discrete(3), file="ward.csv")
    assert str(error.value).startswith("ward.csv")


def test_distributions_that_do_not_sum_to_one():
    frame = small_log().to_frame().drop(columns="probability")
    frame[["probability_0", "probability_1", "probability_2"]] = [[0.5, 0.3, 0.1]] * len(frame)
    with pytest.raises(LogError, match=r"episode 0, step 0, field 'probability': \[.*\] is not a distribution"):
        from_frame(frame)


def test_mdp_dataset_without_a_last_flag(tmp_path: Path):
    write_any(tmp_path / "log.npz", small_log())
    arrays = dict(np.load(tmp_path / "log.npz"))
    arrays["terminals"][-1] = arrays["timeouts"][-1] = 0
    np.savez(tmp_path / "broken.npz", **arrays)
    with pytest.raises(LogError, match=r"broken.npz, episode 29, step \d, field 'terminals': the last row is neither"):
        read_any(tmp_path / "broken.npz")
    np.savez(tmp_path / "short.npz", **{**arrays, "actions": arrays["actions"][:-1]})
    with pytest.raises(LogError, match=r"field 'actions': has .* rows, but"):
        read_any(tmp_path / "short.npz")


def test_foreign_files(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "text.parquet").write_text("hello")
    for name in ("notes.txt", "folder", "absent"):
        with pytest.raises(LogError, match=f"{name}: is"):
            read_any(tmp_path / name)
    with pytest.raises(LogError, match=r"text.npz: not an npz of plain arrays"):
        read_any(tmp_path / "text.npz")
    with pytest.raises(LogError, match=r"text.parquet: cannot be read as a parquet table"):
        read_any(tmp_path / "text.parquet")


def edit_metadata(path: Path, **changes) -> None:
    file = path / "data" / "metadata.json"
    metadata = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))


def edit_episode(name: str, change):
    def edit(path: Path) -> None:
        import h5py

        with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
            group = file["episode_0"]
            values = np.asarray(group[name])
            del group[name]
            if (new := change(values)) is not None:
                group[name] = new

    return edit


IN_MINARI = {
    "arrow": (lambda p: edit_metadata(p, data_format="arrow"), "field 'data_format': data_format is 'arrow'"),
    "no space": (lambda p: edit_metadata(p, action_space=None, env_spec="{}"), "metadata.json: not the metadata"),
    "NaN reward": (edit_episode("rewards", lambda x: put(x, 1, np.nan)), "episode 0, step 1, field 'reward': nan"),
    "short infos": (
        edit_episode("infos/probability", lambda x: x[1:]),
        "episode 0, field 'infos.'probability'.': expected",
    ),
    "probability zero": (
        edit_episode("infos/probability", lambda x: put(x, 2, 0.0)),
        "episode 0, step 1, field 'probability': is 0.0",
    ),
    "no final flag": (
        lambda p: [edit_episode(n, lambda x: x & False)(p) for n in ("terminations", "truncations")],
        "episode 0, step 4, field 'terminations': the last step is neither",
    ),
    "early flag": (edit_episode("truncations", lambda x: put(x, 0, True)), "episode 0, step 0, field 'terminations'"),
    "wrong action": (
        edit_episode("actions", lambda x: put(x, 2, 5)),
        "episode 0, step 2, field 'action': 5 is outside",
    ),
    "short observations": (
        edit_episode("observations", lambda x: x[:-1]),
        "episode 0, field 'observation': expected shape",
    ),
    "no actions": (edit_episode("actions", lambda x: None), "main_data.hdf5, episode 0: cannot be read"),
    "truncated": (
        lambda p: os.truncate(p / "data" / "main_data.hdf5", 500),
        "main_data.hdf5: cannot be read",
    ),
}


@pytest.mark.parametrize(("change", "message"), IN_MINARI.values(), ids=IN_MINARI.keys())
def test_malformed_minari(tmp_path: Path, change, message):
    write_minari(tmp_path / "random-v0", small_log())
    change(tmp_path / "random-v0")
    with pytest.raises(LogError, match=message):
        read_minari(tmp_path / "random-v0")


# ---- our artifacts under attack ------------------------------------------------------------------------


def rebuild(path: Path, change) -> None:
    """An attacker's artifact: shards changed, and every digest computed anew."""
    from coulda.episodes.files import KIND
    from coulda.storage import read_artifact, write_artifact

    artifact = read_artifact(path, KIND)
    parts = [(name, change(artifact.read(name))) for name in artifact.parts]
    shutil.rmtree(path)
    write_artifact(path, KIND, parts, artifact.metadata)


class Bomb:
    """Leaves a mark when it is unpickled."""

    mark: Path

    def __reduce__(self):
        return Path.touch, (self.mark,)


def with_pickle(data: bytes) -> bytes:
    file = io.BytesIO()
    arrays = dict(np.load(io.BytesIO(data)))
    np.savez(file, **(arrays | {"reward": np.array([Bomb()] * len(arrays["reward"]), dtype=object)}))
    return file.getvalue()


def with_raw_pickle(data: bytes) -> bytes:
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("extra.npy", pickle.dumps(Bomb()))
    return file.getvalue()


def with_array(**arrays):
    def change(data: bytes) -> bytes:
        file = io.BytesIO()
        np.savez(file, **(dict(np.load(io.BytesIO(data))) | arrays))
        return file.getvalue()

    return change


ATTACKS = {
    "pickled objects": (with_pickle, "not an npz of plain arrays: object arrays are pickled"),
    "a pickle as an array": (with_raw_pickle, "arrays are missing|not an npz of plain arrays"),
    "a pickle as a shard": (lambda _: pickle.dumps(Bomb()), "not an npz of plain arrays"),
    "an extra array": (with_array(surprise=np.zeros(3)), "field 'surprise': arrays are missing"),
    "other numbers": (with_array(reward=np.full(3, np.nan)), "field 'reward': expected shape"),
    "wrong counts": (lambda d: _one_episode(d), "the manifest says Shard"),
}


def _one_episode(data: bytes) -> bytes:
    a = dict(np.load(io.BytesIO(data)))
    n = int(a["lengths"][0])
    cut = {"observation.0": a["observation.0"][: n + 1], "lengths": a["lengths"][:1], "terminated": a["terminated"][:1]}
    return with_array(**cut, **{k: a[k][:n] for k in ("action.0", "reward", "log_prob")})(data)


@pytest.mark.parametrize(("change", "message"), ATTACKS.values(), ids=ATTACKS.keys())
def test_hostile_artifacts(tmp_path: Path, change, message):
    Bomb.mark = tmp_path / "unpickled"
    write_log(tmp_path / "log", small_log())
    rebuild(tmp_path / "log", change)
    with pytest.raises(LogError, match=rf"shard-000000.npz.*({message})"):
        open_log(tmp_path / "log").read()
    assert not Bomb.mark.exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert Bomb.mark.exists()


def test_unknown_version_and_foreign_kind(tmp_path: Path):
    from coulda.episodes.files import KIND
    from coulda.storage import Kind, read_artifact, write_artifact

    write_log(tmp_path / "log", small_log())
    metadata = read_artifact(tmp_path / "log", KIND).metadata
    write_artifact(tmp_path / "next", Kind("episodes", 2, type(metadata)), [], metadata)
    write_artifact(tmp_path / "other", Kind("policy", 1, type(metadata)), [], metadata)
    with pytest.raises(ArtifactError, match="expected version 1 of 'episodes', found version 2"):
        open_log(tmp_path / "next")
    with pytest.raises(ArtifactError, match="expected kind 'episodes', found kind 'policy'"):
        open_log(tmp_path / "other")
    write_artifact(tmp_path / "empty", KIND, [], metadata)
    with pytest.raises(LogError, match="the manifest counts"):
        open_log(tmp_path / "empty")


def test_flipped_bits_and_cut_files_are_never_accepted(tmp_path: Path):
    """600 mutations of a real artifact: each read either fails or gives back every number."""
    log = small_log()
    write_log(tmp_path / "log", log.batches(10))
    files = sorted((tmp_path / "log").iterdir())
    contents = {file: file.read_bytes() for file in files}
    rng = random.Random(0)
    for trial in range(600):
        file = rng.choice(files)
        data = bytearray(contents[file])
        if trial % 3 == 0:
            data = data[: rng.randrange(len(data))]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(data))
        with pytest.raises((ArtifactError, LogError)):
            open_log(tmp_path / "log").read()
        file.write_bytes(contents[file])
    assert_same(open_log(tmp_path / "log").read(), log)
