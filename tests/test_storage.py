"""Artifacts are committed whole and read exactly, or refused with a reason."""

import json
import os
import random
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from coulda.errors import CouldaError
from coulda.storage import (
    ArtifactError,
    Kind,
    load_tree,
    read_artifact,
    replace_file,
    replace_json,
    save_tree,
    write_artifact,
)


class Note(msgspec.Struct):
    count: int
    scale: float = 1.0


NOTE = Kind("note", 1, Note)
PARTS = {"a.bin": b"first part", "b.bin": bytes(range(256)), "empty": b""}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "note", NOTE, PARTS.items(), Note(7, 0.1))
    return tmp_path / "note"


def read_everything(path: Path):
    opened = read_artifact(path, NOTE)
    return opened.metadata, {name: opened.read(name) for name in opened.parts}


def test_what_is_read_is_what_was_written(artifact: Path):
    assert read_everything(artifact) == (Note(7, 0.1), PARTS)
    read_artifact(artifact, NOTE).verify()


def test_an_artifact_is_never_overwritten(artifact: Path):
    with pytest.raises(FileExistsError, match="never overwritten"):
        write_artifact(artifact, NOTE, [], Note(1))
    assert read_everything(artifact) == (Note(7, 0.1), PARTS)


def test_numbers_of_numpy_become_json(tmp_path: Path):
    replace_json(tmp_path / "numbers.json", {"a": np.float64(0.5), "b": [np.int32(3), np.bool_(True)], "c": np.nan})
    assert json.loads((tmp_path / "numbers.json").read_text()) == {"a": 0.5, "b": [3, True], "c": None}
    with pytest.raises(NotImplementedError, match="has no place in JSON"):
        replace_json(tmp_path / "others.json", {"a": object()})
    assert not (tmp_path / "others.json").exists()


