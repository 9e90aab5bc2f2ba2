"""Artifacts whose digests are right and whose contents are not: of every kind that is read."""

import hashlib
import json
import math
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import safetensors.numpy

from coulda.environments.sokoban import read_pool, write_pool
from coulda.episodes import collect, open_log, write_log
from coulda.fitting import TabularFit, fit, load_fitted, save_fitted
from coulda.hindsight.conv_draw import ConvDRAW, load_scenario_model, save_scenario_model
from coulda.policies import ConvLSTMPolicy, load_policy, save_policy
from coulda.policies.trainable import LinearGaussianPolicy, load_parameters, save_parameters
from coulda.report import Report, load_report, save_report
from coulda.report.page import render
from coulda.trainer.checkpoints import load_checkpoint, save_checkpoint
from tests.programs.fuzz_arrays import good_log
from tests.programs.fuzz_cases import NUMBERS, OTHERS, Case, Make, npz, spoiled
from tests.reports_plain import plain_report
from tests.triage import BEHAVIOR, triage

STATE = {"weights": jnp.ones((2, 3)), "count": jnp.zeros((), jnp.int32)}
LEVELS = np.array([[list(row) for row in level] for level in (("11111", "14231", "10001", "11111"),) * 2], np.uint8)
"""Two small levels: an agent, a box and a target between walls."""
POLICY = LinearGaussianPolicy.zero(2, 1)


