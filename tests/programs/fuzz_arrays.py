"""Arrays in which something is wrong: the npz of an MDPDataset, and Minari."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces

from coulda.episodes import EpisodeLog, read_any, write_any
from coulda.episodes.log import Schema
from coulda.episodes.validation import checked_log
from tests.programs.fuzz_cases import Case, Make, npy_header, npz, spoiled


def good_log(rng: Random) -> EpisodeLog:
    """Nine short episodes, of numbered observations or of vectors."""
    draw = np.random.default_rng(rng.randrange(2**32))
    lengths = draw.integers(1, 5, 9)
    steps, rows = int(lengths.sum()), int(lengths.sum()) + len(lengths)
    discrete = rng.random() < 0.5
    seen = spaces.Discrete(3) if discrete else spaces.Box(-np.inf, np.inf, (2,))
    observation = draw.permutation(np.arange(rows) % 3) if discrete else draw.normal(size=(rows, 2)).astype(np.float32)
    action = draw.permutation(np.arange(steps) % 2)
    log_prob = np.log(draw.uniform(0.2, 0.9, steps)).astype(np.float32)
    reward = draw.normal(size=steps).astype(np.float32)
    return checked_log(
        Schema(seen, spaces.Discrete(2)), observation, action, reward, lengths, draw.random(9) < 0.7, log_prob
    )


def npz_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        write_any(folder / "good.npz", good_log(rng))
        arrays: dict[str, Any] = dict(np.load(folder / "good.npz"))
        which, path = rng.choice(sorted(arrays)), folder / "log.npz"
        name = rng.choice(("array",) * 6 + ("less", "more", "bomb", "terabyte", "cut", "twice"))
        data = b""
        if name == "array":
            name, arrays[which] = spoiled(rng, arrays[which])
        elif name == "less":
            del arrays[which]
        elif name == "more":
            arrays[rng.choice(("truncated", "x", "actions ", "probability_0"))] = arrays["rewards"]
        elif name == "bomb":
            data = npz(arrays | {which: b"\0" * rng.choice((2**20, 2**26))}, rng.choice((8, zipfile.ZIP_BZIP2)))
        elif name == "terabyte":
            arrays[which] = npy_header((rng.choice((2**37, 2**62, 10**12)), *arrays[which].shape[1:]))
        data = data or npz(arrays)
        if name == "twice":
            data = npz({**arrays, "again": arrays[which]}).replace(b"again", which[:5].encode())
        path.write_bytes(data[: rng.randrange(len(data))] if name == "cut" else data)
        return Case(name, lambda: read_any(path), lambda found: _same_arrays(found, arrays, name))

    return make


def _same_arrays(log: EpisodeLog, arrays: dict[str, Any], name: str) -> bool:
    """Whether what was read is in the arrays, row by row."""
    if name in ("bomb", "cut", "twice", "terabyte") or any(isinstance(one, bytes) for one in arrays.values()):
        return False
    ends = np.cumsum(log.lengths)
    flags = np.asarray(arrays["terminals"], float).ravel()
    told = {
        "rewards": log.reward,
        "actions": log.action,
        "observations": np.concatenate([np.asarray(one.observation)[:-1] for one in log]),
    }
    if "probability" in arrays:
        told["probability"] = np.exp(log.log_prob.astype(float))
    equal = lambda a, b: (
        a.size == b.size
        and np.allclose(np.ravel(a).astype(float), np.ravel(b).astype(float), rtol=1e-3, atol=1e-6, equal_nan=True)
    )
    return all(equal(value, np.asarray(arrays[key])) for key, value in told.items()) and np.array_equal(
        flags[ends - 1] != 0, log.terminated
    )


def minari_cases(good: Path) -> Make:
    good.mkdir()

    def make(rng: Random, folder: Path) -> Case:
        path = folder / "log-v0"
        write_any(path, good_log(rng))
        data, metadata = path / "data" / "main_data.hdf5", path / "data" / "metadata.json"
        edit = rng.choice((_edit_metadata, _edit_hdf5, _edit_hdf5, _edit_files))
        name = edit(rng, data, metadata)
        return Case(name, lambda: read_any(path), lambda found: _same_hdf5(found, data))

    return make


def _edit_metadata(rng: Random, data: Path, metadata: Path) -> str:
    told = json.loads(metadata.read_text())
    which = rng.choice(("total_episodes", "total_steps", "observation_space", "action_space", "data_format", "x"))
    values = (0, 1, -1, 8, 10**20, 1e300, "9", None, [], {}, True, "[" * 5000, '{"type": "Discrete", "n": 4e18}')
    spaces_ = [
        json.dumps({"type": kind, "n": n, "start": 0, "dtype": "int64"})
        for kind in ("Discrete", "MultiBinary", "Text", "Box", "Nothing")
        for n in (0, -1, 10**10, 10**20, "x", None, [10**6, 10**6])
    ]
    boxes = [
        json.dumps({"type": "Box", "dtype": "float32", "shape": shape, "low": [-1.0], "high": [1.0]})
        for shape in ([10**10], [-1], [2, 2], "x", [10**6, 10**6])
    ]
    told[which] = rng.choice((*values, *spaces_, *boxes) if "space" in which else values)
    metadata.write_text(json.dumps(told))
    return f"metadata: {which}"


def _edit_hdf5(rng: Random, data: Path, metadata: Path) -> str:
    with h5py.File(data, "a") as file:
        group = file[f"episode_{rng.randrange(9)}"]
        assert isinstance(group, h5py.Group)
        which = rng.choice(("observations", "actions", "rewards", "terminations", "truncations", "infos/probability"))
        array = np.asarray(group[which])
        del group[which]
        name = rng.choice(("array",) * 5 + ("missing", "external", "external link", "soft link", "sparse", "group"))
        if name == "array":
            name, spoilt = spoiled(rng, array)
            try:
                group[which] = np.frombuffer(spoilt, np.uint8) if isinstance(spoilt, bytes) else spoilt
            except TypeError:  # of a type that HDF5 does not have
                name = "missing"
        elif name == "external":
            group.create_dataset(which, array.shape, array.dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
        elif name == "external link":
            group[which] = h5py.ExternalLink("/etc/passwd", "/x")
        elif name == "soft link":
            group[which] = h5py.SoftLink("/episode_0/rewards")
        elif name == "sparse":
            group.create_dataset(which, (3 * 2**29,), "f8", chunks=(2**20,))  # 12 GB that are nowhere
        elif name == "group":
            group.create_group(which)
    return name


def _edit_files(rng: Random, data: Path, metadata: Path) -> str:
    file = rng.choice((data, metadata))
    name = rng.choice(("cut", "pipe", "link to nothing", "folder", "missing", "zeros", "device"))
    if name == "cut":
        os.truncate(file, rng.randrange(file.stat().st_size))
        return name
    file.unlink()
    if name == "pipe":
        os.mkfifo(file)
    elif name == "link to nothing":
        file.symlink_to("nowhere")
    elif name == "folder":
        file.mkdir()
    elif name == "zeros":
        file.write_bytes(b"\0" * 1000)
    elif name == "device":
        file.symlink_to("/dev/zero")
    return name


def _same_hdf5(log: EpisodeLog, data: Path) -> bool:
    """Whether the file says the same, episode by episode."""
    with h5py.File(data, "r") as file:
        if len(file) != len(log):
            return False
        for i, one in enumerate(log):
            group = file[f"episode_{i}"]
            assert isinstance(group, h5py.Group)
            pairs = ((one.observation, "observations"), (one.action, "actions"), (one.reward, "rewards"))
            for mine, name in pairs:
                theirs = np.asarray(group[name])
                if (
                    theirs.dtype.kind not in "biuf"
                    or theirs.shape != np.shape(mine)
                    or not np.allclose(mine, theirs, rtol=1e-5, equal_nan=True)
                ):
                    return False
            ended = [np.asarray(group[name], float)[-1] for name in ("terminations", "truncations")]
            if not set(ended) <= {0.0, 1.0} or bool(log.terminated[i]) != bool(ended[0]):
                return False
    return True


ARRAYS: dict[str, Callable[[Path], Make]] = {"npz": npz_cases, "minari": minari_cases}