def test_a_failed_write_leaves_nothing(tmp_path: Path):
    def parts():
        yield "a", b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_artifact(tmp_path / "note", NOTE, parts(), Note(1))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "numbers.json"
    replace_json(path, {"a": [1, 2]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(path, b"a longer one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert json.loads(path.read_text()) == {"a": [1, 2]}
    assert list(tmp_path.iterdir()) == [path]
    replace_file(path, b"a longer one")
    assert path.read_bytes() == b"a longer one"


@pytest.mark.parametrize("name", ["../escape", "folder/part", "manifest.json", ".hidden", ""])
def test_part_names_are_plain(tmp_path: Path, name: str):
    with pytest.raises(CouldaError, match="plain file name"):
        write_artifact(tmp_path / "note", NOTE, [(name, b"")], Note(1))


def edit(path: Path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


REFUSALS = {
    "missing artifact": (shutil.rmtree, "manifest.json: expected a file, found nothing"),
    "missing part": (lambda path: (path / "a.bin").unlink(), "a.bin: expected a file, found nothing"),
    "truncated part": (lambda path: edit(path / "b.bin", lambda data: data[:-1]), "256 bytes, found 255"),
    "longer part": (lambda path: edit(path / "b.bin", lambda data: data + b"x"), "expected 256 bytes, found 257"),
    "flipped part": (
        lambda path: edit(path / "a.bin", lambda data: b"F" + data[1:]),
        "a.bin: expected SHA-256",
    ),
    "folder for a part": (
        lambda path: ((path / "a.bin").unlink(), (path / "a.bin").mkdir()),
        "something else",
    ),
    "pipe for a part": (
        lambda path: ((path / "a.bin").unlink(), os.mkfifo(path / "a.bin")),
        "something else",
    ),
    "edited metadata": (
        lambda path: edit(path / "manifest.json", lambda data: data.replace(b'"count": 7', b'"count": 8')),
        "found other contents",
    ),
    "not a manifest": (
        lambda path: edit(path / "manifest.json", lambda _: b'{"weights": 1}'),
        "coulda manifest",
    ),
    "not JSON": (lambda path: edit(path / "manifest.json", lambda _: b"\xff\x00"), "coulda manifest"),
    "deep JSON": (lambda path: edit(path / "manifest.json", lambda _: b"[" * 100_000), "coulda manifest"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_damage_is_refused_with_the_file_named(artifact: Path, case: str):
    damage, message = REFUSALS[case]
    damage(artifact)
    with pytest.raises(ArtifactError, match=message):
        read_everything(artifact)


def test_foreign_kinds_versions_and_metadata_are_refused(artifact: Path):
    class Other(msgspec.Struct):
        weight: str

    for kind, message in [
        (Kind("level-pool", 1, Note), "expected kind 'level-pool', found kind 'note'"),
        (Kind("note", 2, Note), "expected version 2 of 'note', found version 1"),
        (Kind("note", 1, Other), "metadata of a 'note'"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            read_artifact(artifact, kind)
    with pytest.raises(ArtifactError, match=r"a part 'c\.bin'"):
        read_artifact(artifact, NOTE).read("c.bin")


def corrupt(rng: random.Random, target: Path, donor: Path) -> None:
    """Flip a bit, cut the tail, or put in the file of another artifact of the same kind."""
    file = rng.choice(sorted(path for path in target.iterdir() if path.stat().st_size))
    data = bytearray(file.read_bytes())
    match rng.randrange(3):
        case 0:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case _:
            data = bytearray((donor / file.name).read_bytes())
    file.write_bytes(data)


def test_no_corruption_is_accepted(tmp_path: Path):
    rng = random.Random(0)
    other = {name: bytes(byte ^ 1 for byte in data) for name, data in PARTS.items()}
    write_artifact(tmp_path / "donor", NOTE, other.items(), Note(8))
    write_artifact(tmp_path / "good", NOTE, PARTS.items(), Note(7))
    for trial in range(500):
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        corrupt(rng, tmp_path / "bad", tmp_path / "donor")
        with pytest.raises(ArtifactError):
            print(f"trial {trial} was accepted:", read_everything(tmp_path / "bad"))
        shutil.rmtree(tmp_path / "bad")


def tree():
    return {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4),
        "layers": [jnp.arange(6.0).reshape(2, 3), jnp.int32(4), jnp.zeros((0, 2)), jnp.array(True)],
        "host": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "name": "not an array",
        "function": jnp.tanh,
        "none": None,
    }


def test_a_tree_comes_back_bit_for_bit():
    original = tree()
    loaded = load_tree(save_tree(original), tree())
    assert jax.tree.structure(loaded) == jax.tree.structure(original)
    for before, after in zip(jax.tree.leaves(original), jax.tree.leaves(loaded), strict=True):
        assert type(before) is type(after)
        if isinstance(before, jax.Array) and jnp.issubdtype(before.dtype, jax.dtypes.prng_key):
            assert before.dtype == after.dtype
            before, after = jax.random.key_data(before), jax.random.key_data(after)
        if hasattr(before, "dtype"):
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after, strict=True)
        else:
            assert before is after


def test_a_tree_loads_into_shapes_alone():
    make = lambda: {"key": jax.random.key(3), "weight": jnp.arange(6.0).reshape(2, 3)}
    loaded = load_tree(save_tree(make()), jax.eval_shape(make))
    np.testing.assert_array_equal(loaded["weight"], make()["weight"])
    assert jax.random.uniform(loaded["key"]) == jax.random.uniform(jax.random.key(3))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"w": jnp.zeros((3, 2))}, r"expected float32\[3, 2\], found float32\[2, 3\]"),
        ({"w": jnp.zeros((2, 3), jnp.int32)}, r"expected int32\[2, 3\], found float32"),
        ({"v": jnp.zeros((2, 3))}, r"missing \[\"\['v'\]\"\], unexpected \[\"\['w'\]\"\]"),
    ],
)
def test_a_template_of_another_shape_is_refused(template, message):
    with pytest.raises(ArtifactError, match=message):
        load_tree(save_tree({"w": jnp.zeros((2, 3))}), template)


def test_generators_of_keys_are_not_confused():
    with pytest.raises(ArtifactError, match="missing"):
        load_tree(save_tree(jax.random.key(0, impl="rbg")), jax.random.key(0, impl="unsafe_rbg"))


def test_pythons_numbers_come_back_as_they_were():
    tree = {"count": 3, "rate": 0.1, "on": True, "array": jnp.ones(2), "name": "pump"}
    loaded = load_tree(save_tree(tree), {"count": 0, "rate": 0.0, "on": False, "array": jnp.zeros(2), "name": "pump"})
    assert loaded.pop("array").tolist() == [1.0, 1.0]
    assert loaded == {"count": 3, "rate": 0.1, "on": True, "name": "pump"}
    assert {name: type(x) for name, x in loaded.items()} == {"count": int, "rate": float, "on": bool, "name": str}
    with pytest.raises(ArtifactError, match=r"\['count'\]: expected float64\[\], found int64\[\]"):
        load_tree(save_tree({"count": 3}), {"count": 3.0})


def test_what_would_be_lost_is_refused():
    with pytest.raises(CouldaError, match="bfloat16"):
        save_tree(jnp.zeros(2, jnp.bfloat16))
    with pytest.raises(ArtifactError, match="expected safetensors"):
        load_tree(b"garbage", {})