class Reader(NamedTuple):
    """How an artifact of one kind is written, read and written again."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], Any]
    rewrite: Callable[[Path, Any], None]


def _log(path: Path) -> None:
    log = good_log(Random(0))
    write_log(path, [log[:5], log[5:]])


def _report(path: Path) -> None:
    save_report(path.parent, plain_report())


def _fitted(path: Path) -> None:
    log = collect(jax.random.key(0), triage(), BEHAVIOR, 40)
    save_fitted(path, fit(jax.random.key(0), log, TabularFit("gumbel_max")))


def _read_report(path: Path) -> Report:
    report = load_report(path.parent)
    render(report)
    return report


READERS = (
    Reader("log", _log, lambda path: (found := open_log(path), found.read())[0], write_log),
    Reader(
        "policy",
        lambda path: save_policy(path, ConvLSTMPolicy(jax.random.key(0), 5, 5, channels=2, units=3)),
        load_policy,
        save_policy,
    ),
    Reader(
        "scenario-model",
        lambda path: save_scenario_model(path, ConvDRAW(jax.random.key(0), num_layers=1, channels=2, latents=1)),
        load_scenario_model,
        save_scenario_model,
    ),
    Reader(
        "parameters",
        lambda path: save_parameters(path, POLICY),
        lambda path: load_parameters(path, POLICY),
        save_parameters,
    ),
    Reader(
        "step-0000000004",
        lambda path: save_checkpoint(path.parent, 4, jax.random.key(7), STATE, {"loss": 1.0}, {"rate": [0.1, "a"]}),
        lambda path: load_checkpoint(path.parent, STATE),
        lambda path, found: save_checkpoint(path.parent, 4, found.key, found.state, found.metrics, found.settings),
    ),
    Reader("report", _report, _read_report, lambda path, report: save_report(path.parent, report)),
    Reader(
        "levels",
        lambda path: write_pool(path, LEVELS) and None,
        read_pool,
        write_pool,
    ),
    Reader("fitted", _fitted, load_fitted, save_fitted),
)


def artifacts(reader: Reader) -> Callable[[Path], Make]:
    """Cases of one kind, made from a good artifact."""

    def prepare(good: Path) -> Make:
        reader.write(good / reader.name)
        reader.read(good / reader.name)  # the twin: undamaged, it is read

        def make(rng: Random, folder: Path) -> Case:
            path, again = folder / reader.name, folder / "again" / reader.name
            shutil.copytree(good / reader.name, path)
            kind = rng.choice(("value", "value", "value", "manifest", "part", "part", "structure"))
            name = {"value": _value, "manifest": _manifest, "part": _part, "structure": _structure}[kind](rng, path)

            def same(found: Any) -> bool:
                """What was understood, written again, is the same artifact."""
                reader.rewrite(again, found)
                return _agree(_contents(path), _contents(again))

            return Case(f"{kind}: {name}", lambda: reader.read(path), same)

        return make

    return prepare


def _contents(path: Path) -> Any:
    """The metadata and all arrays of an artifact, by readers that know nothing of ours."""
    manifest = json.loads((path / "manifest.json").read_text())
    kinds = {".npz": _arrays, ".safetensors": safetensors.numpy.load, ".json": json.loads}
    parts = {name: kinds.get(Path(name).suffix, bytes)((path / name).read_bytes()) for name in manifest["parts"]}
    return {"metadata": manifest["metadata"], "parts": parts}


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    return dict(np.load(BytesIO(data)))


def _agree(mine: Any, theirs: Any) -> bool:
    """Whether all that is said here is said there; what is left out here may have its default there."""
    if isinstance(mine, dict):
        told = mine.keys() - {"versions"}  # of who wrote it
        return isinstance(theirs, dict) and all(key in theirs and _agree(mine[key], theirs[key]) for key in told)
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(_agree, mine, theirs))
    if isinstance(mine, np.ndarray):
        return mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=1e-6, atol=1e-37, equal_nan=True)
    if isinstance(mine, int | float) and isinstance(theirs, int | float):
        return math.isclose(mine, theirs, rel_tol=1e-12)
    return mine == theirs


ARTIFACTS = {reader.name: artifacts(reader) for reader in READERS}


def _value(rng: Random, path: Path) -> str:
    """One value of the metadata becomes a hostile one."""
    manifest = json.loads((path / "manifest.json").read_text())
    place = rng.choice(list(_places(manifest, "metadata")))
    pool, name = rng.choice(((NUMBERS, "a number"), (OTHERS, "something else")))
    _set(manifest, place, "@@")
    _seal(path, manifest, rng.choice(pool))
    return name


def _manifest(rng: Random, path: Path) -> str:
    """One value outside of the metadata, which the digest covers too."""
    manifest = json.loads((path / "manifest.json").read_text())
    others = [name for name in manifest if name not in ("metadata", "sha256")]
    place = rng.choice([place for name in others for place in _places(manifest, name)])
    _set(manifest, place, "@@")
    _seal(path, manifest, rng.choice(NUMBERS + OTHERS))
    return "a value"


def _structure(rng: Random, path: Path) -> str:
    """A key more, less or twice; another part; a part that is a link, a folder or missing."""
    manifest = json.loads((path / "manifest.json").read_text())
    parts = list(manifest["parts"])
    name = rng.choice(("a key less", "a key more", "a part less", "a part more", "a link", "a folder", "a key twice"))
    *above, last = rng.choice(list(_places(manifest, "metadata")))
    holder = _get(manifest, above)
    if name == "a key less":
        del holder[last]
    elif name == "a key more" and isinstance(holder, dict):
        holder["surprise"] = 1
    elif name == "a part less":
        del manifest["parts"][rng.choice(parts)]
    elif name == "a part more":
        (path / "more.bin").write_bytes(b"more")
        manifest["parts"]["more.bin"] = {"size": 4, "sha256": hashlib.sha256(b"more").hexdigest()}
    elif name in ("a link", "a folder"):
        part = path / rng.choice(parts)
        part.unlink()
        part.symlink_to("/dev/zero") if name == "a link" else part.mkdir()
    elif name == "a key twice" and isinstance(holder, dict):
        holder["@@twice"] = 1
    _seal(path, manifest)
    text = (path / "manifest.json").read_text()
    if "@@twice" in text:
        _write_sealed(path, text.replace("@@twice", str(last)))
    return name


def _part(rng: Random, path: Path) -> str:
    """The contents of a part, under a right digest."""
    manifest = json.loads((path / "manifest.json").read_text())
    part = rng.choice(list(manifest["parts"]))
    data = (path / part).read_bytes()
    spoil = {".npz": _npz, ".safetensors": _safetensors, ".json": _json}.get(Path(part).suffix, _bytes)
    name, data = rng.choice((spoil, spoil, spoil, _bytes))(rng, data)
    (path / part).write_bytes(data)
    manifest["parts"][part] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _seal(path, manifest)
    return name


def _npz(rng: Random, data: bytes) -> tuple[str, bytes]:
    arrays: dict[str, Any] = dict(np.load(BytesIO(data)))
    which = rng.choice(sorted(arrays))
    name, arrays[which] = spoiled(rng, arrays[which])
    if rng.random() < 0.1:
        return "a bomb", npz(arrays | {which: b"\0" * 2**26}, zipfile.ZIP_BZIP2)
    return name, npz(arrays)


def _safetensors(rng: Random, data: bytes) -> tuple[str, bytes]:
    arrays = safetensors.numpy.load(data)
    which = rng.choice(sorted(arrays))
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size]
    name = rng.choice(
        ("array", "array", "an array less", "an array more", "header size", "header value", "deep header")
    )
    if name == "array":
        name, spoilt = spoiled(rng, arrays[which])
        if isinstance(spoilt, bytes) or spoilt.dtype.kind not in "biuf":
            return "no tensors", spoilt if isinstance(spoilt, bytes) else spoilt.tobytes()
        return name, safetensors.numpy.save(arrays | {which: np.ascontiguousarray(spoilt)})
    if name == "an array less":
        return name, safetensors.numpy.save({k: v for k, v in arrays.items() if k != which})
    if name == "an array more":
        return name, safetensors.numpy.save(arrays | {"surprise": np.zeros(3, np.float32)})
    if name == "header size":
        return name, struct.pack("<Q", rng.choice((0, 1, size - 1, 2**31, 2**63, 2**64 - 1))) + data[8:]
    if name == "header value":
        told = json.loads(header)
        field = rng.choice(("shape", "dtype", "data_offsets"))
        told[which][field] = "@@"
        header = json.dumps(told).replace('"@@"', rng.choice(NUMBERS + OTHERS[:-3])).encode()
    else:
        header = rng.choice(OTHERS[-3:]).encode()
    return name, struct.pack("<Q", len(header)) + header + data[8 + size :]


def _json(rng: Random, data: bytes) -> tuple[str, bytes]:
    told = json.loads(data)
    _set(told, rng.choice(list(_places(told))), "@@")
    return "a value", json.dumps(told).replace('"@@"', rng.choice(NUMBERS + OTHERS)).encode()


def _bytes(rng: Random, data: bytes) -> tuple[str, bytes]:
    name = rng.choice(("cut", "longer", "flipped", "noise", "nothing"))
    at = rng.randrange(max(len(data), 1))
    flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    ways = {"cut": data[:at], "longer": data + rng.randbytes(9), "flipped": flipped, "noise": rng.randbytes(len(data))}
    return name, ways.get(name, b"")


def _places(value: Any, *first: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all values below the first."""
    found = _get(value, first)
    if first:
        yield first
    keys = found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    for key in keys:
        yield from _places(value, *first, key)


def _get(value: Any, place: Any) -> Any:
    for key in place:
        value = value[key]
    return value


def _set(value: Any, place: tuple[Any, ...], new: Any) -> None:
    *above, last = place
    _get(value, above)[last] = new


def _seal(path: Path, manifest: dict[str, Any], literal: str = '"@@"') -> None:
    """Write a manifest with a right digest, `literal` in the place of "@@"."""
    text = msgspec.json.encode(manifest | {"sha256": ""}).decode().replace('"@@"', literal)
    try:  # as we would have written it, where we could
        text = msgspec.json.format(msgspec.json.encode(msgspec.json.decode(text)), indent=1).decode()
    except (msgspec.DecodeError, RecursionError, OverflowError):
        text = text.replace('"sha256":"', '"sha256": "')
    _write_sealed(path, text + "\n")


def _write_sealed(path: Path, text: str) -> None:
    """Put the digest of the text without one into it."""
    before, _, after = text.rpartition('"sha256": "')
    empty = f'{before}"sha256": "' + after[after.index('"') :]
    digest = hashlib.sha256(empty.encode()).hexdigest()
    (path / "manifest.json").write_text(f'{before}"sha256": "{digest}' + after[after.index('"') :])
